"""A publication that is altered under a project, while it runs and while it does not: no change is missing (I8)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from fixtures.pg import Database, new_database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import TABLES as RANDOM
from fixtures.random_dml import RandomDml, chosen_seed, differences
from fixtures.waiting import wait_until
from trucker.failpoint import InjectedError
from trucker.finding import Finding, Level
from trucker.observe.status import TruckPhase
from trucker.project import Project
from trucker.testing.server import Server

pytestmark = pytest.mark.spark

on_18 = pytest.mark.parametrize("any_server", [18], indirect=True, ids=["pg18"])

TABLES = ("gone", "back", "filtered", "listed", "same")


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trucker.engine.project.publication_watch.LOOK_SECONDS", 0.3)


@pytest.fixture
def source(any_server: Server) -> Iterator[Database]:
    for database in new_database(any_server, "source"):
        for name in TABLES:
            database.execute(
                f"create table {name} (id int primary key, n int, word text)",
                f"insert into {name} select i, i, 'first' from generate_series(1, 20) i",
            )
        yield database


@pytest.fixture
def folder(tmp_path: Path, source: Database, destination: Database) -> ProjectFolder:
    folder = ProjectFolder(tmp_path / "project", source.name)
    folder.connect(postgres("source", source), postgres("place", destination))
    return folder.truck("all", ["public.*"], {"connection": "place"})


def _publication(source: Database) -> str:
    [(name,)] = source.query("select quote_ident(pubname) from pg_publication")
    return str(name)


def _alter(source: Database, publication: str) -> None:
    """Every kind of alteration that concerns single tables, with changes that the stream then lacks."""
    source.execute(
        f"alter publication {publication} drop table gone",
        "insert into gone values (100, 1, 'unseen')",
        f"alter publication {publication} drop table back",
        "insert into back values (100, 1, 'unseen')",
        "update back set word = 'unseen' where id = 1",
        f"alter publication {publication} add table only back",
        f"alter publication {publication} drop table filtered",
        f"alter publication {publication} add table only filtered where (id > 1000)",
        "insert into filtered values (100, 1, 'unseen')",
        f"alter publication {publication} drop table filtered",
        f"alter publication {publication} add table only filtered",
        f"alter publication {publication} drop table listed",
        f"alter publication {publication} add table only listed (id, n)",
        "update listed set word = 'unseen' where id = 1",
        "update same set word = 'seen' where id = 1",
    )


def _copies(destination: Database) -> dict[str, str]:
    """Of every table the copy it had."""
    return dict(destination.query("select source_table, snapshot from trucker.tables where target_table is not null"))


def _copied_again(before: dict[str, str], destination: Database) -> set[str]:
    return {table for table, copy in _copies(destination).items() if copy != before[table]}


def _warnings(folder: ProjectFolder) -> list[Finding]:
    found = Project.load(folder.folder).check()
    assert not [each for each in found if each.level is Level.ERROR], found
    return [each for each in found if each.code == "TRK241"]


def test_altered_while_it_runs(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trucker")
    with InThread(folder, spark) as run:
        run.wait_streaming()
        publication, before = _publication(source), _copies(destination)
        _alter(source, publication)
        wait_until(lambda: run.check() or not differences(source, destination, TABLES), 60)
        assert _copied_again(before, destination) == {"gone", "back", "filtered", "listed"}
        source.execute("update gone set word = 'later' where id = 100", "update listed set word = 'later' where id = 2")
        wait_until(lambda: run.check() or not differences(source, destination, TABLES), 60)

        before = _copies(destination)
        source.execute(
            f"alter publication {publication} set (publish = 'insert')",
            "update same set word = 'unseen' where id = 3",
            "delete from back where id = 3",
        )
        wait_until(lambda: run.check() or not differences(source, destination, TABLES), 60)
        wait_until(lambda: _copied_again(before, destination) == set(TABLES), 60)
        [flags] = source.query("select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication")
        assert all(flags)
        run.wait_streaming()
    assert "publication was corrected" in caplog.messages
    told = [record for record in caplog.records if record.message == "table is copied again"]
    assert {record.table for record in told} == {f"public.{name}" for name in TABLES}  # type: ignore[attr-defined]
    assert any("removed from its publication" in record.reason for record in told)  # type: ignore[attr-defined]
    assert not _warnings(folder)


def test_altered_and_altered_back_while_it_is_stopped(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any
) -> None:
    """The next start finds it by the rows of the catalogue, though all looks as it was; `check` says so before."""
    InThread(folder, spark, once=True).join()
    publication, before = _publication(source), _copies(destination)
    source.execute("vacuum (full, freeze) pg_publication", "vacuum (full, freeze) pg_publication_rel")
    assert not _warnings(folder)
    _alter(source, publication)
    source.execute(f"alter publication {publication} add table only gone")
    [warning] = _warnings(folder)
    for name in TABLES:
        assert (f"public.{name}" in warning.message) == (name != "same")
    InThread(folder, spark, once=True).join()
    assert not differences(source, destination, TABLES)
    assert _copied_again(before, destination) == {"gone", "back", "filtered", "listed"}
    assert not _warnings(folder)

    before = _copies(destination)
    InThread(folder, spark, once=True).join()
    assert _copies(destination) == before

    source.execute(
        f"alter publication {publication} set (publish = 'insert')",
        "update same set word = 'unseen' where id = 3",
        "delete from back where id = 3",
        f"alter publication {publication} set (publish = 'insert, update, delete, truncate')",
    )
    [warning] = _warnings(folder)
    assert all(f"public.{name}" in warning.message for name in TABLES)
    InThread(folder, spark, once=True).join()
    assert not differences(source, destination, TABLES)
    assert _copied_again(before, destination) == set(TABLES)


def _stopped(run: InThread, *, alone: bool) -> str | None:
    """Why the truck has failed; or, where only one of its tables is concerned, why that is set aside."""
    truck = run.truck()
    assert truck is not None
    if alone:
        return next((failed.error for failed in truck.failed if failed.table == "public.back"), None)
    return truck.error if truck.phase is TruckPhase.FAILED else None


MADE = {
    "tables": "for table gone, back, filtered, listed, same",
    "schema": "for tables in schema public",
    "all": "for all tables",
}


@on_18
@pytest.mark.parametrize("kind", MADE)
def test_a_publication_made_beforehand(
    kind: str, folder: ProjectFolder, source: Database, destination: Database, spark: Any
) -> None:
    """It is not trucker's to correct: what is altered back is copied again, what is not stops the truck."""
    source.execute(f"create publication made {MADE[kind]} with (publish_via_partition_root = true)")
    folder.config["connections"][0]["publication"] = "made"
    folder.save()
    take, give = {
        "tables": ("drop table back", "add table back"),
        "schema": ("drop tables in schema public", "add tables in schema public"),
        "all": ("set (publish = 'insert')", "set (publish = 'insert, update, delete, truncate')"),
    }[kind]
    concerned = {"back"} if kind == "tables" else set(TABLES)
    unseen = ("update back set word = 'unseen' where id = 1", "delete from back where id = 2")
    with InThread(folder, spark) as run:
        run.wait_streaming()
        before = _copies(destination)
        with source.connect() as session:  # one statement after the other, faster than anybody can look
            for statement in (f"alter publication made {take}", *unseen, f"alter publication made {give}"):
                session.execute(statement.encode())
        wait_until(lambda: run.check() or not differences(source, destination, TABLES), 60)
        wait_until(lambda: _copied_again(before, destination) == concerned, 60)
        run.wait_streaming()
        source.execute(f"alter publication made {take}", "update back set word = 'again' where id = 3")
        error = wait_until(lambda: _stopped(run, alone=kind == "tables"), 60)
        assert "[TRK240]" in error
        assert 'ALTER PUBLICATION "made"' in error
    source.execute(f"alter publication made {give}")
    assert _warnings(folder)
    InThread(folder, spark, once=True).join()
    assert not differences(source, destination, TABLES)


