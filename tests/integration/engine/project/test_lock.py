"""One instance per project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker.errors import LockedError, SourceError
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


def test_the_same_project_from_another_folder_touches_nothing(
    shop: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any, monkeypatch: Any
) -> None:
    """Its lock is another one, its slot is not: the first one keeps its publication and its tables."""
    database.execute("create table tag (id int primary key)")
    twin = ProjectFolder(tmp_path / "twin", database.name)
    twin.connect(postgres("source", database), postgres("replica", destination))
    twin.truck("copy", ["public.item"], {"connection": "replica"})
    twin.truck("more", ["public.item"], {"connection": "replica", "schema": "more"})
    monkeypatch.setattr("trucker.postgres.slot_creation.SLOT_SECONDS", 1)
    with InThread(shop, spark) as first:
        first.wait_streaming()
        with pytest.raises(SourceError) as refused:
            InThread(twin, spark).join()
        assert refused.value.code == "TRK231"
        assert not (twin.state / "log").exists()
        assert destination.query("select to_regclass('more.item')") == [(None,)]
        database.execute("insert into tag values (1)", "insert into item values (2)")
        wait_until(lambda: same(database, destination, "item", "tag"))


def test_the_lock_is_free_after_a_failed_start(shop: ProjectFolder, database: Database, spark: Any) -> None:
    shop.truck("copy", ["public.absent"], {"connection": "replica"})
    for _ in range(2):
        with pytest.raises(Exception, match="absent"):
            InThread(shop, spark).join()
    shop.truck("copy", ["public.item"], {"connection": "replica"})
    InThread(shop, spark, once=True).join()
