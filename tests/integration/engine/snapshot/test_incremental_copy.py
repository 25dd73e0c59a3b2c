"""Incremental copies: chunks in short transactions while the stream goes on, resumed where they were (I4, I6, I7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.compare import wait_same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import RandomDml, chosen_seed, differences, duckdb_differences
from fixtures.waiting import wait_until
from trucker.engine.snapshot.copy_cursor import CopyCursor
from trucker.project import Project

pytestmark = pytest.mark.spark

CHUNKED = ("keyed", "pair", "coded", "parts", "toasted")
FILLING = (
    "insert into keyed (id, n, word) select i, i % 10, repeat('w', 100) from generate_series(1000, 2500) i",
    "insert into pair select i, 'p', i from generate_series(1000, 2500) i",
    "insert into coded select 'f' || i, i, repeat('n', 100) from generate_series(1000, 2500) i",
    "insert into parts select i, date '2020-01-01' + i % 360, repeat('v', 100) from generate_series(1000, 2500) i",
    "insert into toasted select i, i, repeat(md5(i::text), 90), 'o' from generate_series(1000, 1300) i",
)

LARGE = "select i, repeat('x', 1000) from generate_series(1, 18000) i"
TOUCH = "insert into item values (-1, 'x') on conflict (id) do update set name = excluded.name || 'y'"


def _cursors(destination: Database) -> dict[str, CopyCursor]:
    """The cursors of unfinished copies, by table."""
    if destination.query("select to_regclass('trucker.tables') is null") == [(True,)]:
        return {}
    rows = destination.query("select source_table, snapshot from trucker.tables where snapshot like '%#%'")
    return {table: CopyCursor.parse(snapshot.partition("#")[2]) for table, snapshot in rows}


def _settled(destination: Database, touch: Callable[[], object]) -> bool:
    """Whether all tables follow their truck, which the commit of the next change says."""
    touch()
    return destination.query("select distinct phase, snapshot like '%#%' from trucker.tables") == [("streaming", False)]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    project.config["copy"] = {"chunk_bytes": 8192, "parallel": 2}
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"}, copy="incremental")


def test_a_table_is_copied_while_it_changes(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table item (id int primary key, name text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, repeat('x', 100) from generate_series(1, 3000) i",
        "insert into event select i, 'no key: copied in one go' from generate_series(1, 500) i",
    )
    run = InThread(shop, spark)
    wait_until(lambda: "item" in _cursors(destination))
    database.execute(
        "update item set name = 'second' where id % 7 = 0",
        "delete from item where id % 11 = 0",
        "update item set id = id + 100000 where id % 13 = 0",
        "vacuum full item",
    )
    wait_same(database, destination, "item", "event")
    wait_until(lambda: _settled(destination, lambda: database.execute(TOUCH)))
    wait_same(database, destination, "item")
    run.stop()


def test_a_copy_goes_on_where_it_was(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table item (id int primary key, name text)",
        "insert into item select i, repeat('x', 100) from generate_series(1, 9000) i",
    )
    shop.config["copy"] |= {"max_rows_per_second": 1500, "parallel": 1}
    shop.save()
    run = InThread(shop, spark)
    wait_until(lambda: (at := _cursors(destination).get("item")) is not None and at.page > 4)
    run.stop()
    copied = destination.query("select count(*) from item")[0][0]
    assert 0 < copied < 9000
    database.execute("update item set name = 'while nobody ran' where id % 5 = 0", "delete from item where id % 3 = 0")
    del shop.config["copy"]
    shop.save()
    run = InThread(shop, spark)
    wait_same(database, destination, "item")
    wait_until(lambda: _settled(destination, lambda: database.execute(TOUCH)))
    run.stop()


def test_large_tables_whose_copy_would_begin_anew_are_named(shop: ProjectFolder, database: Database) -> None:
    database.execute(
        "create table event (n int, filling text)",
        "alter table event replica identity full",
        "create table item (id int primary key, filling text)",
        *(
            f"insert into {table} select i, repeat('x', 1000) from generate_series(1, 18000) i"
            for table in ("event", "item")
        ),
    )
    shop.truck("copy", ["public.*"], {"connection": "replica"})
    shop.truck("ruled", ["public.item"], {"connection": "replica", "table": "ruled"})
    shop.sql("ruled", {}, rules=[{"mask": {"column": "filling", "keep_first": 1}}])
    shop.truck("summed", ["public.item"], {"connection": "replica", "table": "sums"})
    shop.sql("summed", {"output": "insert into sums select count(*) from {{ rows }}"})
    said = [finding.message for finding in Project.load(shop.folder).check()]
    anew = "a first copy that is interrupted begins anew, because"
    assert [message for message in said if message.startswith(anew)] == [
        f"{anew} there is no key: public.event",
        f"{anew} output.sql would get changes of rows before it gets the rows: public.item",
    ]


def test_a_table_that_is_rewritten_and_not_written_to(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Nothing in the stream tells of its new file."""
    database.execute(
        "create table item (id int primary key, name text)",
        "insert into item select i, repeat('x', 100) from generate_series(1, 9000) i",
    )
    shop.config["copy"] |= {"max_rows_per_second": 1500, "parallel": 1}
    shop.save()
    run = InThread(shop, spark)
    wait_until(lambda: (at := _cursors(destination).get("item")) is not None and at.page > 4)
    run.stop()
    database.execute("vacuum full item")
    del shop.config["copy"]
    shop.save()
    run = InThread(shop, spark)
    wait_until(lambda: destination.query("select count(*) from item") == [(9000,)])
    wait_same(database, destination, "item")
    run.stop()


