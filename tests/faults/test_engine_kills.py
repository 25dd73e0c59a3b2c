"""`kill -9` to any process of a running project, at any moment: nothing is lost, nothing is doubled (I4).

Set TRUCKER_SEED to repeat the changes; the moments are as random as the machine.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.random_dml import RandomDml, chosen_seed, differences, duckdb_differences
from fixtures.waiting import wait_until

Start = Callable[..., TruckerProcess]


class Load:
    """Random transactions in a thread, until told to stop."""

    def __init__(self, dml: RandomDml) -> None:
        self.dml = dml
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):  # leaves the machine to others, too
            self.dml.transaction()

    def wait(self, transactions: int) -> None:
        """Until that many more have been made."""
        goal = self.dml.transactions + transactions
        wait_until(lambda: self.dml.transactions >= goal or not self._thread.is_alive(), 60)
        assert self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def dml(database: Database) -> Iterator[RandomDml]:
    made = RandomDml(database, chosen_seed(), rare=0.01)
    made.create()
    yield made
    made.close()


@pytest.fixture
def load(dml: RandomDml) -> Iterator[Load]:
    running = Load(dml)
    yield running
    running.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def copies(project: ProjectFolder, destination: Database, lake: Path) -> ProjectFolder:
    project.config["batch"] = {"max_bytes": 200_000}
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", ["public.*"], {"connection": "replica"})
    return project.truck("lake", ["public.*"], {"connection": "lake"})


def _found(trucker: TruckerProcess, words: str, *, child: bool = False) -> list[psutil.Process]:
    """The processes of the tree with these words on their command line; with `child` only such a one's children."""

    def matches(process: psutil.Process | None) -> bool:
        return process is not None and words in " ".join(process.cmdline())

    found = []
    for process in trucker.tree():
        try:
            if matches(process) and (not child or matches(process.parent())):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()


def _caught_up(trucker: TruckerProcess, database: Database, destination: Database) -> None:
    """What was committed by now arrives, some time; the load goes on, so that positions do."""
    (now,) = database.query("select pg_current_wal_lsn()::text")[0]

    def there() -> bool:
        assert trucker.process.poll() is None, trucker.output()
        try:
            return bool(destination.query(f"select 1 from trucker.positions where lsn >= '{now}'"))
        except psycopg.errors.UndefinedTable:
            return False

    try:
        wait_until(there, 120, 0.05)
    except AssertionError:
        pytest.fail(f"{trucker.project.status()}\n{trucker.output()}")


def _equal(
    trucker: TruckerProcess,
    copies: ProjectFolder,
    load: Load,
    database: Database,
    destination: Database,
    lake: Path,
) -> None:
    """After the load has ended and trucker has stopped, having taken everything."""
    load.stop()
    load.dml.touch()
    trucker.wait_streaming(120)

    def equal() -> bool:
        assert trucker.process.poll() is None, trucker.output()
        return not differences(database, destination)

    try:
        wait_until(equal, 90, 0.2)
    except AssertionError:
        pytest.fail(differences(database, destination))
    since = time.time()
    wait_until(lambda: _all_applied(copies, since), 60, 0.1)  # the log has it all by now: the other truck, too
    assert trucker.stop() == 0, trucker.output()
    assert duckdb_differences(database, lake) == ""


def _all_applied(copies: ProjectFolder, since: float) -> bool:
    status = copies.status()
    return status is not None and status.updated > since and all(truck.lag_bytes == 0 for truck in status.trucks)


def test_the_small_processes_come_back(
    copies: ProjectFolder, load: Load, lake: Path, database: Database, destination: Database, start: Start
) -> None:
    """Capture, a Spark worker and the streaming source's process: the project goes on without being started again."""
    trucker = start()
    trucker.wait_streaming(120)
    for words, child in (
        ("trucker.engine.capture", False),
        ("pyspark.worker", True),
        ("python_streaming_source_runner", False),
        ("pyspark.worker", False),  # the daemon with all its workers
    ):
        _caught_up(trucker, database, destination)
        load.wait(load.dml.random.randrange(5, 60))
        victims = wait_until(lambda words=words, child=child: _found(trucker, words, child=child), 30, 0.05)
        _kill(victims)
        load.wait(20)
        _caught_up(trucker, database, destination)
    _equal(trucker, copies, load, database, destination, lake)


def test_the_large_ones_are_started_again(
    copies: ProjectFolder, load: Load, lake: Path, database: Database, destination: Database, start: Start
) -> None:
    """The whole tree in the middle of the copy, then the JVM, then the driver alone: nothing of it stays behind."""
    database.execute("insert into keyed (id, word) select i, repeat('w', 100) from generate_series(200000, 300000) i")
    trucker = start()
    wait_until(lambda: _copying(destination), 60, 0.005)
    trucker.kill_tree()
    for words in ("org.apache.spark.deploy.SparkSubmit", "-m trucker run"):
        trucker = start()
        _caught_up(trucker, database, destination)
        load.wait(load.dml.random.randrange(5, 60))
        everybody = trucker.tree()
        _kill(_found(trucker, words))
        code = trucker.process.wait(60)
        assert code == (-9 if words.startswith("-m") else 1), trucker.output()
        if code == 1:
            assert "TRK511" in trucker.output()
            assert "/trucker/" not in trucker.output().replace(str(copies.folder), ""), "a traceback of our own"
        _, left = psutil.wait_procs(everybody, 30)
        assert not left, [process.cmdline() for process in left]
    trucker = start()
    _equal(trucker, copies, load, database, destination, lake)


def _copying(destination: Database) -> bool:
    try:
        return bool(destination.query("select 1 from trucker.tables where phase = 'copying'"))
    except psycopg.errors.UndefinedTable:
        return False


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_again_and_again(
    copies: ProjectFolder, load: Load, lake: Path, database: Database, destination: Database, start: Start
) -> None:
    """Any process, for as long as TRUCKER_SOAK_MINUTES says, and compared every few kills."""
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    trucker = start()
    choose = load.dml.random
    while time.monotonic() < deadline:
        for _ in range(5):
            if choose.random() < 0.5:
                _caught_up(trucker, database, destination)
            load.wait(choose.randrange(1, 200))
            if choose.random() < 0.3:
                trucker.kill_tree()
            else:
                _kill([choose.choice(trucker.tree())])
            if not _survives(trucker):
                trucker = start()
        _caught_up(trucker, database, destination)
    _equal(trucker, copies, load, database, destination, lake)


def _survives(trucker: TruckerProcess) -> bool:
    """Whether it is still there a moment after one of its processes was killed."""
    try:
        trucker.process.wait(3)
    except subprocess.TimeoutExpired:
        return True
    return False
