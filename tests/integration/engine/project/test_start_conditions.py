"""Whatever `run` refuses at its start `check` finds: the same code, before anything is changed, with a remedy that
helps."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.cli.main import main
from trucker.postgres.slot import create_slot, object_name
from trucker.testing.server import Server

WRITER = "trucker_start_writer"
PASSWORD = "s3cret"


@dataclass
class World:
    """A project with one truck, `t`, from `public.t` to the same at the destination."""

    project: ProjectFolder
    source: Database
    destination: Database
    spark: Any
    out: Any

    @property
    def slot(self) -> str:
        return object_name(self.source.name, "source")

    @property
    def log(self) -> Path:
        return self.project.state / "log" / "source"

    @property
    def duckdb(self) -> Path:
        return self.project.folder / "out.duckdb"

    def run_once(self) -> None:
        InThread(self.project, self.spark, once=True).join()

    def cli(self, command: str, *arguments: str) -> tuple[int, str]:
        self.out.readouterr()
        code = main([command, str(self.project.folder), *arguments])
        printed = self.out.readouterr()
        return code, printed.out + printed.err

    def check(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """The exit code, and the errors by their code."""
        code, text = self.cli("check", "--json")
        findings = json.loads(text)
        lines = [(finding["subject"], finding["message"]) for finding in findings]
        assert len(lines) == len(set(lines)), "a line is printed twice"
        return code, {finding["code"]: finding for finding in findings if finding["level"] == "error"}

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What the destination has."""
        if self.duckdb.exists():
            with duckdb.connect(str(self.duckdb), read_only=True) as connection:
                return connection.execute(statement).fetchall()
        return self.destination.query(statement)

    def seen(self) -> list[Any]:
        """What a start could change on either side."""
        log = sorted((str(path), path.read_bytes()) for path in self.log.rglob("*") if path.is_file())
        return [
            self.source.query("select pubname, pubinsert from pg_publication"),
            self.source.query("select slot_name, confirmed_flush_lsn::text from pg_replication_slots order by 1"),
            self.destination.query("select relname, relnamespace from pg_class where oid > 16384 order by 1, 2"),
            self.destination.query("select nspname from pg_namespace order by 1"),
            log,
            self.duckdb.exists(),
        ]


Act = Callable[[World], None]


@dataclass(frozen=True)
class Case:
    """`before` brings the project into the state that is refused with `code`; `ran` says that it has run before.

    `waits` says that a run starts all the same, for the sake of other trucks; `--strict` refuses it then. `remedy` is
    what a person does with the remedy's words, where they are something to do.
    """

    before: Act
    code: str
    ran: bool = False
    waits: bool = False
    exit: int = 3
    remedy: Callable[[World, str], None] | None = None


def _sql(*statements: str, at: str = "source") -> Act:
    return lambda world: getattr(world, at).execute(*(s.replace("SLOT", world.slot) for s in statements))


def _all(*acts: Act) -> Act:
    def act(world: World) -> None:
        for each in acts:
            each(world)

    return act


def _run_at(place: str) -> Callable[[World, str], None]:
    """Run the statement that the remedy gives."""

    def act(world: World, remedy: str) -> None:
        found = re.search(r"run at the destination: (.+?)(; then trucker|  \(|$)", remedy)
        assert found, remedy
        if place == "duckdb":
            with duckdb.connect(str(world.duckdb)) as connection:
                connection.execute(found[1])
        else:
            world.destination.execute(*found[1].split("; "))

    return act


def _reset(world: World, remedy: str) -> None:
    assert "trucker reset" in remedy
    code, text = world.cli("reset", "--yes")
    assert code == 0, text


def _writer(*grants: str) -> Act:
    """The destination is written by a role with these privileges only."""

    def act(world: World) -> None:
        world.destination.execute(
            f"drop role if exists {WRITER}",
            f"create role {WRITER} login password '{PASSWORD}'",
            *(grant.replace("DATABASE", f"database {world.destination.name}") for grant in grants),
        )
        world.project.config["connections"][1].update({"user": WRITER, "pass": PASSWORD})
        world.project.save()

    return act


def _to_duckdb(*statements: str) -> Act:
    def act(world: World) -> None:
        world.project.connect({"name": "file", "adapter": "duckdb", "path": str(world.duckdb)})
        world.project.truck("t", ["public.t"], {"connection": "file"})
        with duckdb.connect(str(world.duckdb)) as connection:
            for statement in statements:
                connection.execute(statement)

    return act


def _write(*path: str, text: bytes) -> Act:
    def act(world: World) -> None:
        file = world.project.state.joinpath(*path)
        assert file.exists()
        file.write_bytes(text)

    return act


def _state_is_a_file(world: World) -> None:
    (world.project.folder / "state").write_text("")
    world.project.config["state"] = str(world.project.folder / "state")
    world.project.save()


def _lose_changes(world: World) -> None:
    """Somebody reads from the slot, and what it has sent is gone."""
    world.source.execute(
        "insert into t values (7, 7)",
        f"select pg_replication_slot_advance('{world.slot}', pg_current_wal_flush_lsn())",
    )


TO_WRITE = (f"grant connect, create on DATABASE to {WRITER}",)
OTHER_KEY = ("alter table t drop constraint t_pkey, add primary key (other)", "insert into t values (1, 70)")

