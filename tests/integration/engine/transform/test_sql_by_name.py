"""Rows that SQL gives and that are written by name and key: what counts when a key comes more than once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres

pytestmark = pytest.mark.spark

PLACES = ("there", "file")

# By truck: its tables, its input.sql, its settings, and what the source says must be at its destination.
TRUCKS: dict[str, tuple[list[str], str, dict[str, Any], str]] = {
    "silent": (
        ["public.t"],
        "select r.id, r.n * 2 as m from {{ rows }}",
        {"batch": "transaction"},
        "select id, n * 2 from t",
    ),
    "telling": (
        ["public.t"],
        "select coalesce(r.id, r.old__id) as id, r.n * 2 as m, r.operation from {{ rows }}",
        {"batch": "transaction"},
        "select id, n * 2 from t",
    ),
    "latest": (
        ["public.log"],
        "select r.item, r.id, r.operation from {{ rows }} where r.operation <> 'delete' order by r.id",
        {"key": ["item"]},
        "select item, max(id) from log group by 1",
    ),
    "chosen": (
        ["public.t"],
        "select coalesce(r.id, r.old__id) as id, r.n,"
        " case when r.n > 4 then r.operation else 'delete' end as operation from {{ rows }}",
        {},
        "select id, n from t where n > 4",
    ),
    "together": (["public.a", "public.b"], "", {}, "select id, n from a union all select id, n from b"),
    "doubled": (
        ["public.a", "public.b"],
        "select r.id, r.n * 2 as m from {{ rows }}",
        {},
        "select id, n * 2 from a union all select id, n * 2 from b",
    ),
    "marked": (
        ["public.a", "public.b"],
        "select coalesce(r.id, r.old__id) as id, '{{ input_table }}' as origin, r.operation from {{ rows }}",
        {},
        "select id, 'public.a' from a union all select id, 'public.b' from b",
    ),
}


@pytest.fixture
def by_name(project: ProjectFolder, database: Database, destination: Database, tmp_path: Path) -> ProjectFolder:
    database.execute(
        *(f"create table {name} (id int primary key, n int)" for name in ("t", "a", "b")),
        "create table log (id int primary key, item int)",
        "insert into t values (1, 1), (2, 2), (6, 6)",
        "insert into a values (1, 1), (2, 2)",
        "insert into b values (3, 3), (4, 4), (5, 5)",
        "insert into log values (1, 1), (2, 2)",
    )
    project.connect(
        postgres("there", destination),
        {"name": "file", "adapter": "duckdb", "path": str(tmp_path / "file.duckdb")},
        {"name": "lines", "adapter": "jsonl", "path": str(tmp_path / "lines")},
    )
    for place in PLACES:
        for name, (tables, sql, settings, _) in TRUCKS.items():
            output = {"connection": place, "table": f"public.{name}"}
            more = dict(settings)
            if "key" in more:
                output["key"] = more.pop("key")
            project.truck(f"{name}_{place}", tables, output)
            project.sql(f"{name}_{place}", {"input": sql} if sql else {}, **more)
    project.truck("lines", ["public.t"], {"connection": "lines"})
    return project.sql("lines", {"input": "select r.id, r.n * 2 as m from {{ rows }}"})


def take(project: ProjectFolder, spark: Any) -> None:
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


def differences(database: Database, destination: Database, file: Path) -> dict[str, Any]:
    found = {}
    with duckdb.connect(str(file), read_only=True) as local:
        for name, (_, _, _, wanted) in TRUCKS.items():
            here = Counter(database.query(wanted))
            query = f"select * from public.{name}"
            there = Counter(destination.query(query)), Counter(local.execute(query).fetchall())
            if there != (here, here):
                found[name] = (here, there)
    return found


def test_a_key_that_comes_more_than_once(
    by_name: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I4, I8: in one batch a key is inserted and deleted by several transactions, is given by several rows, moves from
    one table to another; in the copy, a row is given to be deleted."""
    take(by_name, spark)
    assert differences(database, destination, tmp_path / "file.duckdb") == {}
    moved = [
        f"begin; delete from {old} where id = {key}; insert into {new} values ({key}, {key * 10}); commit"
        for old, new, key in (("a", "b", 1), ("a", "b", 2), ("b", "a", 3), ("b", "a", 4), ("b", "a", 1), ("a", "b", 3))
    ]
    database.execute(
        "insert into t values (3, 3)",
        "delete from t where id = 3",
        "update t set n = 5 where id = 1",
        "delete from t where id = 1",
        "delete from t where id = 2",
        "insert into t values (2, 7)",
        "insert into t values (4, 8), (5, 1)",
        "update t set n = 0 where id = 6",
        "update t set id = 40 where id = 4",
        "insert into log values (3, 1), (4, 1), (5, 2), (6, 3)",
        *moved,
    )
    take(by_name, spark)
    assert differences(database, destination, tmp_path / "file.duckdb") == {}
    rows: dict[int, int] = {}
    for path in sorted((tmp_path / "lines").rglob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            rows.pop(line["key"]["id"], None)
            if line["operation"] != "delete":
                rows[line["new"]["id"]] = line["new"]["m"]
    assert rows == dict(database.query("select id, n * 2 from t"))
