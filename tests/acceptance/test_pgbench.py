"""pgbench on the source while a truck replicates its four tables: equal in the end, whatever is killed (I4)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database, start_server
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.waiting import wait_until
from trucker.change import Lsn
from trucker.testing.server import Server

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: the load must not slow other tests' server down."""
    yield from start_server(tmp_path_factory, 18)


@pytest.fixture
def database(busy: Server) -> Iterator[Database]:
    yield from new_database(busy, "source")


@pytest.fixture
def loaded(database: Database, project: ProjectFolder, destination: Database, seconds: int) -> ProjectFolder:
    """The history with FULL identity, and a truck for all four tables."""
    _pgbench(database, "-i", "-s", "2" if seconds < 60 else "10", "-q").wait(120)
    database.execute("alter table pgbench_history replica identity full")
    project.connect(postgres("replica", destination))
    return project.truck("bench", ["public.pgbench_*"], {"connection": "replica"})


def _pgbench(database: Database, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(database.server.bin / "pgbench"), *arguments],
        env=database.server.environment(database.name),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


Load = Callable[[int, bool], subprocess.Popen[bytes]]

# Seconds of load: enough for many batches, and for the soak as much as the machine gives.
LENGTHS = pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.soak)])


@pytest.fixture
def load(database: Database) -> Iterator[Load]:
    """`load(seconds, paced)` begins a load of four clients, TPC-B; a paced one leaves the machine to others as well."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(seconds: int, paced: bool) -> subprocess.Popen[bytes]:
        pace = ("-R", "400") if paced else ()
        running.append(_pgbench(database, "-n", "-c", "4", "-T", str(seconds), *pace))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def _equal_soon(database: Database, destination: Database, timeout: float = 60) -> None:
    wait_until(lambda: same(database, destination, *TABLES), timeout, 0.5)


Start = Callable[..., TruckerProcess]


# The next test ends in the same way, after a kill: a short load without one shows nothing more.
@pytest.mark.soak
@pytest.mark.parametrize("seconds", [60])
def test_source_and_destination_are_equal_after_a_load(
    loaded: ProjectFolder, database: Database, destination: Database, start: Start, load: Load, seconds: int
) -> None:
    trucker = start()
    bench = load(seconds, seconds < 60)
    trucker.wait_streaming(90)
    assert bench.wait(90) == 0
    _equal_soon(database, destination, 30)
    assert trucker.stop() == 0


@LENGTHS
def test_equal_after_the_whole_process_tree_is_killed(
    loaded: ProjectFolder, database: Database, destination: Database, start: Start, load: Load, seconds: int
) -> None:
    bench = load(600, seconds < 60)
    began = time.monotonic()
    for _ in range(1 if seconds < 60 else 8):
        trucker = start()
        trucker.wait_streaming(90)
        before = _rows(destination)
        wait_until(lambda before=before: _rows(destination) > before, 60, 0.2)
        trucker.kill_tree()
    trucker = start()
    trucker.wait_streaming(90)
    with pytest.raises(subprocess.TimeoutExpired):  # so many seconds of load at the least
        bench.wait(max(1.0, began + seconds - time.monotonic()))
    bench.terminate()
    bench.wait(30)
    _equal_soon(database, destination)
    assert trucker.stop() == 0


@LENGTHS
def test_the_slot_advances_while_the_destination_is_down(
    seconds: int,
    loaded: ProjectFolder,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
    start: Start,
    load: Load,
) -> None:
    servers = start_server(tmp_path_factory, 18)
    server = next(servers)
    destinations = new_database(server, "replica")
    destination = next(destinations)
    loaded.config["connections"][1] = postgres("replica", destination)
    loaded.save()
    try:
        trucker = start()
        bench = load(600, seconds < 60)
        trucker.wait_streaming(90)
        server.stop("immediate")
        down = time.monotonic()
        places = [_confirmed(database)]
        while time.monotonic() - down < seconds / 2 or len(places) <= 5:
            wait_until(lambda: _confirmed(database) > places[-1], 10, 0.1)
            places.append(_confirmed(database))
        server.start()
        bench.terminate()
        bench.wait(30)
        _equal_soon(database, destination)
        assert trucker.stop() == 0
    finally:
        for fixture in (destinations, servers):
            next(fixture, None)


def _rows(destination: Database) -> int:
    found: list[Any] = destination.query("select count(*) from pgbench_history")
    return int(found[0][0])


def _confirmed(database: Database) -> Lsn:
    rows = database.query(
        "select confirmed_flush_lsn::text from pg_replication_slots"
        f" where database = '{database.name}' and not temporary"
    )
    return Lsn.parse(rows[0][0])
