"""How a run ends: when it is told to, when nothing more can be had, and with which exit code."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.random_dml import differences
from fixtures.waiting import busy, wait_until
from trucker.errors import CheckFailed
from trucker.observe.status import TruckPhase
from trucker.postgres.slot import object_name
from trucker.project import Project

pytestmark = pytest.mark.spark

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, 'first' from generate_series(1, 100) i",
        "insert into event select i, 'first' from generate_series(1, 100) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_once_has_exit_code_1_when_a_truck_failed(
    shop: ProjectFolder, database: Database, destination: Database
) -> None:
    """Also when others did not; and their work is done."""
    destination.execute("create schema taken", "create table taken.item (id int primary key check (id < 0), name text)")
    shop.truck("bad", ["public.item"], {"connection": "replica", "schema": "taken"})
    ended = run_cli("run", "--once", str(shop.folder))
    assert ended.returncode == 1
    assert "TRK406" in ended.stderr + ended.stdout
    assert differences(database, destination, ("item", "event")) == ""


def test_a_signal_while_it_starts_ends_it(
    shop: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    """At a slot that waits for an open transaction, where it cannot go on; with --once, too."""
    with database.connect() as someone, someone.transaction():
        someone.execute("insert into event values (7, 'not yet')")
        trucker = start("--once")
        wait_until(lambda: _waits_for_slot(database), 60)
        began = time.monotonic()
        assert trucker.stop(signal.SIGTERM) == 0, trucker.output()
        assert time.monotonic() - began < 30 * busy()
        assert "Traceback" not in trucker.output()
    wait_until(lambda: not database.query(_SLOTS.format(database.name)))


_SLOTS = "select slot_name from pg_replication_slots where database = '{}'"


def _waits_for_slot(database: Database) -> bool:
    return bool(database.query(_SLOTS.format(database.name) + " and active and confirmed_flush_lsn is null"))


def test_a_slot_that_is_dropped_under_it_stops_the_trucks(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What was committed since cannot be had any more: every truck says so, and so does the next start (I8)."""
    run = InThread(shop, spark)
    run.wait_streaming()
    name = object_name(Project.load(shop.folder).config.unique_id, "source")
    wait_until(lambda: _dropped(database, name), 30)
    run.join()
    status = shop.status()
    assert status is not None
    assert [truck.phase for truck in status.trucks] == [TruckPhase.FAILED]
    assert name in (status.trucks[0].error or "")
    with pytest.raises(CheckFailed, match="does not exist any more"):
        InThread(shop, spark).join()
    Project.load(shop.folder).reset()
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def _dropped(database: Database, slot: str) -> bool:
    database.query(f"select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{slot}'")
    try:
        database.query(f"select pg_drop_replication_slot('{slot}')")
    except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
        return not database.query(f"select 1 from pg_replication_slots where slot_name = '{slot}'")
    return True


def test_a_damaged_log_stops_the_trucks_and_names_the_file(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it was not applied yet. It is not skipped, and not tried for ever."""
    InThread(shop, spark, once=True).join()
    with monkeypatch.context() as patched:  # captured, but not applied
        patched.setattr("trucker.engine.stream.source_stream.SourceStream.start", lambda *_, **__: None)
        with InThread(shop, spark):
            database.execute("insert into event select i, 'waits' from generate_series(1, 500) i")
            segment = wait_until(lambda: _large(shop), 30)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(CheckFailed, match=segment.name.split(".")[0]) as caught:
        InThread(shop, spark).join()
    assert caught.value.code == "TRK303"


def _large(shop: ProjectFolder) -> Any:
    found = [path for path in (shop.state / "log" / "source").iterdir() if path.stat().st_size > 10_000]
    return found[0] if found else None


def test_two_sources_in_one_project(
    shop: ProjectFolder, database: Database, destination: Database, server: Any, spark: Any
) -> None:
    """One of them fails for good; the other goes on."""
    from fixtures.pg import new_database

    seconds = new_database(server, "second")
    second = next(seconds)
    try:
        second.execute("create table other (id int primary key)", "insert into other values (1)")
        shop.connect(postgres("second", second))
        shop.truck("other", ["public.other"], {"connection": "replica"}, connection="second")
        with InThread(shop, spark) as run:
            run.wait_streaming()
            name = object_name(Project.load(shop.folder).config.unique_id, "source")
            wait_until(lambda: _dropped(database, name), 30)
            wait_until(lambda: _phase(run, "copy") is TruckPhase.FAILED, 30)
            second.execute("insert into other values (2)")
            wait_until(lambda: same(second, destination, "other"))
            assert _phase(run, "other") is TruckPhase.STREAMING
    finally:
        next(seconds, None)


def _phase(run: InThread, name: str) -> TruckPhase | None:
    truck = run.truck(name)
    return truck.phase if truck else None
