"""What the documentation tells people to type does what it says: the tutorial, the grants, the DBA's statements."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.documents import ROOT, Block, blocks
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import busy
from trucker.finding import Level
from trucker.project import Project

TUTORIALS = ROOT / "docs" / "tutorial"
HOWTO = ROOT / "docs" / "howto"

PASSWORD = "change me"

# -- the tutorial -----------------------------------------------------------------------------------------------------


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    text = _typed(TUTORIALS / "first_truck.md", tmp_path)
    assert "(1000, " in text
    assert text.count('"operation":"update"') == 3, "peek shows the last changes"
    assert '"snapshot":true' in text, "the trail has the copy"
    assert "TRK" not in text, "no step of a tutorial shows an error"


def test_the_tutorial_of_sql_runs_as_it_is_written(tmp_path: Path) -> None:
    page = TUTORIALS / "sql_truck.md"
    text = _typed(page, tmp_path)
    shown = [block.text for block in blocks(page) if not block.info]
    assert shown
    for block in shown:
        assert block in text, "what the page shows is what is printed"
    assert text.count("there is something to mend") == len(re.findall("TRK", text)) == 2, "the errors that it shows"


def _typed(page: Path, folder: Path) -> str:
    """What a reader sees who types all of it into one shell; a command that fails ends it."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "-c", _script(page)],
            cwd=folder,
            env={**os.environ, "PATH": f"{_programs(folder / 'bin')}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        code = shell.wait(240 * busy())
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    text = output.read_text(encoding="utf-8")
    assert code == 0, text
    return text


def _programs(folder: Path) -> Path:
    """`trucker` and `python` as they are in a reader's virtual environment."""
    folder.mkdir()
    for name, command in (("python", ""), ("trucker", " -m trucker")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{command} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return folder


def _script(page: Path) -> str:
    lines = ["set -euo pipefail"]
    for block in blocks(page):
        if block.language == "sh":
            lines.append(block.text)
        elif block.file is not None:
            lines.append(_saved(block))
    return "\n".join(lines)


def _saved(block: Block) -> str:
    folder = "." if block.language == "python" else "shop"
    path = shlex.quote(f"{folder}/{block.file}")
    return f"cat > {path} <<'END OF FILE'\n{block.text}END OF FILE"


# -- privileges -------------------------------------------------------------------------------------------------------

Roles = Callable[[str, str], None]


@pytest.fixture
def shop(database: Database, destination: Database) -> Iterator[None]:
    """The shop of the guides, on the test's databases; roles are the server's and go at the end."""
    database.execute(
        "create role shop_app",
        "create schema shop authorization shop_app",
        "set role shop_app;"
        "create table shop.customers (id int primary key, name text);"
        "create table shop.orders (id int primary key, customer int, note text);"
        "insert into shop.customers values (1, 'Ada'); insert into shop.orders values (1, 1, 'first')",
    )
    yield
    for place in (database, destination):
        for (role,) in place.query(
            "select rolname from pg_roles where rolname in ('trucker', 'trucker_writer', 'analyst')"
        ):
            place.execute(f"drop owned by {role} cascade")
    slots = "select slot_name from pg_replication_slots where database = current_database()"
    for (slot,) in database.query(slots):
        database.execute(f"select pg_drop_replication_slot('{slot}')")
    for role in ("trucker", "trucker_writer", "analyst"):
        database.execute(f"drop role if exists {role}")
    database.execute("drop owned by shop_app cascade", "drop role shop_app")


def _statements(page: str, name: str) -> str:
    """The SQL block of a page that is called so."""
    return next(block.text for block in blocks(HOWTO / page) if block.info == f"sql {name}")


def _grant(place: Database, sql: str) -> None:
    """Run statements of a guide on the test's database, whatever the guide calls it."""
    for name in ("shop", "warehouse"):
        sql = sql.replace(f"DATABASE {name} ", f'DATABASE "{place.name}" ')
    place.execute(*(statement for statement in sql.split(";") if statement.strip()))


def _project(folder: Path, source: Database, destination: Database, **more: Any) -> ProjectFolder:
    made = ProjectFolder(folder / "project", source.name)
    login = {"user": "trucker", "pass": PASSWORD}
    made.connect(
        postgres("source", source, **login, **more),
        postgres("warehouse", destination, user="trucker_writer", **{"pass": PASSWORD}),
    )
    return made.truck("shop", ["shop.orders", "shop.customers"], {"connection": "warehouse"})


def _replicates(
    project: ProjectFolder, source: Database, destination: Database, spark: Any, schema: str = "shop"
) -> None:
    """`check` is content, and a copy, changes and a new column arrive."""
    wrong = [finding for finding in Project.load(project.folder).check() if finding.level is not Level.OK]
    assert wrong == []
    InThread(project, spark, once=True).join()
    source.execute(
        "insert into shop.orders values (2, 1, 'second')",
        "alter table shop.orders add column total numeric",
        "update shop.orders set total = 5 where id = 1",
    )
    InThread(project, spark, once=True).join()
    for table in ("orders", "customers"):
        copy = destination.query(f"select * from {schema}.{table} order by id")
        assert copy == source.query(f"select * from shop.{table} order by id")


@pytest.mark.parametrize("way", ["a", "b"])
def test_the_grants_for_the_destination_are_enough(
    way: str, shop: None, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    _grant(database, _statements("least_privilege.md", "source-b"))
    _grant(destination, _statements("least_privilege.md", f"destination-{way}"))
    if way == "b":
        _grant(destination, _statements("least_privilege.md", "destination-readers"))
    project = _project(tmp_path, database, destination)
    _replicates(project, database, destination, spark)
    if way == "b":
        with destination.connect() as connection:
            connection.execute("set role analyst")
            assert connection.execute("select count(*) from shop.orders").fetchone() == (2,)


def test_the_grants_for_schema_public_are_enough(
    shop: None, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """Without the additional one `check` says so; with it, replication works."""
    _grant(database, _statements("least_privilege.md", "source-b"))
    _grant(destination, _statements("least_privilege.md", "destination-a"))
    project = _project(tmp_path, database, destination)
    project.truck("shop", ["shop.orders", "shop.customers"], {"connection": "warehouse", "schema": "public"})
    wrong = [finding for finding in Project.load(project.folder).check() if finding.level is Level.ERROR]
    assert {finding.code for finding in wrong} == {"TRK404"}
    _grant(destination, _statements("least_privilege.md", "destination-public"))
    _replicates(project, database, destination, spark, schema="public")


def test_the_grants_for_a_publication_made_beforehand_are_enough(
    shop: None, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    _grant(database, _statements("least_privilege.md", "source-a"))
    _grant(destination, _statements("least_privilege.md", "destination-a"))
    project = _project(tmp_path, database, destination, publication="shop_changes")
    _replicates(project, database, destination, spark)
    with psycopg.connect(**database.as_user("trucker", PASSWORD).conninfo(), autocommit=True) as connection:
        for statement in ("delete from shop.orders", "drop publication shop_changes", "create schema mine"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_objects_created_by_the_dba_are_used_and_not_dropped(
    shop: None, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    grants = _statements("least_privilege.md", "source-a").partition("CREATE PUBLICATION")[0]
    _grant(database, grants)
    _grant(destination, _statements("least_privilege.md", "destination-a"))
    _grant(database, _statements("made_by_the_dba.md", "dba"))
    project = _project(tmp_path, database, destination, publication="shop_changes", slot="shop_changes")
    _replicates(project, database, destination, spark)
    Project.load(project.folder).reset()
    assert database.query("select slot_name from pg_replication_slots where database = current_database()") == [
        ("shop_changes",)
    ]
    assert database.query("select pubname from pg_publication") == [("shop_changes",)]
