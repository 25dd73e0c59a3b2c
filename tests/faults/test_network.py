"""The network between trucker and either end fails in every way there is; trucker says so, comes back by itself, and
source and destination are equal in the end (I4). A destination that is stuck stops neither the other one nor the slot
(I2).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.bookings import SCHEMA, TABLES, Bookings
from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.proxy import Proxy
from fixtures.waiting import wait_until
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

QUICK = {"connect": 2, "silence": 2, "lock": 1}


@pytest.fixture
def near(server: Server) -> Iterator[Database]:
    """A destination that nothing happens to."""
    yield from new_database(server, "near")


@pytest.fixture
def project(tmp_path: Path, database: Database) -> ProjectFolder:
    folder = ProjectFolder(tmp_path / "project", database.name)
    folder.config["batch"] = {"max_bytes": 20_000, "small_bytes": 0, "patience": 0.5}
    folder.config["retry"] = {"first": 0.1, "longest": 1}
    return folder


def _error(run: InThread, name: str) -> str:
    truck = run.truck(name)
    return (truck.error if truck else None) or ""


def _is(run: InThread, name: str, phase: TruckPhase) -> bool:
    truck = run.truck(name)
    return truck is not None and truck.phase is phase


def _walsender(database: Database) -> int | None:
    found = database.query(f"select active_pid from pg_replication_slots where database = '{database.name}'")
    return found[0][0] if found else None


def _confirmed(database: Database) -> Lsn:
    found = database.query(f"select confirmed_flush_lsn from pg_replication_slots where database = '{database.name}'")
    return Lsn.parse(found[0][0])


def test_between_source_and_trucker(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Replication and queries go through the proxy, the first copy too, which meets a slow network."""
    database.execute(*SCHEMA)
    with Proxy(database.server.port) as proxy:
        source = {**postgres("source", database), "port": proxy.port, "timeouts": QUICK}
        project.connect(source, postgres("replica", destination))
        project.truck("copy", ["public.*"], {"connection": "replica"})
        with Bookings(database, 0.02) as bookings, InThread(project, spark) as run:
            run.wait_streaming(90)
            for fault in ("cut", "stall", "freeze", "slow"):
                before = _walsender(database)
                if fault == "slow":
                    proxy.slow(2_000)
                    bookings.wait(20)
                else:
                    getattr(proxy, fault)()
                    if fault == "freeze":  # new connections work: it is over as soon as it is noticed
                        wait_until(lambda old=before: _walsender(database) not in (None, old), 60)
                    else:
                        wait_until(lambda: "[TRK201]" in _error(run, "copy"), 60)
                proxy.heal()
                bookings.wait(5)
                wait_until(lambda: not _error(run, "copy"), 60)
            bookings.__exit__()
            wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)


def test_between_trucker_and_destination(
    project: ProjectFolder, database: Database, destination: Database, near: Database, spark: Any
) -> None:
    database.execute(*SCHEMA)
    with Proxy(destination.server.port) as proxy:
        far = {**postgres("far", destination), "port": proxy.port, "timeouts": QUICK}
        project.connect(postgres("source", database), far, postgres("near", near))
        project.truck("far", ["public.*"], {"connection": "far"})
        project.truck("near", ["public.*"], {"connection": "near"})
        with Bookings(database, 0.02) as bookings, InThread(project, spark) as run:
            run.wait_streaming(90)
            for fault in ("cut", "stall", "freeze", "slow"):
                confirmed = _confirmed(database)
                proxy.slow(2_000) if fault == "slow" else getattr(proxy, fault)()
                if fault in ("cut", "stall"):
                    wait_until(lambda: _is(run, "far", TruckPhase.RETRYING), 60)
                    assert "[TRK4" in _error(run, "far")
                goal = bookings.number + 20
                bookings.wait(20)
                wait_until(lambda goal=goal: _booked(near, goal), 60)  # the other one goes on
                wait_until(lambda old=confirmed: _confirmed(database) > old, 60)
                assert _is(run, "near", TruckPhase.STREAMING)
                proxy.heal()
                wait_until(lambda: _is(run, "far", TruckPhase.STREAMING), 60)
            bookings.__exit__()
            wait_until(lambda: same(database, near, *TABLES), 60, 0.1)
            wait_until(lambda: same(database, destination, *TABLES), 60, 0.1)


def _booked(destination: Database, number: int) -> bool:
    return destination.query(f"select max(n) >= {number} from ledger where note = 'entry'") == [(True,)]


def test_a_lock_at_one_destination_does_not_stop_the_other(
    project: ProjectFolder, database: Database, destination: Database, near: Database, spark: Any
) -> None:
    """Somebody holds a table there, and lets go in the end. Meanwhile it is reachable, but takes nothing."""
    database.execute(*SCHEMA)
    far = {**postgres("far", destination), "timeouts": QUICK}
    project.connect(postgres("source", database), far, postgres("near", near))
    project.truck("far", ["public.*"], {"connection": "far"})
    project.truck("near", ["public.*"], {"connection": "near"})
    with Bookings(database, 0.02) as bookings, InThread(project, spark) as run:
        run.wait_streaming(90)
        with destination.connect() as other, other.transaction():
            other.execute("lock table ledger in access exclusive mode")
            wait_until(lambda: "55P03" in _error(run, "far"), 60)
            for _ in range(3):  # one after the other while far tries again and again
                goal = bookings.number + 10
                bookings.wait(10)
                wait_until(lambda goal=goal: _booked(near, goal), 60)
            assert _is(run, "near", TruckPhase.STREAMING)
        bookings.__exit__()
        wait_until(lambda: _is(run, "far", TruckPhase.STREAMING), 60)
        wait_until(lambda: same(database, destination, *TABLES) and same(database, near, *TABLES), 60, 0.1)
