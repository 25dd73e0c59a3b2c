"""Incremental copies for trucks with rules and SQL: every change is one of its own kind, and no row counts twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.row_makers import CREATION, TRUCKS, change, changing, make_trucks, wrong
from fixtures.waiting import wait_until
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute(*CREATION)
    project.config["copy"] = {"chunk_bytes": 65536, "parallel": 2}
    return project.connect(postgres("replica", destination))


def _copied_by_chunks(destination: Database) -> set[str]:
    """The trucks with a table that is being copied so."""
    if destination.query("select to_regclass('trucker.tables') is null") == [(True,)]:
        return set()
    return {truck for (truck,) in destination.query("select truck from trucker.tables where snapshot like '%#%'")}


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 20))])
def test_random_changes_while_trucks_with_rules_and_sql_are_copied(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any, number: int
) -> None:
    seed = 10 * chosen_seed() + number
    dice = random.Random(seed)
    make_trucks(shop, "replica", *TRUCKS, copy="incremental")
    seen: set[str] = set()
    for _ in range(2):
        run = InThread(shop, spark)
        with changing(database, seed):
            wait_until(lambda: seen.update(_copied_by_chunks(destination)) or seen == TRUCKS.keys())
        run.stop()
        change(database, dice, 20)
    run = InThread(shop, spark)
    change(database, dice, 30)
    wait_until(lambda: not wrong(database, destination, *TRUCKS), 120)
    change(database, dice, 30)
    wait_until(lambda: not wrong(database, destination, *TRUCKS), 60)
    run.stop()
    assert seen == TRUCKS.keys()


def test_what_is_copied_in_one_go_says_why(shop: ProjectFolder, database: Database) -> None:
    output = {"connection": "replica", "table": "sums"}
    make_trucks(shop, "replica", "ruled", copy="incremental")
    shop.truck("sums", ["public.item"], output, copy="incremental")
    shop.sql("sums", {"output": "insert into sums select count(*) from {{ rows }}"})
    shop.truck("joint", ["public.item", "public.doc"], {"connection": "replica", "table": "joint"}, copy="incremental")
    shop.sql("joint", {}, rules=[{"exclude": ["code", "status", "note"], "tables": "public.item"}])
    said = [finding.message for finding in Project.load(shop.folder).check() if "in one go" in finding.message]
    assert said == [
        "copied in one go, not incrementally, because several tables have one output: public.doc, public.item",
        "copied in one go, not incrementally, because output.sql would get changes of rows before it gets the rows: "
        "public.item",
    ]
