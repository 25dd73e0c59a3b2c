"""A destination is compared with the source at one position while both are written, and set right."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from fixtures.compare import wait_same
from fixtures.load import changing
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import RandomDml, chosen_seed
from trucker.control.answers import Verification
from trucker.engine.verify import verifier
from trucker.errors import ControlError, TruckerError
from trucker.project import Project

pytestmark = pytest.mark.spark

TO_REPLICA = {"connection": "replica"}
DAMAGE = (
    "update item set name = 'damaged' where id in (1, 2, 3)",
    "delete from item where id in (4, 5)",
    "insert into item values (1001, 'nowhere at the source', 4)",
)
WRONG = {"missing": ("4", "5"), "extra": ("1001",), "different": ("1", "2", "3")}


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table item (id int primary key, name text, n int)",
        "insert into item select i, 'n' || i, i % 10 from generate_series(1, 300) i",
    )
    project.connect(postgres("replica", destination))
    return project.truck("items", ["public.item"], TO_REPLICA)


def _verify(shop: ProjectFolder, truck: str | None = None, **options: Any) -> Verification:
    (verification,) = Project.load(shop.folder).verify(truck, **options)
    assert verification.error == ""
    return verification


def _keys(verification: Verification) -> dict[str, tuple[str, ...]]:
    """The keys of one column that differ, by kind."""
    kinds = {kind: getattr(verification, kind) for kind in ("missing", "extra", "different")}
    return {kind: tuple(sorted((key for (key,) in keys), key=int)) for kind, keys in kinds.items()}


LOAD = (
    "update item set n = n + 1 where id between 10 and 40",
    "update item set id = 2000 where id = 10",
    "update item set id = 10 where id = 2000",
    "delete from item where id = 50",
    "insert into item values (50, 'again', 0)",
)


def test_just_the_rows_that_differ_are_named_and_repaired_under_load(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as run:
        run.wait_streaming()
        with changing(database, *LOAD):
            assert _verify(shop, "items").equal
            destination.execute(*DAMAGE)
            verification = _verify(shop)
            assert (_keys(verification), verification.differing, verification.equal) == (WRONG, 6, False)
            assert (verification.source_rows - verification.destination_rows) == 1
            repaired = _verify(shop, "items", table="public.item", repair=True)
            assert (repaired.equal, repaired.repaired) == (True, 6)
            assert _verify(shop, "items").equal
        wait_same(database, destination, "item")
        run.wait_streaming()


def test_a_file_of_duckdb_is_compared_in_its_own_types(shop: ProjectFolder, database: Database, spark: Any) -> None:
    lake = shop.folder / "lake.duckdb"
    database.execute(
        "create table odd (b bytea, at timestamptz, u uuid, n numeric(12, 2), f float8, j jsonb, d date, a int[],"
        " primary key (b, at))",
        "insert into odd select decode(md5(i::text), 'hex'), now() + i * interval '1 s', gen_random_uuid(), i + 0.50,"
        " i / 3.0, jsonb_build_object('i', i), date '0001-01-01 BC' + i, array[i, null]"
        " from generate_series(1, 50) i",
        "insert into odd values ('x', 'infinity', null, null, 'NaN', null, 'infinity', null)",
    )
    shop.connect({"name": "lake", "adapter": "duckdb", "path": str(lake)})
    shop.truck("odd", ["public.odd"], {"connection": "lake"})
    shop.truck("items", ["public.item"], {"connection": "lake"})
    with InThread(shop, spark) as run:
        run.wait_streaming()
        with changing(database, *LOAD):
            assert [each.equal for each in Project.load(shop.folder).verify()] == [True, True]
    with duckdb.connect(str(lake)) as file:
        file.execute("set schema = 'public'")
        file.execute("update odd set f = f + 1 where n = 7.50")
        for statement in DAMAGE:
            file.execute(statement)
    (shop.folder / ".trucker" / "spool" / "lake" / "verify-of-a-killed-process").mkdir()
    with InThread(shop, spark) as run:
        run.wait_streaming()
        assert _keys(_verify(shop, "items")) == WRONG
        odd = _verify(shop, "odd")
        key = database.query("select b::text, at::text from odd where n = 7.50")
        assert odd.different == tuple(key)
        assert [each.equal for each in Project.load(shop.folder).verify(repair=True)] == [True, True]
    assert not list((shop.folder / ".trucker").rglob("verify-*"))


def test_rules_and_sql_are_applied_to_the_rows_of_the_source(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    database.execute("create table customer (id int primary key, name text)", "alter table item replica identity full")
    database.execute("insert into customer select i, 'c' || i from generate_series(0, 9) i")
    shop.truck("queried", ["public.item"], {**TO_REPLICA, "table": "queried"})
    shop.sql("queried", {"input": "select r.id, c.name as customer from {{ rows }} left join customer c on c.id = r.n"})
    shop.truck("spark", ["public.item"], {**TO_REPLICA, "table": "sparked"})
    shop.sql("spark", {"transform": "select id, upper(name) as name from {{ rows }} where n <> 3"})
    shop.truck("ruled", ["public.item"], {**TO_REPLICA, "table": "ruled"})
    shop.sql("ruled", {}, rules=[{"filter": {"column": "n", "lt": 5}}, {"mask": {"column": "name"}}])
    with InThread(shop, spark) as run:
        run.wait_streaming()
        database.execute("update item set n = 4 where id < 20")
        for truck in ("queried", "spark", "ruled"):
            assert _verify(shop, truck).equal, truck
        for table in ("queried", "sparked", "ruled"):
            destination.execute(f"delete from {table} where id = 1", f"insert into {table} (id) values (999)")
        destination.execute("update sparked set name = lower(name) where id = 2")
        for truck, different in (("queried", ()), ("spark", ("2",)), ("ruled", ())):
            wrong = {"missing": ("1",), "extra": ("999",), "different": different}
            assert _keys(_verify(shop, truck)) == wrong, truck
            assert _verify(shop, truck, repair=True).equal, truck


def test_what_is_read_renamed_or_left_out_is_compared_so(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """Columns that are left out, other names, wider types there, a row filter, rows of partitions."""
    database.execute(
        "create table parts (id int, region text, v varchar(10), primary key (id, region)) partition by list (region)",
        "create table parts_a partition of parts for values in ('a')",
        "create table parts_b partition of parts for values in ('b')",
        "insert into parts select i, case when i % 2 = 0 then 'a' else 'b' end, 'v' || i from generate_series(1, 80) i",
    )
    destination.execute("create table parts (id bigint, region text, v text, more text, primary key (id, region))")
    shop.truck("parts", ["public.parts"], TO_REPLICA)
    database.execute(
        "create table measured (id int primary key, name text, n int)", "insert into measured select * from item"
    )
    database.execute("alter table measured replica identity full")
    shop.truck("some", ["public.measured"], TO_REPLICA, except_columns=["name"], where="n < 5")
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("alter table item rename column name to title")
        database.execute(
            "alter table item rename column name to title", "alter table item add column more int default 5"
        )
        database.execute("update item set title = 'x' where id = 3")
        assert [each.equal for each in Project.load(shop.folder).verify()] == [True, True, True]
        destination.execute("delete from parts where id = 4", "update measured set n = 9 where id = 1")
        assert _verify(shop, "parts").missing == (("4", "a"),)
        assert _verify(shop, "some").different == (("1",),)
        destination.execute("update parts set more = 'not compared'")
        assert [each.equal for each in Project.load(shop.folder).verify(repair=True)] == [True, True, True]


def test_a_table_without_a_key_is_compared_by_whole_rows(
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
        assert _verify(shop, "bags").equal
        destination.execute("delete from bag where a = 1", "insert into bag values (9, 'x'), (2, 'b')")
        bags = _verify(shop, "bags")
        assert (bags.keyless_missing, bags.keyless_extra, bags.keys) == (20, 2, ())
        assert _verify(shop, "bags", repair=True).equal
        wait_same(database, destination, "bag")


def test_of_very_many_differences_some_are_named_and_the_table_is_copied_again(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "LISTED_ROWS", 20)
    with InThread(shop, spark) as run:
        run.wait_streaming()
        destination.execute("update item set name = 'damaged'")
        verification = _verify(shop)
        assert not verification.complete
        assert 0 < verification.differing < 300
        assert _verify(shop, repair=True).equal
        wait_same(database, destination, "item")


def test_what_cannot_be_verified_says_why(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    shop.connect({"name": "file", "adapter": "jsonl", "path": str(shop.folder / "lines")})
    shop.truck("lines", ["public.item"], {"connection": "file"})
    destination.execute("create table sums (n int)")
    shop.truck("sums", ["public.item"], TO_REPLICA)
    shop.sql("sums", {"output": "insert into sums select sum(n) from {{ rows }}"})
    project = Project.load(shop.folder)
    with pytest.raises(ControlError, match="no instance of the project runs") as error:
        list(project.verify())
    assert error.value.code == "TRK611"
    wrong = [
        ("nothing", None, "TRK100", "there is no truck"),
        ("items", "public.other", "TRK640", "does not read table public.other"),
        ("lines", None, "TRK641", "keeps every change"),
        ("sums", None, "TRK641", "output.sql"),
    ]
    with InThread(shop, spark) as run:
        run.wait_streaming()
        for truck, table, code, words in wrong:
            with pytest.raises(TruckerError) as refused:
                list(project.verify(truck, table=table))
            assert (refused.value.code, words in str(refused.value)) == (code, True), refused.value
            assert refused.value.remedy
        results = {each.truck: each for each in project.verify()}
        assert results["items"].equal
        assert "keeps every change" in results["lines"].skipped
        assert "output.sql" in results["sums"].skipped
        project.pause(["items"])
        (paused,) = project.verify("items")
        assert "TRK642" in paused.error
        assert "the truck is paused" in paused.error
        project.resume(["items"])


def test_rows_that_the_destination_refuses_are_missing_there(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """They are dead letters: too long for its columns, or against its constraint."""
    destination.execute(
        "create table narrow (id int primary key, name varchar(4), n int)",
        "create table checked (id int primary key, name text, n int check (n < 100))",
    )
    shop.truck("narrow", ["public.item"], {**TO_REPLICA, "table": "narrow"}).sql("narrow", {}, on_error="dead_letter")
    shop.truck("checked", ["public.item"], {**TO_REPLICA, "table": "checked"}).sql(
        "checked", {}, on_error="dead_letter"
    )
    database.execute(
        "update item set name = 'a long name' where id in (7, 250)", "update item set n = 100 where id = 9"
    )
    with InThread(shop, spark) as run:
        run.wait_streaming()
        narrow, checked = _verify(shop, "narrow"), _verify(shop, "checked")
        assert _keys(narrow) == {"missing": ("7", "250"), "extra": (), "different": ()}
        assert (narrow.source_rows, narrow.destination_rows) == (300, 298)
        assert _keys(checked) == {"missing": ("9",), "extra": (), "different": ()}
        database.execute("update item set name = 'too long as well' where id = 8")
        assert _keys(_verify(shop, "narrow")) == {"missing": ("7", "250"), "extra": (), "different": ("8",)}
        run.wait_streaming()


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 40))])
def test_random_changes_are_equal_and_random_damage_is_noticed(
    project: ProjectFolder, database: Database, destination: Database, spark: Any, number: int
) -> None:
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
        with InThread(project, spark) as run:
            run.wait_streaming()
            for _ in range(2):
                for _ in range(dice.randrange(1, 15)):
                    dml.transaction()
                assert [each for each in opened.verify() if not each.equal] == []
                table = dice.choice(("keyed", "pair", "coded", "parts", "toasted"))
                count = destination.query(f"select count(*) from {table}")[0][0]
                destination.execute(f"delete from {table}")
                (damaged,) = opened.verify("replica", table=f"public.{table}")
                assert len(damaged.missing) == damaged.source_rows
                assert damaged.source_rows >= 0 <= count
                (repaired,) = opened.verify("replica", table=f"public.{table}", repair=True)
                assert repaired.equal
    finally:
        dml.close()
