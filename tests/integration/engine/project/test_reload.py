"""A reload in a running project: other sources, destinations that are away, copies in progress, SQL for Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker import failpoint
from trucker.control.answers import Reloaded
from trucker.errors import ControlError
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark

TO_REPLICA = {"connection": "replica"}


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    for table in ("orders", "items", "later"):
        database.execute(
            f"create table {table} (id int primary key, note text)",
            f"insert into {table} select i, 'n' || i from generate_series(1, 100) i",
        )
    project.connect(postgres("replica", destination))
    return project.truck("orders", ["public.orders"], TO_REPLICA)


def _project(shop: ProjectFolder) -> Project:
    return Project.load(shop.folder)


def _reload(shop: ProjectFolder, **options: Any) -> Reloaded:
    reloaded = _project(shop).reload(**options)
    assert not reloaded.refused, reloaded.findings
    assert not reloaded.findings
    return reloaded


def _phase(run: InThread, name: str) -> TruckPhase | None:
    truck = run.truck(name)
    return truck.phase if truck is not None else None


def test_another_source_goes_on_untouched(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    shop.connect(postgres("second", database))
    shop.truck("items", ["public.items"], TO_REPLICA, connection="second")

    def walsenders() -> dict[str, int | None]:
        """The processes that serve the two captures, by slot; None for a capture that is not connected."""
        return dict(
            database.query(
                "select slot_name, active_pid from pg_replication_slots"
                f" where database = '{database.name}' and not temporary"
            )
        )

    with InThread(shop, spark) as run:
        run.wait_streaming()
        wait_until(lambda: None not in walsenders().values())  # trucks stream before capture has connected
        before = walsenders()
        (first,) = (slot for slot in before if "_source_" in slot.removeprefix(f"trucker_{database.name}"))
        assert len(before) == 2
        shop.truck("later", ["public.later"], TO_REPLICA)
        assert _reload(shop).sources == ("source",)
        wait_until(lambda: same(database, destination, "orders", "items", "later"))
        wait_until(lambda: walsenders()[first] not in (None, before[first]))
        assert walsenders() == before | {first: walsenders()[first]}, "the other capture is the process that it was"
        run.wait_streaming()


def test_a_new_connection_of_another_kind_is_taken_up_while_one_is_away(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession, tmp_path: Path
) -> None:
    with Proxy(destination.server.port) as proxy:
        shop.config["connections"][1] |= {"port": proxy.port}
        shop.save()
        InThread(shop, spark, once=True).join()
        proxy.cut()
        database.execute("insert into orders values (101, 'x')")
        lake = tmp_path / "lake.duckdb"
        with InThread(shop, spark) as run:
            wait_until(lambda: _phase(run, "orders") is TruckPhase.RETRYING, 60)
            shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
            shop.truck("items", ["public.items"], {"connection": "lake"})
            assert _reload(shop).added == ("items",)
            wait_until(lambda: _phase(run, "items") is TruckPhase.STREAMING, 60)
            assert _phase(run, "orders") is TruckPhase.RETRYING
            shop.truck("later", ["public.later"], {"connection": "lake"})
            assert _reload(shop).added == ("later",), "with the file of DuckDB open in this process"
            _project(shop).pause(["orders"])
            proxy.heal()
            database.execute("insert into later values (101, 'y')", "insert into orders values (102, 'z')")
            wait_until(lambda: _phase(run, "later") is TruckPhase.STREAMING, 60)
            assert destination.query("select count(*) from orders") == [(100,)]
            _project(shop).resume(["orders"])
            wait_until(lambda: same(database, destination, "orders"), 60)
            wait_until(lambda: run.truck("later") and run.truck("later").lag_bytes == 0)  # type: ignore[union-attr]
        with duckdb.connect(str(lake), read_only=True) as connection:
            assert connection.execute("select count(*) from public.items").fetchall() == [(100,)]
            assert connection.execute("select count(*) from public.later").fetchall() == [(101,)]


def test_a_copy_in_progress_is_finished_by_a_pause_and_not_interrupted_by_a_reload(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    failpoint.arm({failpoint.VARIABLE: f"copy.end.before=hang:{go}"})
    try:
        with InThread(shop, spark) as run:
            wait_until(lambda: list(tmp_path.glob("go.*")), 60)
            (paused,) = _project(shop).pause(["orders"])
            assert paused.copying == ("public.orders",)
            shop.truck("later", ["public.later"], TO_REPLICA)
            with pytest.raises(ControlError, match=r"orders \(public\.orders\)") as refused:
                _project(shop).reload()
            assert refused.value.code == "TRK614"
            database.execute("insert into orders values (101, 'x')")
            go.touch()
            wait_until(lambda: destination.query("select phase from trucker.tables") not in ([], [("copying",)]))
            assert _reload(shop).added == ("later",)
            wait_until(lambda: _phase(run, "later") is TruckPhase.STREAMING, 60)
            assert _phase(run, "orders") is TruckPhase.PAUSED
            assert destination.query("select count(*) from orders") == [(100,)], "the copy, and nothing after it"
            _project(shop).resume(["orders"])
            wait_until(lambda: same(database, destination, "orders", "later"))
    finally:
        failpoint.arm({})


def test_a_truck_that_is_paused_before_its_copy_is_copied_when_it_is_resumed(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    shop.truck("items", ["public.items"], TO_REPLICA)
    (paused,) = _project(shop).pause(["orders"])
    assert (paused.running, paused.changed) == (False, True)
    InThread(shop, spark, once=True).join()
    assert same(database, destination, "items")
    assert destination.query("select to_regclass('orders')") == [(None,)]
    with InThread(shop, spark) as run:
        wait_until(lambda: _phase(run, "items") is TruckPhase.STREAMING, 60)
        assert _phase(run, "orders") is TruckPhase.PAUSED
        database.execute("delete from orders where id < 10")
        _project(shop).resume(["orders"])
        wait_until(lambda: same(database, destination, "orders"), 60)
        run.wait_streaming()


def test_the_change_log_keeps_what_a_paused_truck_has_not_applied(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    """I2: also over a start, and while others have applied all of it."""
    shop.config["log"] = {"segment_bytes": 1 << 20}
    shop.save().truck("items", ["public.items"], TO_REPLICA)
    segments = shop.state / "log" / "source"
    with InThread(shop, spark) as run:
        run.wait_streaming()
        _project(shop).pause(["orders"])
        for turn in range(4):
            # Nothing that compresses: it is to fill a segment.
            text = f"(select string_agg(md5(id || ' ' || i || ' {turn}'), '') from generate_series(1, 400) i)"
            database.execute(*(f"update {table} set note = {text}" for table in ("orders", "items")))
            wait_until(lambda: same(database, destination, "items"))
    with InThread(shop, spark) as run:
        wait_until(lambda: _phase(run, "items") is TruckPhase.STREAMING, 60)
        kept = run.truck("orders")
        assert kept is not None
        assert kept.lag_bytes is not None
        assert kept.lag_bytes > 4 << 20
        assert len(list(segments.glob("*.segment"))) >= 4
        _project(shop).resume(["orders"])
        wait_until(lambda: same(database, destination, "orders"), 60)
        database.execute("update items set note = 'end'")
        wait_until(lambda: len(list(segments.glob("*.segment"))) <= 1, 60)


def test_sql_for_spark_is_taken_up_when_it_is_asked_for(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    functions = shop.folder / "trucks" / "orders" / "functions.py"
    functions.write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    shop.sql("orders", {"transform": "select r.id, shout(r.note) as note from {{ rows }}"})
    with InThread(shop, spark) as run:
        run.wait_streaming()
        functions.write_text("def shout(text: str) -> str:\n    return text + '!'\n")
        with pytest.raises(ControlError) as refused:
            _project(shop).reload()
        assert refused.value.code == "TRK613"
        database.execute("insert into orders values (101, 'a')")
        wait_until(lambda: destination.query("select note from orders where id = 101") == [("A",)])
        shop.sql("orders", {"transform": "select r.id, shout(r.nothing) as note from {{ rows }}"})
        wrong = _project(shop).reload(on_sql_change="go-on")
        assert wrong.refused
        assert [finding.code for finding in wrong.errors], wrong
        shop.sql("orders", {"transform": "select r.id, shout(r.note) as note from {{ rows }}"})
        assert _reload(shop, on_sql_change="go-on").new_sql == ("orders",)
        database.execute("insert into orders values (102, 'b')")
        wait_until(lambda: destination.query("select note from orders where id = 102") == [("b!",)])
        assert destination.query("select note from orders where id = 101") == [("A",)], "what was written stays"


def test_a_source_that_went_away_in_the_middle_is_started_when_it_is_back(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    """Everything was checked, and then the server was gone: the new trucks wait for it, as all others do."""
    with Proxy(database.server.port) as proxy:
        shop.config["connections"][0] |= {"port": proxy.port}
        shop.save()
        with InThread(shop, spark) as run:
            run.wait_streaming()
            shop.truck("later", ["public.later"], TO_REPLICA)
            failpoint.arm({failpoint.VARIABLE: f"reload.stop.after=hang:{shop.folder / 'go'}"})
            answers: list[Reloaded] = []
            command = threading.Thread(target=lambda: answers.append(_project(shop).reload()))
            command.start()
            wait_until(lambda: list(shop.folder.glob("go.*")), 60)
            proxy.cut()
            (shop.folder / "go").touch()
            command.join(120)
            failpoint.arm({})
            assert not answers[0].refused
            assert [finding.waits for finding in answers[0].findings] == [True]
            wait_until(lambda: _phase(run, "later") is TruckPhase.RETRYING, 60)
            proxy.heal()
            wait_until(lambda: same(database, destination, "orders", "later"), 60)
            run.wait_streaming()


def test_a_source_that_cannot_be_started_fails_its_trucks_and_the_next_start_goes_on(
    shop: ProjectFolder, database: Database, destination: Database, spark: SparkSession
) -> None:
    """Whatever it was: it is answered, the status has it, and nothing that runs is left without an owner."""
    shop.connect(postgres("second", database))
    shop.truck("items", ["public.items"], TO_REPLICA, connection="second")
    try:
        with InThread(shop, spark) as run:
            run.wait_streaming()
            shop.truck("later", ["public.later"], TO_REPLICA)
            failpoint.arm({failpoint.VARIABLE: "setup.log.before=error"})
            reloaded = _project(shop).reload()
            failpoint.arm({})
            assert [finding.code for finding in reloaded.errors] == ["TRK599"]
            wait_until(lambda: _phase(run, "later") is _phase(run, "orders") is TruckPhase.FAILED)
            database.execute("insert into items values (101, 'x')", "insert into orders values (101, 'x')")
            wait_until(lambda: same(database, destination, "items"))
            assert _reload(shop).sources == ("source",), "a reload starts what does not run"
            wait_until(lambda: same(database, destination, "orders", "later"), 60)
            run.wait_streaming()
    finally:
        failpoint.arm({})