def test_a_transaction_that_is_open_when_a_table_is_published(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """What it wrote before is not in the stream, so its rows are copied."""
    database.execute("create table item (id int primary key)", "create table late (id int primary key)")
    shop.truck("copy", ["public.item"], {"connection": "replica"}, copy="incremental")
    InThread(shop, spark, once=True).join()
    shop.truck("copy", ["public.*"], {"connection": "replica"}, copy="incremental")
    waits = (
        "select from pg_stat_activity where query like '%pg_locks%transactionid%'"
        " and datname = current_database() and pid <> pg_backend_pid()"
    )
    complete = "select from trucker.tables where source_table = 'late' and snapshot not like '%#%'"
    with database.connect() as writer:
        writer.autocommit = False
        writer.execute("insert into late values (1)")
        with InThread(shop, spark):
            wait_until(lambda: database.query(waits) or destination.query(complete))
            writer.execute("insert into late values (2)")
            writer.commit()
            wait_until(lambda: destination.query(complete))
            wait_same(database, destination, "late")


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 40))])
def test_random_changes_stops_and_restarts(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, number: int
) -> None:
    """Updates without their long values, moved keys, truncates, added columns and partitions, at any moment."""
    seed = 10 * chosen_seed() + number
    dice = random.Random(seed)
    dml = RandomDml(database, seed, rare=0.02)
    dml.create()
    database.execute(*FILLING)
    shop.config["copy"] = {"chunk_bytes": 8192 * dice.choice((1, 2, 5)), "parallel": dice.choice((1, 3))}
    lake = shop.folder / "lake.duckdb"
    shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    shop.truck("lake", ["public.*"], {"connection": "lake"}, copy="incremental")
    try:
        for _ in range(3):
            run = InThread(shop, spark)
            for _ in range(dice.randrange(5, 60)):
                dml.transaction()
            run.stop()
            for _ in range(dice.randrange(10)):
                dml.transaction()
        run = InThread(shop, spark)
        for _ in range(30):
            dml.transaction()
        wait_until(lambda: _settled(destination, dml.touch) and differences(database, destination) == "", 120)
        run.stop()
        InThread(shop, spark, once=True).join()
        assert duckdb_differences(database, lake) == ""
    finally:
        dml.close()
