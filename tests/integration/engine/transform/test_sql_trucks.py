"""Trucks made of SQL: by snapshot and by stream, in batches of every size, the destination is what the SQL says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder
from fixtures.random_dml import chosen_seed
from fixtures.sql_shop import ShopWork, differences, shop

pytestmark = pytest.mark.spark


@pytest.fixture
def sql_shop(project: ProjectFolder, database: Database, destination: Database, tmp_path: Path) -> ProjectFolder:
    return shop(project, database, destination, tmp_path)


def take(project: ProjectFolder, spark: Any) -> None:
    """All that is there, and no truck failed."""
    InThread(project, spark, once=True).join()
    status = project.status()
    assert status is not None
    assert [(truck.name, truck.error) for truck in status.trucks if truck.error] == []


def test_the_same_by_snapshot_and_by_stream_in_batches_of_every_size(
    sql_shop: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I3, I4, I7: rows that are there at the start, then transactions of 1, 10 and 1000 changes, after restarts too."""
    work = ShopWork(database, chosen_seed())
    work.transaction(200)
    take(sql_shop, spark)
    assert differences(database, destination, tmp_path) == []
    for size, times in ((1, 30), (10, 10), (1000, 1)):
        for _ in range(times):
            work.transaction(size)
        take(sql_shop, spark)
        assert differences(database, destination, tmp_path) == [], f"after transactions of {size} changes"
        if size == 1:
            each = "select count(distinct xid) from history where input = 'public.orders'"
            copied = 1
            assert destination.query(f"select count(*) - {copied} from transactions") == destination.query(each)
    neighbours = "select count(*) from history h join history i on i.place = h.place + 1 where h.xid is not null"
    assert destination.query(f"{neighbours} and (h.commit_lsn, h.ordinal) > (i.commit_lsn, i.ordinal)") == [(0,)]
