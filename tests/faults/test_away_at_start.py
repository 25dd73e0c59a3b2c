"""A destination that was used before and does not answer at a start: its trucks wait, all else runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.cli.main import main
from trucker.finding import Level
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.testing.server import Server

HOLDER = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print('held', flush=True); input()"
ROWS = "select id, v from public.t order by 1"
ROLE = "trucker_away"


@dataclass
class Place:
    """A destination that can be made not to answer."""

    connection: dict[str, Any]
    code: str

    def leave(self) -> None:
        raise NotImplementedError

    def come_back(self) -> None:
        raise NotImplementedError

    def rows(self, statement: str = ROWS) -> list[tuple[Any, ...]]:
        raise NotImplementedError


@dataclass
class StoppedServer(Place):
    database: Database

    def leave(self) -> None:
        self.database.server.stop()

    def come_back(self) -> None:
        self.database.server.start()

    def rows(self, statement: str = ROWS) -> list[tuple[Any, ...]]:
        return self.database.query(statement)


@dataclass
class OtherPassword(StoppedServer):
    def leave(self) -> None:
        self.database.execute(f"alter role {ROLE} password 'another'")

    def come_back(self) -> None:
        self.database.execute(f"alter role {ROLE} password 'first'")


@dataclass
class HeldFile(Place):
    path: Path
    holder: list[subprocess.Popen[str]] = field(default_factory=list)

    def leave(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        self.holder.append(process)

    def come_back(self) -> None:
        for process in self.holder:
            process.communicate("\n", timeout=60)
        self.holder.clear()

    def rows(self, statement: str = ROWS) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.path), read_only=True) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture(params=["server stopped", "password changed", "file held"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file held":
        path = tmp_path / "out.duckdb"
        held = HeldFile({"name": "away", "adapter": "duckdb", "path": str(path)}, "TRK431", path)
        yield held
        held.come_back()
        return
    name = "own_server" if request.param == "server stopped" else "server"
    for database in new_database(request.getfixturevalue(name), "away"):
        if name == "own_server":
            yield StoppedServer(postgres("away", database), "TRK401", database)
            continue
        database.execute(
            f"create role {ROLE} login password 'first'",
            f"grant create on database {database.name} to {ROLE}",
            f"grant usage, create on schema public to {ROLE}",
        )
        try:
            yield OtherPassword(postgres("away", database, user=ROLE, **{"pass": "first"}), "TRK403", database)
        finally:
            database.execute(f"drop owned by {ROLE} cascade", f"drop role {ROLE}")


def _lines(project: ProjectFolder) -> list[Any]:
    """What the other truck has written: the ids, in order."""
    files = sorted((project.folder / "lines" / "near").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row["new"]["id"] for row in rows if row.get("new")]


def test_its_trucks_wait_and_the_rest_runs(
    project: ProjectFolder, database: Database, place: Place, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has no key, so that a change applied twice would show."""
    database.execute("create table t (id int, v text)", "alter table t replica identity full")
    database.execute("insert into t values (1, 'a')")
    project.connect(place.connection, {"name": "lines", "adapter": "jsonl", "path": str(project.folder / "lines")})
    project.truck("far", ["public.t"], {"connection": "away"}).truck("near", ["public.t"], {"connection": "lines"})
    InThread(project, spark, once=True).join()
    place.leave()
    database.execute("insert into t values (2, 'b')", "create table u (id int primary key)", "insert into u values (5)")
    project.truck("far", ["public.t", "public.u"], {"connection": "away"})
    (error,) = [finding for finding in Project.load(project.folder).check() if finding.level is Level.ERROR]
    assert (error.code, error.waits) == (place.code, True)
    assert main(["run", str(project.folder), "--once", "--strict"]) == 3
    assert f"[{place.code}]" in capsys.readouterr().err
    with InThread(project, spark) as run:
        wait_until(lambda: len(_lines(project)) == 2, 60)
        far = run.truck("far")
        assert far is not None
        assert (far.phase, place.code in (far.error or "")) == (TruckPhase.RETRYING, True)
        database.execute("update t set v = 'c' where id = 1", "insert into t values (3, 'd')")
        wait_until(lambda: len(_lines(project)) == 4, 60)
        place.come_back()
        run.wait_streaming()
        run.stop()
    assert place.rows() == database.query(ROWS)
    assert place.rows("select id from public.u") == [(5,)]


def test_once_fails_its_trucks_and_completes_the_others(
    project: ProjectFolder, database: Database, tmp_path: Path, spark: Any
) -> None:
    place = HeldFile({}, "TRK431", tmp_path / "out.duckdb")
    database.execute("create table t (id int primary key, v text)", "insert into t values (1, 'a')")
    project.connect({"name": "away", "adapter": "duckdb", "path": str(place.path)})
    project.connect({"name": "lines", "adapter": "jsonl", "path": str(project.folder / "lines")})
    project.truck("far", ["public.t"], {"connection": "away"}).truck("near", ["public.t"], {"connection": "lines"})
    loaded = Project.load(project.folder)
    loaded.run(once=True, spark=spark)
    place.leave()
    try:
        database.execute("insert into t values (2, 'b')")
        final = {truck.name: truck for truck in loaded.run(once=True, spark=spark).trucks}
        assert (final["far"].phase, final["near"].phase) == (TruckPhase.FAILED, TruckPhase.STOPPED)
        assert "TRK431" in (final["far"].error or "")
        assert _lines(project) == [1, 2]
    finally:
        place.come_back()
    loaded.run(once=True, spark=spark)
    assert place.rows() == database.query(ROWS)


def test_a_destination_that_was_never_used_is_refused(
    project: ProjectFolder, database: Database, server: Server, spark: Any
) -> None:
    database.execute("create table t (id int primary key)")
    project.connect(postgres("away", database, port=1))
    project.truck("far", ["public.t"], {"connection": "away"})
    assert main(["run", str(project.folder), "--once"]) == 3
    assert database.query("select 1 from pg_publication") == []
