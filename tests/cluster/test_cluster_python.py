"""How trucker and what it needs reach executors: workers that have no trucker, and workers that have nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.spark_cluster import EventLog, bare_environment, on_cluster, packed, settled
from fixtures.waiting import wait_until
from trucker.testing.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(0)]

Start = Callable[..., TruckerProcess]

TRANSFORM = "select r.id, shouted(r.name) as name, r.n + 1 as n from {{ rows }}"
FUNCTIONS = """
import sys

def shouted(text: str) -> str:
    return f"{text.upper()} by {sys.prefix.rpartition('/')[2]}"
"""


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    """A table that is replicated, and one that goes through Spark SQL with a function of Python's on executors."""
    database.execute(
        "create table item (id int primary key, name text, n int)",
        "insert into item select i, 'item ' || i, i from generate_series(1, 20000) i",
    )
    project.connect(postgres("replica", destination))
    project.truck("plain", ["public.item"], {"connection": "replica"})
    project.truck("loud", ["public.item"], {"connection": "replica", "table": "public.loud"})
    project.sql("loud", {"transform": TRANSFORM})
    (project.folder / "trucks" / "loud" / "functions.py").write_text(FUNCTIONS)
    return project


def _runs(shop: ProjectFolder, database: Database, destination: Database, start: Start, environment: str) -> None:
    """Both trucks copy and stream, all of it arrives, and it was done in the environment that it should be."""
    trucker = start()
    wait_until(lambda: settled(trucker), 400)
    trucker.wait_streaming(1)
    database.execute("update item set name = 'new ' || id where id % 2 = 0", "delete from item where id % 5 = 0")
    wait_until(lambda: same(database, destination, "item"), 300)
    made = f"select id, upper(name) || ' by {environment}', n + 1 from item order by id"
    wait_until(lambda: destination.query("select id, name, n from loud order by id") == database.query(made), 300)
    assert trucker.stop() == 0, trucker.output()


def test_workers_without_trucker(
    shop: ProjectFolder,
    database: Database,
    destination: Database,
    event_log: EventLog,
    cluster: SparkCluster,
    start: Start,
    tmp_path: Path,
) -> None:
    """Theirs is another Python, at another path than the driver's."""
    python = bare_environment(tmp_path / "theirs")
    on_cluster(shop, cluster, event_log, **{"spark.pyspark.python": str(python)})
    _runs(shop, database, destination, start, "theirs")
    assert {task.executor for task in event_log.tasks() if not task.failed} == {"0", "1"}


def test_a_packed_environment_for_workers_that_have_nothing(
    shop: ProjectFolder,
    database: Database,
    destination: Database,
    event_log: EventLog,
    start: Start,
    tmp_path: Path,
) -> None:
    """`spark.archives` takes it there; each executor unpacks it where it runs."""
    bare_environment(tmp_path / "environment")
    archive = packed(tmp_path / "environment", tmp_path / "environment.tar.gz")
    with SparkCluster(tmp_path / "cluster", environment={"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": "none"}) as cluster:
        on_cluster(
            shop,
            cluster,
            event_log,
            **{"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"},
        )
        _runs(shop, database, destination, start, "environment")


def test_a_missing_package_of_a_worker_is_named_before_anything_is_created(
    shop: ProjectFolder, database: Database, event_log: EventLog, cluster: SparkCluster, tmp_path: Path
) -> None:
    """I11: a module that is missing, a Python that is not there."""
    python = bare_environment(tmp_path / "theirs", without="pydantic")
    on_cluster(shop, cluster, event_log, **{"spark.pyspark.python": str(python)})
    ended = run_cli("run", "--once", str(shop.folder), timeout=240)
    assert ended.returncode != 0
    assert "[TRK515] an executor's Python" in ended.stderr
    assert "cannot import pydantic" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    on_cluster(shop, cluster, event_log, **{"spark.pyspark.python": "/no/such/bin/python3"})
    ended = run_cli("run", "--once", str(shop.folder), timeout=240)
    assert "[TRK515]" in ended.stderr
    assert "python3" in ended.stderr
    assert database.query("select * from pg_replication_slots where database = current_database()") == []


_OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from trucker import Project

builder = SparkSession.builder.master(sys.argv[2]).config("spark.executor.memory", "512m")
for name, value in (pair.split("=") for pair in sys.argv[3:]):
    builder = builder.config(name, value)
session = builder.getOrCreate()
Project.load(sys.argv[1]).run(spark=session, once=True)
session.stop()
"""


def test_a_session_of_the_caller_ships_trucker_to_executors(
    shop: ProjectFolder, database: Database, destination: Database, cluster: SparkCluster
) -> None:
    """As a library, in a Spark application that knows nothing of trucker."""
    settings = [f"{name}={value}" for name, value in cluster.settings.items()]
    ended = subprocess.run(
        [sys.executable, "-c", _OWN_SESSION, str(shop.folder), cluster.master, *settings],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert same(database, destination, "item")
