"""handler.py files on a project, by the command line: checked, tried, run, killed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, run_cli
from fixtures.waiting import wait_until
from trucker import ConfigError, Level, Project

HANDLER = """
from trucker import Handler, RowChange, SourceTransaction

from .journal import append


class Journal(Handler):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_begin(self, transaction: SourceTransaction) -> None:
        append(self.path, "begin")

    async def on_insert(self, change: RowChange) -> None:
        append(self.path, "insert", change)

    def on_update(self, change: RowChange) -> None:
        append(self.path, "update", change)

    def on_delete(self, change: RowChange) -> None:
        append(self.path, "delete", change)

    def on_commit(self, transaction: SourceTransaction) -> None:
        append(self.path, "commit")

    def on_refresh(self, table) -> None:
        append(self.path, "refresh")
"""

JOURNAL = """
import json


def append(path, call, change=None):
    row = change and {name: repr(value) for name, value in (change.new or change.old).items()}
    with open(path, "a") as file:
        file.write(json.dumps([call, row]) + "\\n")
"""

INDEX = """
import sqlite3


class Index:
    def __init__(self, path):
        self.path = path

    def open(self):
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute("create table if not exists items (id integer primary key, name text, seen integer)")
        self.database.execute("create table if not exists position (only integer primary key, text text)")

    def close(self):
        self.database.close()

    def begin(self):
        if not self.database.in_transaction:
            self.database.execute("begin")

    def upsert(self, table, rows):
        self.begin()
        for row in rows:
            insert = "insert into items values (?, ?, 1) on conflict (id) do update set name = ?, seen = seen + 1"
            self.database.execute(insert, (row["id"], row["name"], row["name"]))

    def delete(self, table, keys):
        self.begin()
        self.database.executemany("delete from items where id = ?", [(key["id"],) for key in keys])

    def truncate(self, table):
        self.begin()
        self.database.execute("delete from items")

    def load_position(self):
        row = self.database.execute("select text from position").fetchone()
        return row and row[0]

    def save_position(self, position):
        self.begin()
        self.database.execute("insert or replace into position values (1, ?)", (position,))
        self.database.execute("commit")
"""

COLUMNS = {
    "id": "int primary key",
    "name": "text",
    "price": "numeric(10,2)",
    "ratio": "double precision",
    "ready": "boolean",
    "data": "bytea",
    "day": "date",
    "at": "timestamptz",
    "plain": "timestamp",
    "code": "uuid",
    "body": "jsonb",
    "numbers": "int[]",
    "clock": "time",
}
ROW = (
    "1, 'a''b', 12.50, 0.1, true, '\\x00ff', '2024-02-29', '2024-05-01 12:00:00.25+02', '2024-05-01 12:00:00', "
    "'5b30857f-0bfa-48b5-ac0b-5c64e28078d1', '{\"a\": [1, null]}', '{1,null,3}', '10:11:12.5'"
)


@pytest.fixture
def shop(project: ProjectFolder, database: Database) -> ProjectFolder:
    """Two trucks, one with a handler, one with a batcher."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(
        f"create table things ({columns})",
        f"insert into things values ({ROW})",
        "create table items (id int primary key, name text)",
        "insert into items values (1, 'one'), (2, 'two')",
    )
    project.connect({"name": "journal", "adapter": "python"}, {"name": "index", "adapter": "python", "parallel": 2})
    for truck, table, text in (("journal", "things", HANDLER), ("index", "items", INDEX)):
        project.truck(truck, [f"public.{table}"], {"connection": truck})
        project.sql(truck, {}, handler={"path": str(project.folder / f"{truck}.out")})
        (project.folder / "trucks" / truck / "handler.py").write_text(text)
    (project.folder / "trucks" / "journal" / "journal.py").write_text(JOURNAL)
    return project


def _journal(project: ProjectFolder) -> list[tuple[str, dict[str, str] | None]]:
    return [tuple(json.loads(line)) for line in (project.folder / "journal.out").read_text().splitlines()]


def _index(project: ProjectFolder) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(project.folder / "index.out")
    try:
        return database.execute("select id, name, seen from items order by id").fetchall()
    finally:
        database.close()


