"""The recipes for SQL trucks, as the page has them, all in one project: what each says it does, it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.documents import ROOT, blocks
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs" / "howto" / "sql_trucks.md"

# By truck: what the source says must be there, and what is there.
SAME = {
    "enriched": (
        "select o.id, day, amount, name, country from orders o left join customers c on c.id = customer order by 1",
        "select id, day, amount, customer_name, country from enriched_orders order by 1",
    ),
    "followed": (
        "select o.id, customer, amount, name, country from orders o left join customers c on c.id = customer"
        " order by 1",
        "select id, customer, amount, name, country from followed_orders order by 1",
    ),
    "profiles": (
        "select id, initcap(name), profile->>'city', jsonb_array_length(profile->'tags') from customers order by 1",
        "select id, name, city, tags from profiles order by 1",
    ),
    "soft_deletes": (
        "select id, name from customers order by 1",
        "select id, name from kept_customers where deleted_at is null order by 1",
    ),
    "by_day": (
        "select day, count(*), sum(amount) from orders group by 1 order by 1",
        "select day, orders, amount from sales_by_day order by 1",
    ),
    "open_orders": (
        "select id, day, amount from orders where state in ('new', 'paid') order by 1",
        "select id, day, amount from open_orders order by 1",
    ),
    "all_orders": (
        "select 'public.orders', id, day, amount from orders union all"
        " select 'public.archived_orders', id, day, amount from archived_orders order by 1, 2",
        "select origin, id, day, amount from all_orders order by 1, 2",
    ),
    "in_euro": (
        "select id, amount * 0.5, case when amount < 20 then 'low' when amount < 1000 then 'high' end,"
        " (select sum(d::int) % 10 from regexp_split_to_table(id::text, '') d)"
        " from orders order by 1",
        "select id, euro, band, check_digit from orders_in_euro order by 1",
    ),
    "transactions": (
        "select sum(amount) from orders",
        "select sum(difference) from order_transactions",
    ),
}

CHANGES = (
    "insert into customers values (8, 'new one', 'ES', '{\"city\": \"Vigo\"}')",
    "insert into orders select 100 + i, 8, '2024-06-01', i, 'new' from generate_series(1, 5) i",
    "update customers set name = 'renamed ' || id where id in (1, 8)",
    "begin; update orders set state = 'sent', amount = amount + 1 where id % 4 = 0;"
    " update orders set customer = 2, day = day + 1 where id % 6 = 0; commit",
    "update orders set state = 'paid' where id = 8",
    "begin; insert into archived_orders select * from orders where id <= 5; delete from orders where id <= 5; commit",
    "update orders set id = id + 1000 where id in (11, 12)",
    "delete from archived_orders where id = 1",
    "delete from customers where id = 7",
    "begin; delete from orders where id = 20; insert into orders values (20, 3, '2024-07-01', 5, 'new'); commit",
)


@pytest.fixture
def recipes(
    tmp_path: Path, database: Database, destination: Database, monkeypatch: pytest.MonkeyPatch
) -> ProjectFolder:
    """The page's files as a project, its tables made."""
    project = ProjectFolder(tmp_path / "recipes", "recipes")
    for block in blocks(PAGE):
        if block.file is not None:
            path = project.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.info == "sql shop":
            database.execute(block.text)
        elif block.info == "sql destination":
            destination.execute(block.text)
    for place, prefix in ((database, "SHOP"), (destination, "WAREHOUSE")):
        connection = place.connection
        monkeypatch.setenv(f"{prefix}_HOST", str(connection.host))
        monkeypatch.setenv(f"{prefix}_PORT", str(connection.port))
        monkeypatch.setenv(f"{prefix}_DATABASE", str(connection.database))
        monkeypatch.setenv(f"{prefix}_USER", str(connection.user))
        monkeypatch.setenv(f"{prefix}_PASSWORD", connection.password.get_secret_value())
    return project


def differences(database: Database, destination: Database) -> dict[str, tuple[Any, Any]]:
    found = {name: (database.query(here), destination.query(there)) for name, (here, there) in SAME.items()}
    return {name: (here, there) for name, (here, there) in found.items() if here != there}


def take(project: ProjectFolder, spark: Any) -> None:
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


def test_every_recipe_does_what_it_says(
    recipes: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    """By the copy and by the stream."""
    database.execute(
        "insert into customers select i, 'name of ' || i, (array['pt', 'de'])[1 + i % 2],"
        " jsonb_build_object('city', 'c' || i, 'tags', jsonb_build_array('a', i)) from generate_series(1, 7) i",
        "insert into orders select i, 1 + i % 6, date '2024-05-01' + i % 4, i * 1.5,"
        " (array['new', 'paid', 'sent'])[1 + i % 3] from generate_series(1, 40) i",
    )
    destination.execute(
        "insert into rates select day, 0.5 from generate_series(date '2024-05-01', '2024-07-31', '1 day') day",
        "insert into bands values ('low', 0, 20), ('high', 20, 1000)",
    )
    take(recipes, spark)
    assert differences(database, destination) == {}
    database.execute(*CHANGES)
    take(recipes, spark)
    assert differences(database, destination) == {}
    assert destination.query("select name from kept_customers where deleted_at is not null") == [("name of 7",)]
    states = "select operation, state_before, state from order_states where order_id = 8 order by place"
    assert destination.query(states) == [
        ("insert", None, "sent"),
        ("update", "sent", "sent"),
        ("update", "sent", "paid"),
    ]
    changed = "select orders, difference from order_transactions order by id desc limit 1"
    assert destination.query(changed) == [(1, -26)]
