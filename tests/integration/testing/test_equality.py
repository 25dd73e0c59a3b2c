from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from fixtures.pg import Database
from trucker.testing.equality import columns, duckdb_sums, postgres_sum
from trucker.testing.shop import TABLES, Customers, open_shop

ROWS = [
    (1, "1.50", "ä\t'x'\\", "2024-01-02 03:04:05.6+00", True, '{"a": 1}', None),
    (2, None, "", None, False, None, "{1,2}"),
]


@pytest.fixture
def table(database: Database, destination: Database) -> None:
    for each in (database, destination):
        with each.connect() as connection:
            connection.execute(
                "create table t (id int primary key, n numeric(10,2), s text, at timestamptz, b bool, j jsonb, a int[])"
            )
            connection.cursor().executemany("insert into t values (%s, %s, %s, %s, %s, %s, %s)", ROWS)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "change",
    [
        "update t set n = 1.51 where id = 1",
        "update t set s = null where id = 2",
        "update t set a = '{2,1}' where id = 2",
        "delete from t where id = 1",
        "insert into t values (3)",
        "alter table t drop column b",
    ],
)
def test_any_difference_shows(database: Database, destination: Database, change: str) -> None:
    with database.connect() as source, destination.connect() as copy:
        names = columns(source, "public", "t")
        expected = postgres_sum(source, "public", "t", names)
        assert expected is not None
        assert expected.rows == 2
        assert postgres_sum(copy, "public", "t", names) == expected
        copy.execute(change.encode())
        assert postgres_sum(copy, "public", "t", names) != expected


@pytest.mark.usefixtures("table")
def test_the_order_of_rows_does_not_matter(database: Database, destination: Database) -> None:
    destination.execute("update t set s = s where id = 1")
    with database.connect() as source, destination.connect() as copy:
        names = columns(source, "public", "t")
        assert postgres_sum(source, "public", "t", names) == postgres_sum(copy, "public", "t", names)


@pytest.mark.usefixtures("table")
def test_duckdb_is_judged_by_postgresql(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "x.duckdb"
    with duckdb.connect(str(file)) as store:
        store.execute("set timezone = 'Europe/Riga'")
        store.execute("create schema public")
        store.execute(
            'create table public.t (id int, n decimal(10,2), s text, "at" timestamptz, b bool, j json, a text)'
        )
        store.executemany("insert into public.t values (?, ?, ?, ?, ?, ?, ?)", ROWS)
    with database.connect() as source:
        expected = postgres_sum(source, "public", "t", columns(source, "public", "t"))
        assert duckdb_sums(source, file, "public", ["t"]) == {"t": expected}
        with duckdb.connect(str(file)) as store:
            store.execute("update public.t set n = 0 where id = 1")
        assert duckdb_sums(source, file, "public", ["t"]) != {"t": expected}
        assert duckdb_sums(source, file, "public", []) == {}


def test_the_shop_changes_every_table_in_every_way(database: Database, wait_until: Callable[..., object]) -> None:
    with database.connect() as connection:
        open_shop(connection, orders=5000)
    customers = Customers(database.connect, rate=2000)
    customers.start()
    try:
        wait_until(lambda: customers.check() or customers.transactions >= 400, 60)
    finally:
        customers.stop()
    customers.check()
    found = database.query("select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables order by relname")
    assert {row[0] for row in found} == set(TABLES)
    changed = {name for name, _, updated, _ in found if updated}
    assert {"customers", "products", "orders", "reviews"} <= changed
    assert {name for name, _, _, deleted in found if deleted} >= {"orders", "order_items", "payments", "reviews"}
