"""`kill -9` where tables begin without a copy: no change after the start is lost, and none is doubled (I4)."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, postgres, run_cli
from fixtures.waiting import wait_until

BEGINNING = ("copy.begin.before", "sink.position.before", "sink.commit.before", "sink.commit.after", "copy.begin.after")
STREAMING = ("worker.stage.after", "sink.commit.before", "sink.commit.after")


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute("create table item (id int primary key, n int)", "insert into item values (0, 0)")
    project.connect(postgres("replica", destination))
    return project.truck("follow", ["public.*"], {"connection": "replica"}, copy="none")


def _begun(destination: Database, table: str = "item") -> bool:
    """Whether the destination has stored that the table is followed."""
    if destination.query("select to_regclass('trucker.tables') is null") == [(True,)]:
        return False
    rows = destination.query(f"select phase from trucker.tables where source_table = '{table}'")
    return bool(rows) and rows[0][0] != "copying"


def _ids(destination: Database, table: str = "item") -> list[Any]:
    return destination.query(f"select id, n from {table} order by id")


def _killed(start: Any, point: str) -> None:
    trucker = start(failpoints=f"{point}=kill")
    assert trucker.process.wait(300) == -9, f"{point}: {trucker.output()}"


def test_killed_at_every_boundary_of_a_start(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """Once the destination has the position, every change counts, though none was applied before the kill."""
    expected, number = [], 0
    for point in BEGINNING:
        _killed(start, point)
        number += 1
        database.execute(f"insert into item values ({number}, {number})")
        if _begun(destination):
            expected.append((number, number))
            break
    assert expected, "no kill was after the commit"
    for point in STREAMING:
        _killed(start, point)
        number += 1
        database.execute(f"insert into item values ({number}, {number})", f"update item set n = -{number} where id = 0")
        expected.append((number, number))
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert _ids(destination) == [(0, -number), *expected]


def test_killed_while_it_streams_and_while_a_later_table_begins(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    trucker = start()
    trucker.wait_streaming()
    database.execute("insert into item values (1, 1)")
    trucker.kill_tree()
    database.execute("create table late (id int primary key, n int)", "insert into late values (1, 1)")
    for point in ("copy.begin.before", "copy.begin.after"):
        _killed(start, point)
        database.execute("insert into item select max(id) + 1, 0 from item")
        database.execute("insert into late select max(id) + 1, 0 from late")
    assert _begun(destination, "late")
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    assert _ids(destination) == [(1, 1), (2, 0), (3, 0)]
    assert _ids(destination, "late") == [(3, 0)]


def test_killed_while_a_refresh_loads_the_table(
    shop: ProjectFolder, database: Database, destination: Database, start: Any
) -> None:
    """The refresh goes on: the table is loaded, not begun without its rows."""
    trucker = start("--once")
    assert trucker.process.wait(300) == 0, trucker.output()
    asked = run_cli("refresh", "follow", "--table", "public.item", "--project", str(shop.folder))
    assert asked.returncode == 0, asked.stderr
    for point in ("copy.begin.before", "copy.begin.after", "copy.end.before"):
        _killed(start, point)
        database.execute("insert into item select max(id) + 1, 0 from item")
    trucker = start()
    wait_until(lambda: same(database, destination, "item"))
    trucker.stop()
