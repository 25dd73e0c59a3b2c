"""Tables of other connections in a truck's Spark SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from fixtures.pg import Database
from fixtures.spark_trucks import SparkTruckCase, columns, rows
from trucker.adapters.duckdb import DuckDBConnection
from trucker.engine.transform.spark_sql import lookups as lookups_module
from trucker.errors import ConfigError
from trucker.sinks.duckdb.session import Session

ORDERS = columns(id="integer", customer="bigint", country="text")
SQL = "select coalesce(r.id, r.old__id) id, c.name from {{ rows }} left join {{ lookups.customers }} c on c.id = "
GIVEN = [
    ("insert", {"id": "1", "customer": "10", "country": "de"}),
    ("insert", {"id": "2", "customer": "99", "country": "de"}),
    ("delete", {"old__id": "3", "old__customer": "11"}),
]
WANTED = [("delete", {"id": "3", "name": "Bo"}), ("insert", {"id": "1", "name": "Ann"}), ("insert", {"id": "2"})]


@pytest.fixture
def crm(database: Database) -> Database:
    database.execute(
        "create table customers (id int primary key, name text, country text, secret text)",
        "insert into customers values (10, 'Ann', 'de', 'x'), (11, 'Bo', 'fr', 'y'), (12, 'Cy', 'de', 'z')",
    )
    return database


def _case(spark: SparkSession, folder: Path, sql: str, lookup: dict[str, Any], connection: Any) -> SparkTruckCase:
    lookup = {"connection": connection.name, "table": "customers", **lookup}
    return SparkTruckCase(
        spark, folder, {"transform.sql": sql}, lookups={"customers": lookup}, connections=[connection]
    )


def test_by_keys_of_the_rows(spark: SparkSession, tmp_path: Path, crm: Database) -> None:
    """Old values are looked up as new ones are; only rows with such keys are read."""
    sql = SQL + "coalesce(r.customer, r.old__customer) where (select count(*) from {{ lookups.customers }}) = "
    lookup = {"columns": ["name"], "on": {"id": "customer"}}
    # One of the inserts' two customers is there; of the delete's, the one.
    case = _case(spark, tmp_path, sql + "1", lookup, crm.connection)
    assert case.compile(ORDERS).needed == {"id", "old__id", "customer", "old__customer"}
    assert sorted(case.give(rows(ORDERS, GIVEN[0], GIVEN[1])), key=str) == WANTED[1:]
    assert case.give(rows(ORDERS, GIVEN[2])) == WANTED[:1]


def test_by_several_keys_at_once(spark: SparkSession, tmp_path: Path, crm: Database) -> None:
    sql = SQL + "r.customer and c.country = r.country where (select count(*) from {{ lookups.customers }}) < 2"
    lookup = {"columns": ["name"], "on": {"id": "customer", "country": "country"}}
    case = _case(spark, tmp_path, sql, lookup, crm.connection)
    other = ("insert", {"id": "4", "customer": "11", "country": "de"})
    assert sorted(case.give(rows(ORDERS, GIVEN[0], other)), key=str) == [WANTED[1], ("insert", {"id": "4"})]


def test_a_whole_table_is_kept_for_a_while(
    spark: SparkSession, tmp_path: Path, crm: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(lookups_module, "monotonic", lambda: now[0])
    case = _case(spark, tmp_path, SQL + "r.customer", {"cache": "10m"}, crm.connection)
    given = rows(ORDERS, GIVEN[0])
    assert case.give(given) == [WANTED[1]]
    crm.execute("update customers set name = 'Zoe'")
    now[0] += 599
    assert case.give(given) == [WANTED[1]]
    now[0] += 2
    assert case.give(given) == [("insert", {"id": "1", "name": "Zoe"})]


def test_a_duckdb_file(spark: SparkSession, tmp_path: Path) -> None:
    """One that trucker writes too is read while it is open."""
    file = tmp_path / "crm.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("create schema public; create table public.customers (id int, name text, since timestamptz)")
        connection.execute("insert into public.customers values (10, 'Ann', now()), (11, 'Bo', now())")
    config = DuckDBConnection(name="crm", adapter="duckdb", path=file)
    sql = SQL + "coalesce(r.customer, r.old__customer)"
    case = _case(spark, tmp_path, sql, {"on": {"id": "customer"}}, config)
    assert sorted(case.give(rows(ORDERS, *GIVEN)), key=str) == WANTED
    session = Session(file)
    with session.use() as connection:
        connection.execute("update public.customers set name = 'Zoe' where id = 10")
        assert case.give(rows(ORDERS, GIVEN[0])) == [("insert", {"id": "1", "name": "Zoe"})]
    session.close()
    whole = _case(spark, tmp_path, sql, {"cache": "1m", "columns": ["id", "name"]}, config)
    assert whole.give(rows(ORDERS, GIVEN[2])) == WANTED[:1]


@pytest.mark.parametrize(
    ("lookup", "said"),
    [
        ({"on": {"id": "custmer"}}, 'has no column "custmer"'),
        ({"on": {"idd": "customer"}}, 'table public.customers has no column "idd"'),
        ({"columns": ["nmae"], "cache": "1m"}, 'table public.customers has no column "nmae"'),
        ({"on": {"id": "country"}}, "operator does not exist: integer = text"),
    ],
)
def test_what_does_not_go_together_is_found_before_a_row_is_read(
    spark: SparkSession, tmp_path: Path, crm: Database, lookup: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _case(spark, tmp_path, SQL + "r.customer", lookup, crm.connection).compile(ORDERS)
    assert (caught.value.code, said in caught.value.message) == ("TRK155", True)
