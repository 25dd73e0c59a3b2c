"""`kill -9` and a crash of the destination inside the first copy of a large table, which gets its key last (I4, I6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.waiting import wait_until
from trucker.testing.server import Server

SCHEMA = (
    "create table large (id int primary key, filling text)",
    "insert into large select i, repeat(md5(i::text), 30) from generate_series(1, 22000) i",
)
POINTS = ("worker.stage.after", "worker.finish.before", "worker.finish.after")


@pytest.fixture
def own_database(own_server: Server) -> Iterator[Database]:
    """On a server that the test may stop."""
    yield from new_database(own_server, "own")


def _whole(source: Database, destination: Database) -> None:
    assert same(source, destination, "large")
    assert _keys(destination) == 1
    assert destination.query("select count(*) from trucker.late_keys") == [(0,)]
    assert destination.query("select count(*) from trucker.chunks") == [(0,)]
    assert destination.query("select phase from trucker.tables") == [("streaming",)]


def _wait_settled(source: Database, destination: Database, trucker: TruckerProcess) -> None:
    """Wait until the table follows its truck, which the commit of the next change says."""

    def settled() -> bool:
        assert trucker.process.poll() is None, trucker.output()
        source.execute("insert into large select max(id) + 1, 'later' from large")
        return destination.query("select phase from trucker.tables") == [("streaming",)]

    wait_until(settled, 120, 0.1)
    wait_until(lambda: same(source, destination, "large"))


def _keys(destination: Database) -> int:
    found = destination.query("select count(*) from pg_constraint where conname = 'large_pkey'")
    return int(found[0][0])


def test_workers_are_killed_at_a_chunk_and_at_the_key(
    database: Database, destination: Database, project: ProjectFolder, start: Any, tmp_path: Path
) -> None:
    """A chunk that was committed is not copied again; a key that was made is not made again. Spark repeats the task."""
    database.execute(*SCHEMA)
    project.config["batch"] = {"small_bytes": 0}  # all of it by workers
    project.connect(postgres("replica", destination)).truck("copy", ["public.large"], {"connection": "replica"})
    faults = "; ".join(f"{point}=kill:{tmp_path / point}" for point in POINTS)
    trucker = start("--once", failpoints=faults)
    assert trucker.process.wait(300) == 0, trucker.output()
    assert all((tmp_path / point).exists() for point in POINTS)
    _whole(database, destination)


def test_the_driver_dies_between_the_key_and_the_end(
    database: Database, destination: Database, project: ProjectFolder, start: Any
) -> None:
    """All chunks are there, and the key: the next start has nothing to read again."""
    database.execute(*SCHEMA)
    project.connect(postgres("replica", destination)).truck("copy", ["public.large"], {"connection": "replica"})
    trucker = start("--once", failpoints="copy.end.before=kill")
    assert trucker.process.wait(300) == -9, trucker.output()
    assert destination.query("select phase from trucker.tables") == [("copying",)]
    assert _keys(destination) == 1
    database.execute("update large set filling = 'while nobody ran' where id % 10 = 0")
    trucker = start()
    trucker.wait_streaming()
    assert "interrupted copy continues" in trucker.output()
    _wait_settled(database, destination, trucker)
    assert trucker.stop() == 0, trucker.output()
    assert " rows=0 " in next(line for line in trucker.output().splitlines() if "table copied" in line)
    _whole(database, destination)


def test_the_destination_dies_between_the_key_and_the_end(
    database: Database, own_database: Database, own_server: Server, project: ProjectFolder, start: Any, tmp_path: Path
) -> None:
    """What it has lost of the copy, whose commits do not wait for its disk, is read again."""
    database.execute(*SCHEMA)
    project.connect(postgres("replica", own_database)).truck("copy", ["public.large"], {"connection": "replica"})
    go = tmp_path / "go"
    trucker = start(failpoints=f"copy.end.before=hang:{go}")

    def all_there() -> bool:
        assert trucker.process.poll() is None, trucker.output()
        if own_database.query("select to_regclass('trucker.chunks') is null") == [(True,)]:
            return False
        return own_database.query("select sum(rows) from trucker.chunks") == [(22_000,)] and _keys(own_database) == 1

    wait_until(all_there, 300, 0.1)
    own_server.stop("immediate")
    own_server.start()
    go.touch()
    wait_until(lambda: same(database, own_database, "large"), 120)
    _wait_settled(database, own_database, trucker)
    assert trucker.stop() == 0, trucker.output()
    _whole(database, own_database)
