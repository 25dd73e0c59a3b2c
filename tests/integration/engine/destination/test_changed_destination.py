"""Destination tables and columns that somebody drops: the truck stops, and goes on as the user has chosen (I8)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres, run_cli
from fixtures.random_dml import differences
from fixtures.waiting import wait_until
from trucker.finding import Finding, Level
from trucker.observe.status import TruckPhase
from trucker.project import Project

pytestmark = pytest.mark.spark

ROWS = 20


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.destination.table_watch.LOOK_SECONDS", 0.3)


def _tables(database: Database, *names: str) -> None:
    for name in names:
        database.execute(
            f"create table {name} (id int primary key, n int, word text)",
            f"insert into {name} select i, i, 'w' || i from generate_series(1, {ROWS}) i",
        )


def _error(project: ProjectFolder, name: str) -> str:
    status = project.status()
    assert status is not None
    return next(truck.error or "" for truck in status.trucks if truck.name == name)


def _phase(project: ProjectFolder, name: str) -> TruckPhase:
    status = project.status()
    assert status is not None
    return next(truck.phase for truck in status.trucks if truck.name == name)


def _set_aside(project: ProjectFolder, name: str) -> list[tuple[str, bool, str]]:
    status = project.status()
    assert status is not None
    return [(f.table, f.held, f.error) for truck in status.trucks if truck.name == name for f in truck.failed]


def _errors(project: ProjectFolder) -> list[Finding]:
    return [finding for finding in Project.load(project.folder).check() if finding.level is Level.ERROR]


def _type(project: ProjectFolder, remedy: str, which: str) -> None:
    """One of the two commands of the remedy, as it stands there."""
    (command,) = [part for part in remedy.split(": ") if part.startswith(f"trucker {which} ")]
    words = shlex.split(command.partition(";")[0])
    more = ["--yes"] if which == "reset" else []
    done = run_cli(*words[1:], *more, str(project.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def _once(project: ProjectFolder, spark: Any) -> None:
    InThread(project, spark, once=True).join()


def test_postgres_while_it_runs(project: ProjectFolder, database: Database, destination: Database, spark: Any) -> None:
    names = ("idle", "busy", "lost", "again", "fine")
    _tables(database, *names, "west", "east")
    project.connect(postgres("place", destination))
    for name in names:
        project.truck(name, [f"public.{name}"], {"connection": "place"})
    project.truck("pair", ["public.west", "public.east"], {"connection": "place"})
    with InThread(project, spark) as run:
        run.wait_streaming()
        destination.execute(
            "drop table west",
            "drop table idle",
            "drop table busy",
            "create table busy (id int primary key, n int, word text)",
            "alter table lost drop column word",
            "alter table again drop column word",
            "alter table again add column word text",
        )
        database.execute(*(f"insert into {name} values (100, 100, 'new')" for name in names if name != "idle"))
        database.execute("insert into east values (100, 100)")
        for name in names[:4]:
            wait_until(lambda name=name: "[TRK428]" in _error(project, name))
        wait_until(lambda: not differences(database, destination, ("fine",)))
        assert _phase(project, "fine") is TruckPhase.STREAMING
        # The other table of its truck goes on, and it is not copied again by itself.
        ((table, held, error),) = wait_until(lambda: _set_aside(project, "pair"))
        assert (table, held) == ("public.west", True)
        assert "[TRK428]" in error
        wait_until(lambda: not differences(database, destination, ("east",)))
        assert "table public.idle was dropped" in _error(project, "idle")
        assert "table public.busy was dropped and created again at the destination" in _error(project, "busy")
        assert "column word of table public.lost was dropped" in _error(project, "lost")
        assert "column word of table public.again was dropped and added again" in _error(project, "again")
    assert destination.query("select to_regclass('idle'), to_regclass('public.west')") == [(None, None)]
    assert destination.query("select count(*) from busy") == [(0,)]

    # Neither check nor a start takes it for fine.
    found = {finding.subject.removeprefix("truck "): finding for finding in _errors(project)}
    assert found.keys() == {"idle", "busy", "lost", "again", "pair"}
    assert {finding.code for finding in found.values()} == {"TRK428"}
    with InThread(project, spark) as run:
        for name in names[:4]:
            wait_until(lambda name=name: "[TRK428]" in _error(project, name))
        wait_until(lambda: _phase(project, "fine") is TruckPhase.STREAMING)
        wait_until(lambda: _set_aside(project, "pair"))
    assert destination.query("select to_regclass('idle')") == [(None,)]

    _type(project, found["idle"].remedy, "reset")
    _type(project, found["pair"].remedy, "reset")
    _type(project, found["busy"].remedy, "accept")
    _type(project, found["lost"].remedy, "reset")
    _type(project, found["again"].remedy, "accept")
    assert not _errors(project)
    _once(project, spark)
    assert not differences(database, destination, ("idle", "lost", "fine", "west", "east"))
    assert destination.query("select * from busy") == [(100, 100, "new")]
    assert destination.query("select count(*), count(word) from again") == [(ROWS + 1, 1)]


def _other_process(file: str, *statements: str) -> None:
    """As a DuckDB shell does, which waits until trucker lets go of the file."""
    program = f"import duckdb\nwith duckdb.connect({file!r}) as c:\n" + "".join(
        f"    c.execute({statement!r})\n" for statement in statements
    )
    wait_until(
        lambda: subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
    )


def test_duckdb_while_it_runs_and_while_it_is_stopped(project: ProjectFolder, database: Database, spark: Any) -> None:
    names = ("idle", "busy", "lost", "fine")
    _tables(database, *names)
    file = str(project.folder / "store.duckdb")
    project.connect({"name": "store", "adapter": "duckdb", "path": file})
    for name in names:
        project.truck(name, [f"public.{name}"], {"connection": "store"})
    with InThread(project, spark) as run:
        run.wait_streaming()
        _other_process(
            file,
            "drop table public.idle",
            "alter table public.busy drop column word",
            "alter table public.busy add column word varchar",
        )
        database.execute(*(f"insert into {name} values (100, 100, 'new')" for name in ("busy", "fine")))
        for name in ("idle", "busy"):
            wait_until(lambda name=name: "[TRK428]" in _error(project, name))
        assert _phase(project, "fine") is TruckPhase.STREAMING
    with duckdb.connect(file) as connection:
        connection.execute("alter table public.lost drop column n")
    found = {finding.subject.removeprefix("truck "): finding for finding in _errors(project)}
    assert found.keys() == {"idle", "busy", "lost"}
    _type(project, found["idle"].remedy, "reset")
    _type(project, found["lost"].remedy, "reset")
    _type(project, found["busy"].remedy, "accept")
    assert not _errors(project)
    _once(project, spark)
    with duckdb.connect(file) as connection:
        for name in ("idle", "lost", "fine"):
            query = f"select id, n, word from public.{name} order by id"
            assert connection.execute(query).fetchall() == database.query(query), name
        counts = connection.execute("select count(*), count(word) from public.busy").fetchone()
        assert counts == (ROWS + 1, 1)


def test_a_column_dropped_on_both_sides_is_no_error(
    project: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    _tables(database, "item")
    project.connect(postgres("place", destination))
    project.truck("copy", ["public.item"], {"connection": "place"})
    with InThread(project, spark) as run:
        run.wait_streaming()
        database.execute("alter table item drop column word")
        destination.execute("alter table item drop column word")
        database.execute("insert into item values (100, 100)")
        wait_until(lambda: not differences(database, destination, ("item",)))
    database.execute("alter table item drop column n")
    destination.execute("alter table item drop column n")
    assert not _errors(project)
    _once(project, spark)
    assert not differences(database, destination, ("item",))


def test_a_table_made_again_while_it_is_copied_is_copied_again(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tables(database, "item", "other")
    project.connect(postgres("place", destination))
    project.truck("copy", ["public.item", "public.other"], {"connection": "place"})
    reached: list[str] = []

    def reach(point: str) -> None:
        if point == "copy.end.before" and point not in reached:
            destination.execute(
                "drop table item", "create table item (id int primary key, n int, word text)", "drop table other"
            )
        reached.append(point)

    monkeypatch.setattr("trucker.engine.snapshot.copier.reach", reach)
    _once(project, spark)
    assert reached.count("copy.end.after") > 1
    assert not differences(database, destination, ("item", "other"))


def test_what_reset_of_a_table_asks_for(project: ProjectFolder, database: Database, destination: Database) -> None:
    _tables(database, "item")
    project.connect(postgres("place", destination))
    project.truck("copy", ["public.item"], {"connection": "place"})
    without_truck = run_cli("reset", "--table", "item", "--yes", str(project.folder))
    assert without_truck.returncode != 0
    assert "--truck NAME --table TABLE" in without_truck.stderr
    unknown = run_cli("reset", "--truck", "copy", "--table", "item", "--yes", str(project.folder))
    assert unknown.returncode != 0
    assert "has not copied table public.item" in unknown.stderr
    nothing = run_cli("accept", "--json", str(project.folder))
    assert (nothing.returncode, nothing.stdout.strip()) == (0, "[]")
