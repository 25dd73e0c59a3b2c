"""Looking into the change log beside a running project."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.errors import ChangeLogError, ConfigError
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute("create table item (id int primary key, name text)", "create table tag (id int primary key)")
    project.connect(postgres("replica", destination))
    project.truck("items", ["public.item"], {"connection": "replica"})
    return project.truck("tags", ["public.tag"], {"connection": "replica"})


def test_before_the_first_run_there_is_nothing_to_see(shop: ProjectFolder) -> None:
    with pytest.raises(ChangeLogError, match="no change log"):
        list(Project.load(shop.folder).peek())
    with pytest.raises(ConfigError, match="no truck"):
        list(Project.load(shop.folder).peek(truck="absent"))


def test_changes_in_commit_order_and_by_truck(shop: ProjectFolder, database: Database, spark: Any) -> None:
    InThread(shop, spark, once=True).join()
    database.execute(
        "begin; insert into item values (1, 'a'); insert into tag values (1); update item set name = 'b'; commit",
        "delete from tag",
        "truncate item",
    )
    InThread(shop, spark, once=True).join()
    peek = Project.load(shop.folder).peek
    every = [json.loads(line) for line in peek()]
    assert [(change["table"], change["operation"]) for change in every] == [
        ("item", "insert"),
        ("tag", "insert"),
        ("item", "update"),
        ("tag", "delete"),
        ("item", "truncate"),
    ]
    assert every[2]["new"] == {"id": 1, "name": "b"}
    assert [json.loads(line)["operation"] for line in peek(truck="tags")] == ["insert", "delete"]
    assert [json.loads(line) for line in peek(limit=2)] == every[-2:]


def test_it_follows_new_changes(shop: ProjectFolder, database: Database, spark: Any) -> None:
    seen: list[str] = []
    with InThread(shop, spark) as run:
        run.wait_streaming()
        lines = Project.load(shop.folder).peek(follow=True)

        def follow() -> None:
            for line in lines:
                seen.append(line)
                if len(seen) == 3:
                    return

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        for number in range(3):
            database.execute(f"insert into tag values ({number})")
            wait_until(lambda number=number: len(seen) > number)
        following.join(20)
        assert not following.is_alive()
    assert [json.loads(line)["new"]["id"] for line in seen] == [0, 1, 2]
