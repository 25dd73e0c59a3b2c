"""What gets lost on a cluster: executors, workers, drivers; and what a driver that was killed leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fixtures.campaign import Campaign
from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.spark_cluster import EventLog, hangs, on_cluster
from fixtures.waiting import wait_until
from trucker.testing.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(0)]

Start = Callable[..., TruckerProcess]


def test_executors_workers_and_drivers_are_killed_under_load(
    campaign: Campaign, cluster: SparkCluster, event_log: EventLog
) -> None:
    """I3, I4, at PostgreSQL, DuckDB and JSON lines, by output.sql, too. The same project as without a cluster."""
    on_cluster(campaign.project, cluster, event_log)
    trucker = campaign.start()
    trucker.wait_streaming(240)
    campaign.load.wait(30)
    cluster.executors()[0].process.kill()
    campaign.load.wait(30)
    campaign.caught_up(trucker)

    cluster.kill_worker(0)
    campaign.load.wait(30)
    campaign.caught_up(trucker)  # by the other one alone
    cluster.start_worker(0)
    wait_until(lambda: {executor.worker for executor in cluster.executors()} == {0, 1}, 120)

    campaign.load.wait(30)
    trucker.kill_tree()
    trucker = campaign.start()
    campaign.caught_up(trucker)
    campaign.equal(trucker)
    assert {task.executor for task in event_log.tasks() if not task.failed} >= {"0", "1"}


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    """Parts of a size that are staged in tables of their own, not carried in receipts."""
    database.execute(
        "create table item (id int primary key, name text, filling text)",
        "insert into item select i, 'first', repeat(md5(i::text), 20) from generate_series(1, 12000) i",
    )
    project.config["batch"] = {"part_bytes": 4 << 20}
    project.connect(postgres("replica", destination))
    return project.truck("copy", ["public.*"], {"connection": "replica"})


def test_what_a_killed_driver_left_at_work_writes_into_no_later_batch(
    shop: ProjectFolder,
    database: Database,
    destination: Database,
    cluster: SparkCluster,
    event_log: EventLog,
    start: Start,
    tmp_path: Path,
) -> None:
    """I4. A machine is cut off with a task in mid-batch. The driver is killed, another one does the work and more, and
    then that task goes on: what it stages counts for nothing, and goes with the next start."""
    on_cluster(shop, cluster, event_log)
    go, staged = tmp_path / "go", tmp_path / "staged"
    go.touch()
    staged.touch()
    trucker = start(failpoints=f"worker.stage.before=hang:{go}; worker.stage.after=hang:{staged}")
    trucker.wait_streaming(240)
    go.unlink()
    staged.unlink()
    database.execute("update item set name = 'old'")
    (cut_off, *_) = wait_until(lambda: [each for each in cluster.executors() if hangs(each, go)], 120)
    machine = [*cut_off.python_workers(), cut_off.process]
    (zombie,) = (process for process in machine if Path(f"{go}.{process.pid}").exists())
    cluster.lose_worker(cut_off.worker)
    for process in machine:
        process.send_signal(signal.SIGSTOP)
    trucker.kill_tree()
    try:
        cluster.start_worker(cut_off.worker)
        trucker = start()
        trucker.wait_streaming(240)
        database.execute("update item set name = 'new ' || id where id % 2 = 0", "delete from item where id % 3 = 0")
        wait_until(lambda: same(database, destination, "item"), 120)
        assert _stages(destination) == []
        go.touch()
        zombie.send_signal(signal.SIGCONT)
        wait_until(lambda: Path(f"{staged}.{zombie.pid}").exists(), 120)
        assert _stages(destination) != []
        database.execute("update item set name = name || '.' where id % 2 = 1")
        wait_until(lambda: same(database, destination, "item"), 120)
    finally:
        staged.touch()
        for process in machine:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    wait_until(lambda: not any(_alive(process) for process in machine), 120)  # nobody takes what it did
    assert same(database, destination, "item")
    assert trucker.stop() == 0, trucker.output()
    assert start("--once").process.wait(240) == 0
    assert same(database, destination, "item")
    assert _stages(destination) == []


def _stages(destination: Database) -> list[tuple[str]]:
    """The tables in which parts of batches wait."""
    return destination.query("select tablename from pg_tables where schemaname = 'trucker' and tablename ~ '^s_'")


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_lost_cluster_is_reported_and_the_next_start_continues(
    shop: ProjectFolder,
    database: Database,
    destination: Database,
    event_log: EventLog,
    start: Start,
    tmp_path: Path,
) -> None:
    """All of it, at once: the run waits for executors, and takes up again on another cluster (I3, I4)."""
    with SparkCluster(tmp_path / "first") as first:
        on_cluster(shop, first, event_log)
        trucker = start()
        trucker.wait_streaming(240)
    database.execute("update item set name = 'waits'")
    told = wait_until(lambda: (truck := trucker.truck()) and truck.error, 120)
    assert "[TRK518]" in told
    assert trucker.stop(timeout=120) == 0, trucker.output()
    with SparkCluster(tmp_path / "second") as second:
        on_cluster(shop, second, event_log)
        trucker = start()
        wait_until(lambda: same(database, destination, "item"), 240)
        assert trucker.stop() == 0, trucker.output()


def test_a_cluster_in_processes_below_the_driver(
    shop: ProjectFolder, database: Database, destination: Database, event_log: EventLog, start: Start
) -> None:
    """`local-cluster[2,1,512]`: executors of their own, and nothing to set up. Their files are the project's."""
    shop.config["spark"] = {
        "master": "local-cluster[2,1,512]",
        "settings": {
            **event_log.settings,
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1",
        },
    }
    shop.save()
    trucker = start()
    trucker.wait_streaming(240)
    database.execute("update item set name = 'second'")
    wait_until(lambda: same(database, destination, "item"), 120)
    wait_until(lambda: event_log.executors(copying=True) == event_log.executors(copying=False) == {"0", "1"})
    victim = next(each for each in trucker.tree() if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()))
    victim.kill()
    database.execute("update item set name = 'third'")
    wait_until(lambda: same(database, destination, "item"), 120)
    assert trucker.stop() == 0, trucker.output()
    assert list((shop.state / "spark" / "home" / "work").rglob("stderr"))