CASES = {
    "slot dropped": Case(_sql("select pg_drop_replication_slot('SLOT')"), "TRK230", ran=True, remedy=_reset),
    "slot moved on": Case(_lose_changes, "TRK304", ran=True, remedy=_reset),
    "log damaged": Case(_write("log", "source", "durable", text=b"\0" * 1024), "TRK303", ran=True, remedy=_reset),
    "log of nobody": Case(_write("log", "source", "source.json", text=b"{"), "TRK303", ran=True, remedy=_reset),
    "state folder deleted": Case(
        _all(_lose_changes, lambda world: shutil.rmtree(world.project.state)), "TRK301", ran=True, remedy=_reset
    ),
    "state folder not usable": Case(_state_is_a_file, "TRK603"),
    "no CREATE on schema public": Case(_writer(*TO_WRITE), "TRK404", remedy=_run_at("destination")),
    "no CREATE for a schema": Case(
        _writer(f"create schema trucker authorization {WRITER}"), "TRK404", remedy=_run_at("destination")
    ),
    "no schema trucker": Case(
        _writer(f"grant all on schema public to {WRITER}"), "TRK404", remedy=_run_at("destination")
    ),
    "table of another owner": Case(
        _all(_sql("create table t (id int primary key, other int)", at="destination"), _writer(*TO_WRITE)),
        "TRK404",
        remedy=_run_at("destination"),
    ),
    "table not empty": Case(
        _sql("create table t (id int primary key, other int)", "insert into t values (9, 9)", at="destination"),
        "TRK410",
        remedy=_run_at("destination"),
    ),
    "table without the key": Case(
        _sql("create table t (id int, other int)", at="destination"), "TRK409", remedy=_run_at("destination")
    ),
    "table lacks the key's column": Case(
        _sql("create table t (code int primary key, other int)", at="destination"),
        "TRK409",
        remedy=_run_at("destination"),
    ),
    "not a table": Case(_sql("create view t as select 1 as id", at="destination"), "TRK409"),
    "DuckDB table not empty": Case(
        _to_duckdb("create schema public", "create table public.t as select 1 as id, 2 as other"),
        "TRK410",
        remedy=_run_at("duckdb"),
    ),
    "primary key exchanged": Case(_sql(*OTHER_KEY), "TRK409", ran=True, waits=True, remedy=_run_at("destination")),
}


@pytest.fixture
def world(project: ProjectFolder, database: Database, destination: Database, spark: Any, capsys: Any) -> World:
    database.execute("create table t (id int primary key, other int not null)", "insert into t values (1, 10)")
    project.connect(postgres("replica", destination))
    project.truck("t", ["public.t"], {"connection": "replica"})
    return World(project, database, destination, spark, capsys)


@pytest.fixture(autouse=True)
def _no_role_left(server: Server, destination: Database) -> Iterator[None]:
    yield
    if destination.query(f"select 1 from pg_roles where rolname = '{WRITER}'"):
        destination.execute(f"drop owned by {WRITER}", f"drop role {WRITER}")


@pytest.mark.parametrize("name", CASES)
def test_what_run_refuses_check_finds(name: str, world: World) -> None:
    case = CASES[name]
    if case.ran:
        world.run_once()
    case.before(world)
    before = world.seen()
    exit_code, errors = world.check()
    assert exit_code == 1
    assert case.code in errors, errors
    assert errors[case.code]["waits"] is case.waits
    exit_code, text = world.cli("run", "--once", *(["--strict"] if case.waits else []))
    assert exit_code == case.exit, text
    assert f"[{case.code}]" in text
    assert world.seen() == before
    if case.remedy is None:
        return
    case.remedy(world, errors[case.code]["remedy"])
    assert world.check() == (0, {})
    if case.remedy is not _reset:
        world.run_once()
        rows = "select id, other from public.t order by 1, 2"
        assert world.rows(rows) == world.source.query(rows)


def test_a_slot_that_something_else_reads_from_is_found(world: World) -> None:
    with create_slot(world.source.connection, world.slot, temporary=True):
        code, errors = world.check()
        assert (code, errors["TRK231"]["waits"]) == (1, True)
        code, text = world.cli("run", "--once", "--strict")
        assert code == 3
        assert "[TRK231]" in text


def test_check_knows_the_projects_running_instance(world: World) -> None:
    """Nothing is wrong with a project because it runs: its slot and its DuckDB file are in use by itself."""
    _to_duckdb()(world)
    with InThread(world.project, world.spark) as run:
        run.wait_streaming()
        slots = f"select active from pg_replication_slots where database = '{world.source.name}'"
        wait_until(lambda: world.source.query(slots) == [(True,)])
        code, text = world.cli("check")
        assert code == 0, text
        assert f"running instance (process {os.getpid()} on " in text
        assert "TRK" not in text
        run.stop()
    code, text = world.cli("check")
    assert (code, "running instance" in text) == (0, False), text


def test_a_connection_that_is_source_and_destination_is_reported_once(world: World) -> None:
    world.project.truck("t", ["public.t"], {"connection": "source", "schema": "copy"})
    assert world.check() == (0, {})
    assert world.source.query("select 1 from pg_namespace where nspname in ('trucker', 'copy')") == []
