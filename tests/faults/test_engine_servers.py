"""The servers at either end go away and come back; a commit's answer is lost on the way. Every row counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.bookings import SCHEMA, TABLES, Bookings
from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.config.adapter import Connection
from trucker.errors import CheckFailed
from trucker.observe.status import TruckPhase
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.delivery import Delivery
from trucker.sinks.factory import make_sink
from trucker.sinks.ledger import Ledger
from trucker.testing.faults import FaultySink, unavailable
from trucker.testing.server import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def own_database(own_server: Server) -> Iterator[Database]:
    """On a server that the test may stop."""
    yield from new_database(own_server, "own")


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[[Database, Database], ProjectFolder]:
    def make(source: Database, destination: Database) -> ProjectFolder:
        folder = ProjectFolder(tmp_path / "project", source.name)
        folder.config["batch"] = {"max_bytes": 20_000, "small_bytes": 0}
        folder.connect(postgres("source", source), postgres("replica", destination))
        return folder.truck("copy", ["public.*"], {"connection": "replica"})

    return make


def _phase(run: InThread, phase: TruckPhase) -> bool:
    truck = run.truck()
    return truck is not None and truck.phase is phase


def test_the_destination_restarts_while_changes_come(
    database: Database, own_database: Database, own_server: Server, make_project: Any, spark: Any
) -> None:
    database.execute(*SCHEMA)
    with Bookings(database) as bookings, InThread(make_project(database, own_database), spark) as run:
        run.wait_streaming(90)
        for _ in range(2):
            bookings.wait(50)
            own_server.stop("immediate")  # as a crash: what was being committed is unknown
            wait_until(lambda: _phase(run, TruckPhase.RETRYING), 60)
            own_server.start()
            wait_until(lambda: _phase(run, TruckPhase.STREAMING), 60)
        bookings.wait(20)
        bookings.__exit__()
        wait_until(lambda: same(database, own_database, *TABLES), 60, 0.1)
        assert own_database.query("select count(*) from trucker.chunks") == [(0,)]


def test_the_source_restarts_while_changes_come(
    own_database: Database, own_server: Server, destination: Database, make_project: Any, spark: Any
) -> None:
    own_database.execute(*SCHEMA)
    with Bookings(own_database) as bookings, InThread(make_project(own_database, destination), spark) as run:
        run.wait_streaming(90)
        for mode in ("immediate", "fast"):
            bookings.wait(50)
            own_server.stop(mode)
            own_server.start()
            bookings.wait(20)
        bookings.__exit__()
        wait_until(lambda: same(own_database, destination, *TABLES), 90, 0.1)
        wait_until(lambda: _phase(run, TruckPhase.STREAMING), 60)


def test_the_source_restarts_in_the_middle_of_the_copy(
    own_database: Database, own_server: Server, destination: Database, make_project: Any, spark: Any
) -> None:
    """The snapshot is gone with its connection: a new one is taken, and the half-copied rows go."""
    own_database.execute(*SCHEMA, "insert into ledger select i, repeat('x', 200) from generate_series(1, 150000) i")
    with InThread(make_project(own_database, destination), spark) as run:
        wait_until(lambda: _half_copied(destination), 90, 0.002)
        own_server.stop("immediate")
        own_server.start()
        own_database.execute("insert into ledger values (-1, 'after')")
        run.wait_streaming(120)
        wait_until(lambda: same(own_database, destination, *TABLES), 60, 0.1)


def _half_copied(destination: Database) -> bool:
    try:
        return bool(destination.query("select 1 from trucker.tables where phase = 'copying'"))
    except psycopg.errors.UndefinedTable:
        return False


def test_an_unavailable_destination_is_refused_at_the_start_before_anything_is_created(
    database: Database, own_database: Database, own_server: Server, make_project: Any, spark: Any
) -> None:
    database.execute(*SCHEMA)
    project = make_project(database, own_database)
    own_server.stop()
    try:
        with pytest.raises(CheckFailed):
            InThread(project, spark).join()
    finally:
        own_server.start()
    assert database.query("select count(*) from pg_publication") == [(0,)]
    assert database.query(f"select 1 from pg_replication_slots where database = '{database.name}'") == []
    assert not (project.state / "log").exists()


# -- answers that are lost -------------------------------------------------------------------------------------------


class LateSink(FaultySink):
    """After `lose`, the next commit fails; and takes effect only when the destination has been asked where it is."""

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner)
        self.lose = threading.Event()
        self.lost: Delivery | None = None
        self.landed = threading.Event()

    def publish(self, delivery: Delivery) -> None:
        if self.lose.is_set() and delivery.receipts:
            self.lose.clear()
            self.lost = delivery
            raise unavailable().error
        super().publish(delivery)

    def open(self) -> Ledger:
        ledger = super().open()
        lost, self.lost = self.lost, None
        if lost is not None:
            self.inner.publish(lost)
            self.landed.set()
        return ledger


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> list[LateSink]:
    """The driver's sinks as they are made, each able to fail; executors have their own."""
    made: list[LateSink] = []

    def make(connection: Connection, workspace: Workspace) -> Sink:
        made.append(LateSink(make_sink(connection, workspace)))
        return made[-1]

    monkeypatch.setattr("trucker.engine.destination.destination.make_sink", make)
    return made


def test_a_commit_whose_answer_is_lost_counts_once(
    database: Database, destination: Database, make_project: Any, spark: Any, sink: list[LateSink]
) -> None:
    database.execute(*SCHEMA)
    with InThread(make_project(database, destination), spark) as run:
        run.wait_streaming(90)
        (made,) = sink
        for number in range(3):
            made.script("publish", unavailable(after=True))
            database.execute(f"insert into ledger values ({number}, 'once'), ({number}, 'once')")
            wait_until(lambda: made.done, 30)
            database.execute(f"insert into ledger values ({number}, 'more')")
            wait_until(lambda: same(database, destination, *TABLES), 30)


def test_a_commit_that_takes_effect_after_it_was_asked_about_counts_once(
    database: Database, destination: Database, make_project: Any, spark: Any, sink: list[LateSink]
) -> None:
    database.execute(*SCHEMA)
    with InThread(make_project(database, destination), spark) as run:
        run.wait_streaming(90)
        (made,) = sink
        for number in range(2):
            made.lose.set()
            database.execute(f"insert into ledger values ({number}, 'once'), ({number}, 'once')")
            wait_until(lambda: made.lost is not None or made.landed.is_set(), 30)
            database.execute(f"insert into ledger values ({number}, 'more')")  # so that the next range is another one
            assert made.landed.wait(30)
            made.landed.clear()
            wait_until(lambda: same(database, destination, *TABLES), 30)