@on_18
def test_a_truck_that_must_not_copy_again_stops(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any
) -> None:
    """`schema_changes: stop`: running and at the start, the truck fails with the choice; others go on."""
    folder.truck("all", ["public.back"], {"connection": "place"})
    folder.truck("other", ["public.back", "public.same"], {"connection": "place", "schema": "other"})
    file = folder.folder / "trucks" / "all" / "truck.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "schema_changes": "stop"}))

    def failed(run: InThread) -> None:
        wait_until(lambda: (found := run.truck("all")) and found.phase is TruckPhase.FAILED, 60)
        error = (run.truck("all") or run.truck()).error  # type: ignore[union-attr]
        assert error
        assert "[TRK426]" in error
        assert "trucker reset --truck all" in error
        other = "select array_agg((id, n, word)::text order by id) from {}back"
        wait_until(lambda: source.query(other.format("")) == destination.query(other.format("other.")), 60)

    with InThread(folder, spark) as run:
        run.wait_streaming()
        publication = _publication(source)
        source.execute(
            f"alter publication {publication} drop table back", "update back set word = 'unseen' where id = 1"
        )
        failed(run)
    with InThread(folder, spark) as run:
        failed(run)
    assert "truck all" in str(_warnings(folder))
    Project.load(folder.folder).reset(["all"])
    InThread(folder, spark, once=True).join()
    assert not differences(source, destination, ("back",))


