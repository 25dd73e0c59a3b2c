"""Columns that come and go while changes wait in the log: what is written has the shape of its own time."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import differences
from fixtures.waiting import wait_until
from trucker.errors import TruckerError

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, 'first' from generate_series(1, 50) i",
        "insert into event select i % 5, 'first' from generate_series(1, 50) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_shapes_change_within_one_batch(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """All of it waits in the log and is taken as one batch: rows older than a column hold its default."""
    InThread(shop, spark, once=True).join()
    database.execute(
        "insert into item values (100, 'narrow')",
        "insert into event values (100, 'narrow'), (100, 'narrow')",
        "alter table item add column size int default 7",
        "alter table event add column size int default 7",
        "update item set name = 'wider' where id = 100",
        "delete from event where ctid = (select ctid from event where n = 100 limit 1)",
        "update event set word = 'wider' where n = 1",
        "delete from event where n = 2",
        "insert into item values (101, 'wide', 1)",
        "alter table item add column note text",
        "alter table item drop column size",
        "update item set note = 'noted' where id % 2 = 0",
    )
    InThread(shop, spark, once=True).join()
    assert differences(database, destination, ("item", "event")) == ""


def test_a_column_that_is_added_again_with_another_default(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """The stream describes both the same way; what older rows hold of it only the catalog tells."""
    with InThread(shop, spark) as run:
        run.wait_streaming()
        for default in (7, 8):
            database.execute(
                f"begin; insert into item (id, name) values ({100 + default}, 'older');"
                f" alter table item add column size int default {default};"
                f" insert into item (id, name) values ({200 + default}, 'younger'); commit"
            )
            wait_until(lambda: not differences(database, destination, ("item",)))
            database.execute(
                "alter table item drop column size", f"insert into item values ({300 + default}, 'without')"
            )
            wait_until(lambda: not differences(database, destination, ("item",)))
            destination.execute("alter table item drop column if exists size")


def test_a_table_that_is_dropped_while_its_changes_wait(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """The catalog knows nothing of it any more; the log does."""
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute(
            "insert into event values (9, 'last')", "drop table event", "insert into item values (900, 'x')"
        )
        wait_until(lambda: not differences(database, destination, ("item",)))
        assert destination.query("select count(*) from event where n = 9") == [(1,)]
        database.execute("insert into item values (901, 'x')")
        wait_until(lambda: not differences(database, destination, ("item",)))


def test_lines_have_the_columns_of_their_own_time_whatever_is_in_doubt(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, tmp_path: Path
) -> None:
    """A key renamed twice, and a column dropped, while nobody looked; both names in one transaction (I8)."""
    shop.connect({"name": "lines", "adapter": "jsonl", "path": str(tmp_path / "lines")})
    shop.truck("lines", ["public.item"], {"connection": "lines"})
    InThread(shop, spark, once=True).join()
    database.execute(
        "insert into item values (100, 'first name')",
        "begin; insert into item values (101, 'before'); alter table item rename id to number;"
        " insert into item (number, name) values (102, 'after'); commit",
        "alter table item add column size int default 7",
        "alter table item drop column name",
        "update item set size = 8 where number = 101",
        "alter table item rename number to code",
        "delete from item where code = 100",
    )
    with suppress(TruckerError):  # the replica asks for its own statements, or copies
        InThread(shop, spark, once=True).join()
    status = shop.status()
    assert status is not None
    assert [truck.error for truck in status.trucks if truck.name == "lines"] == [None]
    lines = [
        json.loads(line)
        for file in sorted((tmp_path / "lines" / "lines").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert [(line["new"], line["key"]) for line in lines if not line.get("snapshot")] == [
        ({"id": 100, "name": "first name"}, {"id": 100}),
        ({"id": 101, "name": "before"}, {"id": 101}),
        ({"number": 102, "name": "after"}, {"number": 102}),
        ({"number": 101, "size": 8}, {"number": 101}),
        (None, {"code": 100}),
    ]
