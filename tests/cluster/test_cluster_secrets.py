"""On a cluster passwords travel in tasks, and are nowhere else: no page, no file of a worker, no command (I10)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.searching import Mark, Searching, free_port, page
from fixtures.spark_cluster import EventLog, on_cluster
from fixtures.waiting import wait_until
from trucker.observe.status import TruckPhase
from trucker.testing.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(0)]

Start = Callable[..., TruckerProcess]

ROW = "r0w-0f-somebody"


@pytest.fixture
def mark(database: Database, destination: Database) -> Iterator[Mark]:
    """The password of a user that both databases know."""
    mark, name = Mark(), f"mover_{database.name}"
    literal = "'" + mark.password.replace("'", "''") + "'"
    database.execute(f"create role {name} superuser login replication password {literal}")
    yield mark
    for place in (database, destination):
        place.execute(
            f"select pg_terminate_backend(pid, 20000) from pg_stat_activity where usename = '{name}'",
            f"reassign owned by {name} to postgres",
        )
    database.execute(f"drop role {name}")


def test_it_is_nowhere_on_a_cluster_either(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    mark: Mark,
    event_log: EventLog,
    start: Start,
    tmp_path: Path,
) -> None:
    """The cluster's own secret is in the environment of its processes, where Spark puts it, and on no command line."""
    user = {"user": f"mover_{database.name}", "pass": mark.password}
    project.config["connections"] = [postgres("source", database) | user]
    project.connect(postgres("replica", destination) | user)
    database.execute(
        "create table item (id int primary key, v text, filling text)",
        "insert into item select i, '1', repeat(md5(i::text), 10) from generate_series(1, 8000) i",
    )
    project.truck("copy", ["public.*"], {"connection": "replica"})
    project.truck("numbers", ["public.item"], {"connection": "replica", "table": "public.numbers"})
    project.sql("numbers", {"transform": "select id, cast(v as int) as v from {{ rows }}"})
    own = Mark()
    with SparkCluster(tmp_path / "cluster", secret=own.core) as cluster:
        ui = {"spark.ui.enabled": "true", "spark.ui.port": str(free_port())}
        on_cluster(project, cluster, event_log, **ui)
        searching = Searching([mark], project.folder / ".trucker", tmp_path / "cluster", event_log.folder)
        trucker = start("--debug")
        trucker.wait_streaming(240)
        database.execute("update item set v = '2'")
        wait_until(lambda: same(database, destination, "item"), 120)
        everybody = [*trucker.tree(), *_below(cluster)]
        commands = [" ".join(process.cmdline()) for process in everybody]
        said = [*commands, *(json.dumps(process.environ()) for process in everybody)]
        assert sum("CoarseGrainedExecutorBackend" in command for command in commands) == 2
        pages = list(_pages(ui["spark.ui.port"], cluster))
        said += pages
        # A row that Spark's SQL fails on is in no log: what executors log is discreet, too.
        database.execute(f"insert into item values (-1, '{ROW}')")
        said.append(trucker.wait_phase(TruckPhase.FAILED, "numbers", timeout=120).error or "")
        assert "[TRK544]" in said[-1]
        said.append(trucker.output())
        trucker.kill_tree()
        assert searching.close() == set()
    assert not [text[:200] for text in said if mark.is_in(text)]
    assert not [text[:200] for text in (*commands, *pages, trucker.output()) if own.is_in(text)]
    (content,) = database.query("select md5('17')")[0]
    assert not [file for file in event_log.folder.iterdir() if content.encode() in file.read_bytes()]
    logs = [
        *(tmp_path / "cluster").rglob("stderr"),
        *(tmp_path / "cluster").glob("*.log"),
        *project.state.glob("spark.*"),
    ]
    assert len(logs) >= 6
    assert not [file for file in logs if ROW in file.read_text(errors="replace")]
    assert not [file for file in (tmp_path / "cluster").rglob("*") if file.is_file() and own.is_in(file.read_bytes())]


def _below(cluster: SparkCluster) -> list[psutil.Process]:
    found = [process for executor in cluster.executors() for process in executor.python_workers()]
    return [*found, *(executor.process for executor in cluster.executors())]


def _pages(port: str, cluster: SparkCluster) -> Iterator[str]:
    """Of the driver, of the master and of both workers."""
    site = f"http://127.0.0.1:{port}"
    (application,) = json.loads(page(f"{site}/api/v1/applications"))
    api = f"api/v1/applications/{application['id']}"
    for name in ("jobs/", "stages/", "environment/", "executors/", *(f"{api}/{x}" for x in ("environment", "jobs"))):
        yield page(f"{site}/{name}")
    for log in sorted(cluster.folder.glob("*.log")):
        found = re.search(r"http://\S+:(\d+)", log.read_text())
        assert found is not None
        yield page(f"http://127.0.0.1:{found[1]}/")
        yield page(f"http://127.0.0.1:{found[1]}/json/")
