"""Copies that are cut short, at every point: the next start takes them again, and nothing half-copied counts."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from fixtures.compare import same, wait_same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences
from fixtures.waiting import busy, wait_until
from trucker.config.adapter import Connection
from trucker.errors import SinkError, TruckerError
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase
from trucker.postgres.slot import object_name
from trucker.project import Project
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Phase
from trucker.sinks.delivery import Delivery
from trucker.sinks.factory import make_sink
from trucker.testing.faults import FaultySink, Hang

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, 'first' from generate_series(1, 500) i",
        "insert into event select i, 'first' from generate_series(1, 500) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> list[FaultySink]:
    """The driver's sinks as they are made, each able to fail."""
    made: list[FaultySink] = []

    def make(connection: Connection, workspace: Workspace) -> Sink:
        made.append(FaultySink(make_sink(connection, workspace)))
        return made[-1]

    monkeypatch.setattr("trucker.engine.destination.destination.make_sink", make)
    return made


def test_a_copy_that_fails_half_way_is_taken_again(
    shop: ProjectFolder, database: Database, destination: Database, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """It had begun: the destination says "copying", without a position, and holds rows."""

    class NeverDone(FaultySink):
        def publish(self, delivery: Delivery) -> None:
            states = delivery.batch.tables.values()
            if delivery.snapshot and any(state.phase is not Phase.COPYING for state in states):
                raise SinkError("scripted: never done")
            super().publish(delivery)

    with monkeypatch.context() as patched:
        patched.setattr("trucker.engine.destination.destination.make_sink", lambda *a: NeverDone(make_sink(*a)))
        InThread(shop, spark).join()  # the only truck has failed: the run ends
    assert destination.query("select distinct phase from trucker.tables") == [("copying",)]
    assert destination.query("select count(*) from event") == [(500,)]
    database.execute("delete from event where n <= 100", "insert into event values (1000, 'later')")
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_a_stop_during_the_copy_is_quick(
    shop: ProjectFolder, database: Database, destination: Database, sinks: list[FaultySink], spark: Any
) -> None:
    run = InThread(shop, spark)
    wait_until(lambda: bool(sinks))
    hang = Hang()
    sinks[0].script("publish", hang)
    hang.wait_reached(60)
    run.stop_event.set()
    hang.release()
    began = time.monotonic()
    run.join()
    assert time.monotonic() - began < 20 * busy()
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_a_crash_between_the_slot_and_the_log(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    config = Project.load(shop.folder).config
    name = object_name(config.unique_id, "source")
    database.execute(
        f"create publication {name} for table item, event with (publish_via_partition_root = true)",
        f"select pg_create_logical_replication_slot('{name}', 'pgoutput')",
        "insert into event values (7, 'before the log')",
    )
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_a_crash_before_the_copies_began(
    shop: ProjectFolder, database: Database, destination: Database, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """Slot, log and capture are there, and no truck has a position."""
    with monkeypatch.context() as patched:
        patched.setattr("trucker.engine.project.source_run.SourceRun.start_stream", _crash)
        with pytest.raises(_CrashError):
            InThread(shop, spark).join()
    database.execute("insert into event values (7, 'while nobody ran')")
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


class _CrashError(Exception):
    pass


def _crash(*_: object) -> None:
    raise _CrashError


def test_an_open_transaction_at_the_source_does_not_keep_it_from_stopping(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """A slot waits for everybody who has written and not committed."""
    with database.connect() as someone, someone.transaction():
        someone.execute("insert into event values (7, 'not yet')")
        run = InThread(shop, spark)
        wait_until(lambda: _waits_for_slot(database), 30)
        began = time.monotonic()
        run.stop()
        assert time.monotonic() - began < 20 * busy()
    slots = f"select slot_name from pg_replication_slots where database = '{database.name}'"
    wait_until(lambda: not database.query(slots))
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def _waits_for_slot(database: Database) -> bool:
    return bool(
        database.query(
            "select 1 from pg_replication_slots where active_pid is not null and confirmed_flush_lsn is null"
            f" and database = '{database.name}'"
        )
    )


def test_a_table_added_while_somebody_holds_a_transaction_open(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """The others stream; the new table waits for its snapshot, and a stop does not wait for it."""
    shop.truck("copy", ["public.item"], {"connection": "replica"})
    InThread(shop, spark, once=True).join()
    shop.truck("copy", ["public.*"], {"connection": "replica"})
    with database.connect() as someone, someone.transaction():
        someone.execute("insert into event values (7, 'not yet')")
        run = InThread(shop, spark)
        wait_until(lambda: _waits_for_slot(database), 30)
        database.execute("insert into item values (1000, 'streams')")
        wait_until(lambda: same(database, destination, "item"))
        began = time.monotonic()
        run.stop()
        assert time.monotonic() - began < 20 * busy()
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_one_truck_cannot_be_copied_and_the_others_are(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    destination.execute(
        "create schema taken",
        "create table taken.item (id int primary key check (id < 0), name text)",
    )
    shop.truck("bad", ["public.item"], {"connection": "replica", "schema": "taken"})
    InThread(shop, spark, once=True).join()
    status = shop.status()
    assert status is not None
    phases = {truck.name: truck.phase for truck in status.trucks}
    assert phases == {"copy": TruckPhase.STOPPED, "bad": TruckPhase.FAILED}
    assert destination.query("select * from taken.item") == []
    assert differences(database, destination, ("item", "event")) == ""


def test_a_table_that_is_truncated_repeatedly_does_not_stop_the_others(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """A snapshot shows nothing of a table that was truncated after it; that table alone has to wait for another."""
    database.execute("create table staging (n int primary key)", "create table large (id int primary key, t text)")
    database.execute("insert into large select i, repeat('x', 300) from generate_series(1, 60000) i")
    stop = threading.Event()

    def churn() -> None:
        with database.connect() as connection:
            while not stop.wait(0.02):
                connection.execute("truncate staging")
                connection.execute("insert into staging select generate_series(1, 100)")

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        with InThread(shop, spark) as run:
            wait_until(lambda: _done(destination, "large") and _done(destination, "event"), 90, 0.1)
            stop.set()
            churning.join()
            run.wait_streaming(90)
            wait_same(database, destination, "large", "staging", "item", "event")
    finally:
        stop.set()
        churning.join()


def _done(destination: Database, table: str) -> bool:
    try:
        return destination.query(f"select phase from trucker.tables where source_table = '{table}'") == [("streaming",)]
    except Exception:
        return False


def test_a_failed_start_leaves_no_process_behind(
    shop: ProjectFolder, database: Database, destination: Database, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    """The log was lost while the slot moved on: refused, with capture not running any more."""
    InThread(shop, spark, once=True).join()
    name = object_name(Project.load(shop.folder).config.unique_id, "source")
    database.execute(
        "insert into event values (7, 'lost')", f"select pg_replication_slot_advance('{name}', pg_current_wal_lsn())"
    )
    for file in (shop.state / "log" / "source").iterdir():
        file.unlink()
    with pytest.raises(TruckerError) as refused:
        InThread(shop, spark, once=True).join()
    assert refused.value.code == "TRK301"
    active = f"select active from pg_replication_slots where database = '{database.name}'"
    assert database.query(active) == [(False,)]


def test_every_table_shows_its_own_rows_and_ends_at_100_per_cent(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Chunks are tasks of Spark's, and count when they are done."""
    sizes = {"large": 200_000, "small": 40_000}
    for name, rows in sizes.items():
        database.execute(
            f"create table {name} (id int primary key, word text)",
            f"insert into {name} select i, repeat('x', 40) from generate_series(1, {rows}) i",
        )
    project.config["batch"] = {"small_bytes": 0}
    project.save()
    project.connect(postgres("replica", destination)).truck("copy", ["public.*"], {"connection": "replica"})
    seen: dict[str, list[CopyProgress]] = {"public.large": [], "public.small": []}

    def watch(status: ProjectStatus) -> None:
        for progress in status.trucks[0].copying:
            seen[progress.table].append(progress)

    with caplog.at_level(logging.INFO, "trucker.copy"):
        InThread(project, spark, once=True, on_status=watch).join()
    assert same(database, destination, *sizes)
    for name, rows in sizes.items():
        shown = seen[f"public.{name}"]
        assert [each.percent for each in shown] == sorted(each.percent for each in shown)
        assert all((each.percent == 100) is (each.rows == rows) for each in shown)
    assert len({shown[0].bytes for shown in seen.values()}) == 2, "tables of different size look different"
    ended = {vars(r)["table"]: vars(r) for r in caplog.records if r.getMessage() == "table copied"}
    assert {table: facts["rows"] for table, facts in ended.items()} == {f"public.{n}": r for n, r in sizes.items()}
    assert all(facts["seconds"] > 0 and facts["rows_per_second"] > 0 for facts in ended.values())
