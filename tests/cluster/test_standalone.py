"""On a standalone cluster of a master and two workers: the project of any other test, unchanged."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.spark_cluster import EventLog, hangs, on_cluster
from fixtures.waiting import wait_until
from trucker.testing.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # eight processes start, on a machine that may be busy

Start = Callable[..., TruckerProcess]


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    """Small chunks and parts, so that there is something for everybody."""
    database.execute(
        "create table item (id int primary key, name text, filling text)",
        "create table event (n int, word text)",
        "alter table event replica identity full",
        "insert into item select i, 'first', repeat(md5(i::text), 20) from generate_series(1, 12000) i",
        "insert into event select i, 'first' from generate_series(1, 100) i",
    )
    project.config["batch"] = {"part_bytes": 1 << 20}
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_all_workers_copy_and_stream_and_one_that_is_killed_costs_nothing(
    shop: ProjectFolder,
    database: Database,
    destination: Database,
    cluster: SparkCluster,
    event_log: EventLog,
    start: Start,
    tmp_path: Path,
) -> None:
    """I4: a batch of which a part was staged by an executor that is gone is staged again, and counts once."""
    on_cluster(shop, cluster, event_log)
    go = tmp_path / "go"
    go.touch()
    trucker = start(failpoints=f"worker.stage.after=hang:{go}")
    trucker.wait_streaming(240)
    both = {executor.id for executor in cluster.executors()}
    assert len(both) == 2
    wait_until(lambda: event_log.executors(copying=True) == both, 60)
    database.execute("update item set name = 'changed'")
    wait_until(lambda: same(database, destination, "item", "event"), 180)
    wait_until(lambda: event_log.executors(copying=False) >= both, 60)

    go.unlink()  # from here on executors stop in the middle of a part
    database.execute(
        "update item set name = 'second' where id % 3 = 0",
        "insert into event select i, 'second' from generate_series(1, 5000) i",
        "delete from item where id % 7 = 0",
    )
    (victim, *_) = wait_until(lambda: [each for each in cluster.executors() if hangs(each, go)], 180)
    victim.process.send_signal(signal.SIGKILL)
    go.touch()
    wait_until(lambda: same(database, destination, "item", "event"), 180)
    assert trucker.stop() == 0, trucker.output()
    assert any(task.failed for task in event_log.tasks() if task.executor == victim.id)
