"""Trucks apart from the others: they lag, catch up, come back, move and are reset, each without disturbing the rest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences, duckdb_differences
from fixtures.waiting import wait_until
from trucker.config.adapter import Connection
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.delivery import Delivery
from trucker.sinks.factory import make_sink
from trucker.sinks.ledger import Ledger
from trucker.testing.faults import FaultySink, unavailable

pytestmark = pytest.mark.spark


class Gate(FaultySink):
    """A destination that is away while `away` is set, from just after the start on."""

    def __init__(self, inner: Sink, away: threading.Event) -> None:
        super().__init__(inner)
        self._away = away

    def open(self) -> Ledger:
        if "open" in self.calls:
            self._check()
        return super().open()

    def publish(self, delivery: Delivery) -> None:
        self._check()
        super().publish(delivery)

    def _check(self) -> None:
        if self._away.is_set():
            raise unavailable().error


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> dict[str, threading.Event]:
    """By connection: set it, and the destination cannot be reached by the driver."""
    gates = {"replica": threading.Event(), "lake": threading.Event()}

    def make(connection: Connection, workspace: Workspace) -> Sink:
        return Gate(make_sink(connection, workspace), gates[connection.name])

    monkeypatch.setattr("trucker.engine.destination.destination.make_sink", make)
    return gates


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def both(project: ProjectFolder, database: Database, destination: Database, lake: Path) -> ProjectFolder:
    """One table of keys, one without, into PostgreSQL and into DuckDB."""
    database.execute(
        "create table item (id int primary key, name text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, 'first' from generate_series(1, 100) i",
        "insert into event select i, 'first' from generate_series(1, 100) i",
    )
    project.config["batch"] = {"max_bytes": 4000}
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", ["public.*"], {"connection": "replica"})
    return project.truck("lake", ["public.*"], {"connection": "lake"})


def _is(run: InThread, name: str, phase: TruckPhase) -> bool:
    truck = run.truck(name)
    return truck is not None and truck.phase is phase


def test_one_destination_is_unavailable_and_the_other_continues(
    both: ProjectFolder, database: Database, destination: Database, lake: Path, away: Any, spark: Any
) -> None:
    """The one that lags reads the log in the shapes of its time, while the main lane is ahead of it in newer ones."""
    with InThread(both, spark) as run:
        run.wait_streaming()
        away["replica"].set()
        database.execute(
            "insert into event select i, 'old shape' from generate_series(1, 300) i",
            "update item set name = 'old shape' where id % 3 = 0",
        )
        wait_until(lambda: _is(run, "replica", TruckPhase.RETRYING))
        database.execute(
            "alter table event add column extra int default 5",
            "alter table item add column extra text",
            "insert into event select i, 'new shape', i from generate_series(1, 300) i",
            "update item set extra = 'new shape' where id % 2 = 0",
            "delete from event where n % 7 = 0",
            "alter table item drop column name",
            "insert into item (id, extra) values (1000, 'newest shape')",
        )
        wait_until(lambda: _lag(run, "lake") == 0 and _position(run, "lake") > _position(run, "replica"))
        assert _is(run, "lake", TruckPhase.STREAMING)
        away["replica"].clear()
        database.execute("insert into item (id, extra) values (1001, 'meanwhile')")
        wait_until(lambda: _is(run, "replica", TruckPhase.STREAMING))
        wait_until(lambda: same(database, destination, "item", "event"))
        wait_until(lambda: _lag(run, "lake") == 0)  # it commits beside the other
    assert duckdb_differences(database, lake, ("item", "event")) == ""


def _lag(run: InThread, name: str) -> int | None:
    truck = run.truck(name)
    return truck.lag_bytes if truck else None


def _position(run: InThread, name: str) -> str:
    truck = run.truck(name)
    return (truck and truck.position) or ""


def test_what_lags_at_the_end_is_made_up_for_at_the_next_start(
    both: ProjectFolder, database: Database, destination: Database, lake: Path, away: Any, spark: Any
) -> None:
    with InThread(both, spark) as run:
        run.wait_streaming()
        away["replica"].set()
        database.execute("insert into event values (1, 'missed')")
        wait_until(lambda: _is(run, "replica", TruckPhase.RETRYING))
        wait_until(lambda: _lag(run, "lake") == 0)
    away["replica"].clear()
    database.execute("insert into event values (2, 'while nobody ran')")
    InThread(both, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""
    assert duckdb_differences(database, lake, ("item", "event")) == ""


def test_once_ends_when_a_destination_stays_unavailable(
    both: ProjectFolder, database: Database, destination: Database, lake: Path, away: Any, spark: Any
) -> None:
    """It tries some times, says which truck failed, and has done the others' work."""
    InThread(both, spark, once=True).join()
    both.config["retry"] = {"first": 0.05, "longest": 0.1}
    both.save()
    database.execute("insert into event values (1, 'not for all')")
    away["replica"].set()
    InThread(both, spark, once=True).join()
    status = both.status()
    assert status is not None
    phases = {truck.name: truck.phase for truck in status.trucks}
    assert phases == {"replica": TruckPhase.FAILED, "lake": TruckPhase.STOPPED}
    assert duckdb_differences(database, lake, ("item", "event")) == ""
    away["replica"].clear()
    InThread(both, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_a_truck_that_goes_to_another_destination_is_copied_there(
    both: ProjectFolder, database: Database, destination: Database, server: Any, spark: Any
) -> None:
    """What the old destination stores of it says nothing of the new one, though both are in use."""
    InThread(both, spark, once=True).join()
    elsewhere = new_database(server, "elsewhere")
    other = next(elsewhere)
    try:
        both.connect(postgres("elsewhere", other))
        both.truck("stays", ["public.item"], {"connection": "replica", "schema": "kept"})
        both.truck("replica", ["public.*"], {"connection": "elsewhere"})
        database.execute("insert into event values (7, 'later')")
        InThread(both, spark, once=True).join()
        assert differences(database, other, ("item", "event")) == ""
        assert differences(database, destination, ("item",), schema="kept") == ""
    finally:
        next(elsewhere, None)


def test_an_output_that_moves_is_refused_until_it_is_reset(
    both: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    InThread(both, spark, once=True).join()
    both.truck("replica", ["public.*"], {"connection": "replica", "schema": "moved"})
    database.execute("insert into event values (7, 'later')")
    InThread(both, spark, once=True).join()
    status = both.status()
    assert status is not None
    failed = next(truck for truck in status.trucks if truck.name == "replica")
    assert failed.phase is TruckPhase.FAILED
    assert failed.error is not None
    assert "trucker reset --truck replica" in failed.error
    Project.load(both.folder).reset(["replica"])
    InThread(both, spark, once=True).join()
    assert differences(database, destination, ("item", "event"), schema="moved") == ""


def test_a_truck_that_is_reset_is_copied_again_and_the_others_go_on(
    both: ProjectFolder, database: Database, destination: Database, lake: Path, spark: Any
) -> None:
    InThread(both, spark, once=True).join()
    destination.execute("delete from item where id < 50", "insert into event values (0, 'astray')")
    done = Project.load(both.folder).reset(["replica"])
    assert done == ["position of truck replica at replica"]
    database.execute("insert into event values (7, 'later')", "update item set name = 'later' where id = 60")
    with InThread(both, spark) as run:
        run.wait_streaming()
        lake_rows = run.truck("lake")
        assert lake_rows is not None
        assert lake_rows.rows < 100, "it was not copied again"
        wait_until(lambda: same(database, destination, "item", "event"))
        wait_until(lambda: (run.truck("lake") or lake_rows).rows >= 2)  # which has its own time
    assert duckdb_differences(database, lake, ("item", "event")) == ""


def test_a_table_and_a_truck_that_leave_and_return_are_copied_again(
    both: ProjectFolder, database: Database, destination: Database, lake: Path, spark: Any
) -> None:
    """While they were away nobody captured their changes."""
    InThread(both, spark, once=True).join()
    both.truck("replica", ["public.item"], {"connection": "replica"})
    both.truck("lake", ["public.item"], {"connection": "lake"})
    InThread(both, spark, once=True).join()
    database.execute("insert into event values (7, 'unseen')", "delete from event where n = 3")
    InThread(both, spark, once=True).join()
    both.truck("replica", ["public.*"], {"connection": "replica"})
    InThread(both, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""
    both.truck("lake", ["public.*"], {"connection": "lake"})
    InThread(both, spark, once=True).join()
    assert duckdb_differences(database, lake, ("item", "event")) == ""


def test_two_projects_do_not_disturb_each_other(
    both: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    other = ProjectFolder(tmp_path / "other", f"{database.name}_other")
    other.connect(postgres("source", database), postgres("replica", destination))
    other.truck("replica", ["public.*"], {"connection": "replica", "schema": "second"})
    with InThread(both, spark) as first, InThread(other, spark) as second:
        first.wait_streaming()
        second.wait_streaming()
        database.execute("insert into event values (1, 'both'), (1, 'both')", "update item set name = 'both'")
        wait_until(lambda: same(database, destination, "item", "event"))
        wait_until(lambda: same(database, destination, "item", "event", schema="second"))
        second.stop()
        Project.load(other.folder).reset()
        database.execute("insert into event values (2, 'one')")
        wait_until(lambda: same(database, destination, "item", "event"))
    slots = database.query(f"select slot_name from pg_replication_slots where database = '{database.name}'")
    assert len(slots) == 1
