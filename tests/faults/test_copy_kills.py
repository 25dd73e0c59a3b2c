"""`kill -9` and a crash of the destination inside the first copy of a large table, which gets its key last (I4, I6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database, new_database
from fixtures.project import ProjectFolder, postgres
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


def test_the_driver_and_the_destination_die_between_the_key_and_the_end(
    database: Database, own_database: Database, own_server: Server, project: ProjectFolder, start: Any, tmp_path: Path
) -> None:
    """All chunks are there, and the key: that the copy counts is said by nobody yet, so it is taken again."""
    database.execute(*SCHEMA)
    project.connect(postgres("replica", own_database)).truck("copy", ["public.large"], {"connection": "replica"})
    trucker = start("--once", failpoints="copy.end.before=kill")
    assert trucker.process.wait(300) == -9, trucker.output()
    ((attempt, phase),) = own_database.query("select snapshot, phase from trucker.tables")
    assert (phase, _keys(own_database)) == ("copying", 1)

    go = tmp_path / "go"
    trucker = start("--once", failpoints=f"copy.end.before=hang:{go}")

    def all_there() -> bool:
        assert trucker.process.poll() is None, trucker.output()
        ((again, rows),) = own_database.query(
            "select max(snapshot), sum(rows) from trucker.tables join trucker.chunks using (snapshot)"
        )
        return again not in (None, attempt) and rows == 22_000 and _keys(own_database) == 1

    wait_until(all_there, 300, 0.1)
    own_server.stop("immediate")
    own_server.start()
    go.touch()
    assert trucker.process.wait(300) == 0, trucker.output()
    _whole(database, own_database)