def _psycopg_row(database: Database) -> dict[str, str]:
    """A row as psycopg gives it, every value in the time zone that trucker's values have."""
    with psycopg.connect(**database.connection.conninfo(), row_factory=psycopg.rows.dict_row) as connection:
        connection.execute("set time zone 'UTC'")
        row = connection.execute("select * from things").fetchone()
    assert row is not None
    return {name: repr(_utc(value)) for name, value in row.items()}


def _utc(value: Any) -> Any:
    from datetime import UTC, datetime

    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def test_a_project_with_handlers_is_checked_tried_run_and_killed(
    shop: ProjectFolder, database: Database, start: Any
) -> None:
    folder = str(shop.folder)
    checked = run_cli("check", folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "trucks/journal/handler.py: every change, at least once" in checked.stdout
    assert "trucks/index/handler.py: net changes, exactly once" in checked.stdout
    assert not (shop.folder / "journal.out").exists()

    done = run_cli("run", "--once", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    ((_, row),) = [entry for entry in _journal(shop) if entry[0] == "insert"]
    assert row == _psycopg_row(database), "values have the types that psycopg gives"
    assert [call for call, _ in _journal(shop)] == ["refresh", "begin", "insert", "commit"]
    assert _index(shop) == [(1, "one", 1), (2, "two", 1)]

    database.execute("update things set name = 'c'", "delete from things", "update items set name = 'x' where id = 1")
    killed = start("--once", failpoints=f"sink.commit.before=kill@1:{shop.folder / 'first'}")
    killed.process.wait(120)
    assert killed.ended_by_kill(), killed.output()
    for point in ("sink.position.before",):
        database.execute(f"insert into items values ({10 + len(point)}, 'new')")
        again = start("--once", failpoints=f"{point}=kill@1:{shop.folder / point}")
        again.process.wait(120)
        assert again.ended_by_kill(), again.output()
    tried = run_cli("try", "journal", folder)
    assert "on_update" in tried.stdout, tried.stdout + tried.stderr
    done = run_cli("run", "--once", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [call for call, _ in _journal(shop)][4:]
    assert calls[-6:] == ["begin", "update", "commit", "begin", "delete", "commit"]
    assert len(calls) % 6 == 0, "at least once, each time in order"
    assert _index(shop) == [(1, "x", 2), (2, "two", 1), (30, "new", 1)], "exactly once"


@pytest.mark.parametrize(
    ("truck", "text", "told"),
    [
        ("journal", "class A:\n    def on_inserted(self, change): ...\n", ["TRK742", "handler.py:2", "on_insert"]),
        ("journal", "def nothing(): ...\n", ["TRK741", "it defines no handler"]),
        ("journal", "import no_such_module\n" + INDEX.replace("upsert", "on_insert"), ["TRK742"]),
        ("journal", "import no_such_module\nclass A:\n    def on_insert(self, c): ...\n", ["TRK741", "no_such_module"]),
        ("index", "class A:\n    def upsert(self, table, rows): ...\n", ["TRK742", "lacks delete"]),
    ],
)
def test_check_finds_what_is_wrong_with_a_handler(shop: ProjectFolder, truck: str, text: str, told: list[str]) -> None:
    shop.sql(truck, {}, handler={})
    (shop.folder / "trucks" / truck / "handler.py").write_text(text)
    try:
        findings = Project.load(shop.folder).check()
    except ConfigError as error:
        said = str(error)
    else:
        said = "\n".join(f"{each.code} {each.subject} {each.message}" for each in findings if each.level is Level.ERROR)
    for each in told:
        assert each in said


def test_a_handler_that_fails_is_tried_again_and_its_exception_is_not_shown(
    shop: ProjectFolder, database: Database, start: Any
) -> None:
    path = shop.folder / "trucks" / "journal" / "journal.py"
    path.write_text(JOURNAL + "\n\nimport pathlib\ngood = append\n\n\ndef append(path, call, change=None):\n"
                    "    if not pathlib.Path(path).with_name('ready').exists():\n"
                    "        raise KeyError(str(change and change.new))\n    good(path, call, change)\n")  # fmt: skip
    running = start()
    wait_until(lambda: "TRK743" in running.output(), 90, 0.1)
    (shop.folder / "ready").touch()
    running.wait_streaming(90)
    assert [call for call, _ in _journal(shop)][:1] == ["refresh"]
    assert running.stop() == 0
    log = running.output() + "".join(file.read_text() for file in Path(shop.state).glob("*.log"))
    assert "KeyError in journal.py, line " in log
    assert "5b30857f" not in log