@on_18
def test_killed_when_trucker_has_altered_its_publication(
    folder: ProjectFolder, source: Database, destination: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What trucker does itself is not taken for somebody's alteration, though the record does not say it yet."""
    InThread(folder, spark, once=True).join()
    before = _copies(destination)
    source.execute("create table late (id int primary key)", "insert into late values (1)")

    def strike(point: str) -> None:
        if point == "setup.publication.after":
            raise InjectedError(point)

    with monkeypatch.context() as patch:
        patch.setattr("trucker.engine.project.publication_start.reach", strike)
        with pytest.raises(InjectedError):
            InThread(folder, spark, once=True).join()
    InThread(folder, spark, once=True).join()
    assert destination.query("select id from late") == [(1,)]
    assert {name: copy for name, copy in _copies(destination).items() if name != "late"} == before


def test_random_alterations(database: Database, destination: Database, project: ProjectFolder, spark: Any) -> None:
    """Whatever is done to the publication, between changes and restarts, both sides are equal then."""
    dml = RandomDml(database, chosen_seed(), rare=0)
    dml.create()
    project.connect(postgres("place", destination)).truck("all", ["public.*"], {"connection": "place"})
    InThread(project, spark, once=True).join()
    for _ in range(2):
        with InThread(project, spark) as run:
            run.wait_streaming()
            _stir(database, dml)
            wait_until(lambda: run.check() or not differences(database, destination, RANDOM), 90)
        _stir(database, dml)
    InThread(project, spark, once=True).join()
    assert not differences(database, destination, RANDOM)
    dml.close()


def _stir(database: Database, dml: RandomDml) -> None:
    dice = dml.random
    for _ in range(6):
        name, tables = dice.choice(
            database.query(
                "select quote_ident(p.pubname), array_agg(t.tablename::text order by 1) from pg_publication p"
                " join pg_publication_tables t using (pubname) group by 1"
            )
        )
        table = dice.choice(tables)
        alter = f"alter publication {name}"
        undo = f"{alter} add table only {table}"
        do = dice.choice(
            (
                [f"{alter} drop table {table}", undo],
                [f"{alter} drop table {table}"] if len(tables) > 1 else [],
                [f"{alter} drop table {table}", f"{undo} where (1 = 0)", f"{alter} drop table {table}", undo],
                [f"{alter} drop table {table}", f"{undo} where (1 = 0)"],
                [f"{alter} set (publish = 'insert')", f"{alter} set (publish = 'insert, update, delete, truncate')"],
                [f"{alter} set (publish = 'truncate')"],
                [f"{alter} set (publish_via_partition_root = false)"],
                ["vacuum (full, freeze) pg_publication_rel"],
            )
        )
        for statement in do:
            # Trucker may have corrected the publication meanwhile, or be about to ("tuple concurrently updated"): then
            # the statement is refused, which is fine.
            refused = (psycopg.errors.DuplicateObject, psycopg.errors.UndefinedObject, psycopg.errors.InternalError_)
            with suppress(*refused):
                database.execute(statement)
            dml.transaction()
