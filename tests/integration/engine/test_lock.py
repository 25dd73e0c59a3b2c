"""One instance per project."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.errors import LockedError
from trucker.project import Project

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    database.execute("create table item (id int primary key)", "insert into item values (1)")
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_a_second_one_is_refused_or_waits(
    shop: ProjectFolder, database: Database, destination: Database, spark: Any
) -> None:
    with InThread(shop, spark) as first:
        first.wait_streaming()
        with pytest.raises(LockedError, match="process"):
            InThread(shop, spark).join()
        with pytest.raises(LockedError):
            Project.load(shop.folder).reset()
        assert Project.load(shop.folder).status().running
        waiting = InThread(shop, spark, wait=True, once=True)
        database.execute("insert into item values (2)")
        wait_until(lambda: same(database, destination, "item"))
        first.stop()
        waiting.join()
    assert not Project.load(shop.folder).status().running
    assert same(database, destination, "item")


def test_the_lock_is_free_after_a_failed_start(shop: ProjectFolder, database: Database, spark: Any) -> None:
    shop.truck("copy", ["public.absent"], {"connection": "replica"})
    for _ in range(2):
        with pytest.raises(Exception, match="absent"):
            InThread(shop, spark).join()
    shop.truck("copy", ["public.item"], {"connection": "replica"})
    InThread(shop, spark, once=True).join()
