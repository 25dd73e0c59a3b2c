"""`trucker try`: every step of a truck shown with its rows and its SQL, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres, run_cli
from trucker.errors import ConfigError
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def tried(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(
        "create table customers (id int primary key, name text)",
        "create table orders (id int primary key, customer int, amount numeric(10, 2))",
        "alter table orders replica identity full",
        "insert into customers values (1, 'Ada'), (2, 'Grace')",
        "insert into orders values (1, 1, 10)",
    )
    destination.execute("create table totals (name text primary key, amount numeric)")
    project.config["log"] = {"keep": "1h"}
    project.connect(postgres("there", destination))
    project.truck("totals", ["public.orders"], {"connection": "there"})
    project.sql(
        "totals",
        {
            "input": "select c.name, coalesce(r.amount, 0) - coalesce(r.old__amount, 0) as more from {{ rows }}"
            " join customers c on c.id = coalesce(r.customer, r.old__customer)",
            "output": "insert into totals as t select name, sum(more) from {{ rows }} group by 1"
            " on conflict (name) do update set amount = t.amount + excluded.amount",
        },
        rules=[{"filter": {"column": "customer", "lt": 3}}],
    )
    return project


def test_recent_changes_are_taken_through_every_step(
    tried: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    InThread(tried, spark, once=True).join()
    database.execute(
        "begin; insert into orders values (2, 2, 5), (3, 9, 7); update orders set amount = 12 where id = 1;"
        " update orders set amount = 13 where id = 1; commit"
    )
    InThread(tried, spark, once=True).join()
    before = destination.query("select * from totals order by 1")
    shown = Project.load(tried.folder).try_truck("totals")
    assert [(step.step, len(step.rows)) for step in shown] == [
        ("changes", 4),
        ("folded", 3),
        ("rules", 2),
        ("input.sql", 2),
        ("output.sql", 2),
    ]
    assert shown[0].rows[2] == ("update", "1", "1", "12.00", "1", "1", "10.00")
    assert "from rows as r" in shown[3].sql
    assert sorted(shown[3].rows) == [("insert", "Grace", "5.00"), ("update", "Ada", "3.00")]
    assert shown[4].sql.startswith("insert into totals")
    assert destination.query("select * from totals order by 1") == before == [("Ada", 13), ("Grace", 5)]


def test_changes_given_in_a_file(tried: ProjectFolder, destination: Database, tmp_path: Path) -> None:
    """Without a run before, from the command line, as JSON."""
    file = tmp_path / "changes.jsonl"
    lines = [
        {"operation": "insert", "schema": "public", "table": "orders", "new": {"id": 5, "customer": 2, "amount": 1.50}},
        {"operation": "delete", "table": "orders", "old": {"id": 1, "customer": 1, "amount": "10.00"}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    done = run_cli("try", "totals", str(tried.folder), "--rows", str(file), "--json")
    assert done.returncode == 0, done.stderr
    steps = {step["step"]: step for step in json.loads(done.stdout)}
    assert sorted(map(tuple, steps["input.sql"]["rows"])) == [("delete", "Ada", "-10.00"), ("insert", "Grace", "1.50")]
    text = run_cli("try", "totals", str(tried.folder), "--rows", str(file))
    assert "public.orders · output.sql" in text.stdout
    assert destination.query("select count(*) from totals") == [(0,)]


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "not JSON"), ('{"table": "orders"}', "operation"), ('{"operation": "insert", "table": "x"}', "public.x")],
)
def test_a_line_that_is_no_change(tried: ProjectFolder, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "changes.jsonl"
    file.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=said) as caught:
        Project.load(tried.folder).try_truck("totals", rows=file)
    assert caught.value.place is not None
    assert caught.value.place.line == 2


def test_a_truck_that_replicates_and_one_without_changes(tried: ProjectFolder, database: Database, spark: Any) -> None:
    database.execute("create table quiet (id int primary key)")
    tried.truck("plain", ["public.orders"], {"connection": "there", "schema": "copy"})
    tried.truck("quiet", ["public.quiet"], {"connection": "there", "schema": "copy"})
    InThread(tried, spark, once=True).join()
    database.execute("insert into orders values (4, 1, 1)")
    InThread(tried, spark, once=True).join()
    shown = Project.load(tried.folder).try_truck("plain")
    assert [(step.step, step.rows) for step in shown] == [
        ("changes", (("insert", "4", "1", "1.00"),)),
        ("written", (("insert", "4", "1", "1.00"),)),
    ]
    assert Project.load(tried.folder).try_truck("quiet") == []
