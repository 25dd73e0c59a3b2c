"""Rows are read again while the stream goes on, and the destination is right afterwards (I4, I6)."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from fixtures.compare import same, wait_same
from fixtures.load import changing
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import RandomDml, chosen_seed, differences, duckdb_differences
from fixtures.waiting import wait_until
from trucker.control.answers import Refresh, RefreshState
from trucker.engine.refresh import refresher
from trucker.errors import ControlError, TruckerError
from trucker.project import Project

pytestmark = pytest.mark.spark

TO_REPLICA = {"connection": "replica"}


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text, n int)",
        "insert into item select i, 'n' || i, i % 10 from generate_series(1, 300) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("items", ["public.item"], TO_REPLICA)


def _done(shop: ProjectFolder, refreshes: list[Refresh]) -> list[Refresh]:
    ended = Project.load(shop.folder).await_refreshes(refreshes)
    assert {each.state for each in ended} == {RefreshState.DONE}, ended
    return ended


def _refresh(shop: ProjectFolder, truck: str = "items", **options: Any) -> Refresh:
    (ended,) = _done(shop, Project.load(shop.folder).refresh(truck, **options))
    return ended


DAMAGE = (
    "update item set name = 'damaged' where id in (1, 2, 3)",
    "delete from item where id in (4, 5)",
    "insert into item values (1001, 'nowhere at the source', 4)",
)


def test_rows_of_keys_are_set_right_while_they_change(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    load = (
        "update item set n = n + 1 where id < 20",
        "update item set id = 2000 where id = 10",
        "update item set id = 10 where id = 2000",
    )
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute(*DAMAGE)
        with changing(database, *load):
            refreshed = _refresh(shop, keys=[(str(number),) for number in (1, 2, 3, 4, 5, 1001, 1002)])
        assert (refreshed.keys, refreshed.done, refreshed.deleted) == (7, 7, 2)
        wait_same(database, destination, "item")
        run.wait_streaming()


def test_rows_of_a_condition_are_those_of_both_sides(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """A row that the source no longer has meets the condition at the destination alone."""
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute(
            *DAMAGE, "update item set n = 3 where id = 8", "update item set name = 'other' where id = 6"
        )
        refreshed = _refresh(shop, where="n in (1, 2, 3, 4, 5) and name not like '%\\%%'")
        assert refreshed.deleted == 1
        assert refreshed.done == refreshed.total
        assert destination.query("select id from item where name = 'other'") == [(6,)], "that is not what was asked for"
        assert _refresh(shop, where="n = 6").done == 30
        assert same(database, destination, "item")


def test_a_whole_table_is_copied_again(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table bag (a int, b text)",
        "alter table bag replica identity full",
        "insert into bag select i % 5, 'b' from generate_series(1, 100) i",
    )
    shop.truck("bags", ["public.bag"], TO_REPLICA)
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute(*DAMAGE, "delete from bag where a = 1", "insert into bag values (9, 'x')")
        with changing(database, "update item set n = n + 1 where id < 20"):
            _refresh(shop)
            _refresh(shop, "bags")
        wait_same(database, destination, "item", "bag")


def test_rules_and_sql_take_the_rows_as_inserts_and_deletes(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute(
        "create table customer (id int primary key, name text)",
        "insert into customer select i, 'c' || i from generate_series(0, 9) i",
    )
    shop.truck("queried", ["public.item"], {**TO_REPLICA, "table": "queried"})
    shop.sql("queried", {"input": "select r.id, c.name as customer from {{ rows }} left join customer c on c.id = r.n"})
    shop.truck("spark", ["public.item"], {**TO_REPLICA, "table": "sparked"})
    shop.sql("spark", {"transform": "select id, upper(name) as name from {{ rows }}"})
    destination.execute("create table written (id int primary key, name text)")
    shop.truck("output", ["public.item"], TO_REPLICA)
    shop.sql(
        "output",
        {
            "output": "delete from written using {{ rows }} where written.id = coalesce(r.id, r.old__id);"
            " insert into written select r.id, r.name from {{ rows }} where r.operation <> 'delete'"
        },
    )
    with InThread(shop, spark) as run:
        run.wait_streaming()
        tables = ("queried", "sparked", "written")
        before = {table: destination.query(f"select * from {table} order by id") for table in tables}
        assert [len(rows) for rows in before.values()] == [300, 300, 300]
        destination.execute(
            *(f"delete from {table} where id in (1, 2)" for table in tables),
            "update queried set customer = 'damaged' where id = 3",
            *(f"update {table} set name = 'damaged' where id = 3" for table in ("sparked", "written")),
            *(f"insert into {table} (id) values (999)" for table in tables),
        )
        for truck in ("queried", "spark", "output"):
            assert _refresh(shop, truck, keys=[("1",), ("2",), ("3",), ("999",)]).deleted == 1
            assert _refresh(shop, truck, where="id < 100").done == 99
        assert {table: destination.query(f"select * from {table} order by id") for table in tables} == before


def test_many_rows_take_several_snapshots_and_a_restart_goes_on(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresher, "COMMIT_KEYS", 10)
    monkeypatch.setattr("trucker.engine.refresh.refresh_queue.SLICE_KEYS", 40)
    with InThread(shop, spark) as run:
        run.wait_streaming()
    destination.execute("update item set name = 'damaged'")
    (queued,) = Project.load(shop.folder).refresh("items", where="true")
    assert queued.state is RefreshState.QUEUED
    run = InThread(shop, spark)
    wait_until(lambda: Project.load(shop.folder).refreshes()[0].done >= 40)
    run.stop()
    stopped = Project.load(shop.folder).refreshes()[0]
    assert not stopped.is_over or stopped.done == 300
    database.execute("delete from item where id % 7 = 0", "update item set name = 'meanwhile' where id % 5 = 0")
    InThread(shop, spark, once=True).join()
    assert Project.load(shop.folder).refreshes()[0].state is RefreshState.DONE
    assert same(database, destination, "item")


def test_refreshes_are_queued_listed_and_cancelled(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    project = Project.load(shop.folder)
    with InThread(shop, spark) as run:
        run.wait_streaming()
        project.pause(["items"])
        (first,) = project.refresh("items", keys=[("1",), ("01",)])
        assert first.keys == 1, "both are the same key"
        (second,) = project.refresh("items", where="id = 2")
        (third,) = project.refresh("items")
        for again in ({"keys": [("1",)]}, {"where": "id = 2"}, {}):
            with pytest.raises(ControlError, match=r"are read again by refresh \d already") as error:
                project.refresh("items", **again)
            assert error.value.code == "TRK631"
        assert [each.id for each in project.status().refreshes] == [first.id, second.id, third.id]
        assert project.cancel_refresh(third.id).state is RefreshState.CANCELLED
        assert project.cancel_refresh(first.id).state is RefreshState.CANCELLED
        with pytest.raises(ControlError, match="is cancelled already"):
            project.cancel_refresh(first.id)
        with pytest.raises(ControlError, match="there is no refresh 99"):
            project.cancel_refresh(99)
        destination.execute("delete from item where id in (1, 2)")
        project.resume(["items"])
        _done(shop, [second])
        assert destination.query("select id from item where id < 3") == [(2,)]
        wait_until(lambda: project.status().refreshes == ())


WRONG = [
    ("nothing", {}, "TRK100", "there is no truck"),
    ("items", {"table": "public.other"}, "TRK630", "does not read table public.other"),
    ("items", {"where": "no such thing"}, "TRK630", "the condition is not valid"),
    ("items", {"where": "missing = 1"}, "TRK630", 'column "missing" does not exist'),
    ("items", {"where": "true); drop table item; --"}, "TRK630", "the condition is not valid"),
    ("items", {"keys": [("1",), ("two",)]}, "TRK630", "key 2 is not a key of public.item"),
    ("items", {"keys": [("1", "2")]}, "TRK630", "key 1 has 2 values, and the key of public.item has 1"),
    ("items", {"keys": []}, "TRK630", "no key is given"),
    ("bags", {"where": "a = 1"}, "TRK632", "has no key"),
    ("both", {"where": "true"}, "TRK630", "reads 2 tables"),
    ("lines", {}, "TRK632", "keeps every change"),
    ("sums", {}, "TRK632", "is not known, so that no table can be replaced as a whole"),
]


def test_what_cannot_be_refreshed_is_refused_and_changes_nothing(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("create table bag (a int, b text)", "alter table bag replica identity full")
    shop.truck("bags", ["public.bag"], TO_REPLICA)
    shop.truck("both", ["public.item", "public.bag"], {**TO_REPLICA, "schema": "other"})
    shop.connect({"name": "file", "adapter": "jsonl", "path": str(shop.folder / "lines")})
    shop.truck("lines", ["public.item"], {"connection": "file"})
    destination.execute("create table sums (n int)")
    shop.truck("sums", ["public.item"], TO_REPLICA)
    shop.sql("sums", {"output": "insert into sums select sum(n) from {{ rows }}"})
    project = Project.load(shop.folder)
    with InThread(shop, spark) as run:
        run.wait_streaming()
        for truck, options, code, words in WRONG:
            with pytest.raises(TruckerError) as error:
                project.refresh(truck, **options)
            assert (error.value.code, words in str(error.value)) == (code, True), error.value
            assert error.value.remedy
    for truck, options, code, words in WRONG:
        with pytest.raises(TruckerError) as error:
            project.refresh(truck, **options)
        assert (error.value.code, words in str(error.value)) == (code, True), error.value
    assert project.refreshes() == []


def test_a_condition_that_fails_on_a_row_ends_its_refresh_alone(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as run:
        run.wait_streaming()
        (failed,) = Project.load(shop.folder).await_refreshes(
            Project.load(shop.folder).refresh("items", where="1 / (id - 7) > 0")
        )
        assert failed.state is RefreshState.FAILED
        assert "DivisionByZero" in failed.reason
        database.execute("update item set n = -1")
        wait_same(database, destination, "item")
        run.wait_streaming()


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 40))])
def test_random_changes_and_refreshes(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, number: int
) -> None:
    """Tables of every shape, damaged rows, refreshes of keys, conditions and whole tables; with and without stops."""
    seed = 10 * chosen_seed() + number
    dice = random.Random(seed)
    dml = RandomDml(database, seed, rare=0.02)
    dml.create()
    lake = project.folder / "lake.duckdb"
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", ["public.*"], TO_REPLICA)
    project.truck("lake", ["public.*"], {"connection": "lake"})
    opened = Project.load(project.folder)
    try:
        queued: list[Refresh] = []
        for _ in range(2):
            run = InThread(project, spark)
            run.wait_streaming()
            for _ in range(3):
                for _ in range(dice.randrange(1, 15)):
                    dml.transaction()
                table = dice.choice(("keyed", "pair", "coded", "parts", "toasted"))
                wanted = dice.choice(({}, {"where": "true"}))
                destination.execute(f"delete from {table}")
                queued += opened.refresh("replica", table=f"public.{table}", **wanted)
                with_lake = opened.refresh("lake", table=f"public.{table}", **wanted)
                queued += with_lake
                _ended(opened, queued)
            run.stop()
            for _ in range(dice.randrange(10)):
                dml.transaction()
        InThread(project, spark, once=True).join()
        assert differences(database, destination) == ""
        assert duckdb_differences(database, lake) == ""
    finally:
        dml.close()


def _ended(project: Project, refreshes: list[Refresh]) -> None:
    assert {each.state for each in project.await_refreshes(refreshes)} == {RefreshState.DONE}


def test_a_file_of_duckdb_is_set_right(shop: ProjectFolder, database: Database, spark: Any) -> None:
    lake = shop.folder / "lake.duckdb"
    database.execute(
        "create table odd (b bytea, at timestamptz, u uuid, n numeric(12, 2), primary key (b, at, u, n))",
        "insert into odd select decode(md5(i::text), 'hex'), now() + i * interval '1 s', gen_random_uuid(), i + 0.50"
        " from generate_series(1, 50) i",
    )
    shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    shop.truck("odd", ["public.odd"], {"connection": "lake"})
    InThread(shop, spark, once=True).join()
    with duckdb.connect(str(lake)) as file:
        file.execute('insert into public.odd select b, "at", u, n + 1000 from public.odd limit 3')
        file.execute("delete from public.odd where n < 10")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        assert _refresh(shop, "odd", where="n < 5000").deleted == 3
    assert duckdb_differences(database, lake, ("odd",)) == ""
