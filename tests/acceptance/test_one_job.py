"""Ten trucks, two destinations, one Spark job per batch: read from Spark's own event log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.waiting import wait_until

TABLES = 5


def test_a_batch_costs_one_job_for_ten_trucks(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    tmp_path: Path,
    start: Callable[..., TruckerProcess],
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    project.config["batch"] = {"small_bytes": 0}  # small ones need none at all
    project.config["spark"] = {
        "settings": {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
    }
    project.connect(
        postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(tmp_path / "lake.duckdb")}
    )
    names = [f"t{number}" for number in range(TABLES)]
    for name in names:
        database.execute(
            f"create table {name} (id int primary key, v text)",
            f"insert into {name} select i, 'v' from generate_series(1, 100) i",
        )
        project.truck(f"{name}_replica", [f"public.{name}"], {"connection": "replica"})
        project.truck(f"{name}_lake", [f"public.{name}"], {"connection": "lake"})
    trucker = start()
    trucker.wait_streaming()
    before, began = _batches(project), time.time() * 1000
    for round_ in range(10):
        database.execute("; ".join(f"insert into {name} values ({1000 + round_}, 'w')" for name in names))
        wait_until(lambda: same(database, destination, *names))
    assert trucker.stop() == 0

    batches = {truck: count - before[truck] for truck, count in _batches(project).items()}
    assert len(batches) == 2 * TABLES
    (count,) = set(batches.values())
    assert count >= 10
    assert _jobs_since(events, began) == count
    with duckdb.connect(str(tmp_path / "lake.duckdb"), read_only=True) as lake:
        for name in names:
            assert lake.execute(f"select count(*) from public.{name}").fetchall() == [(110,)]


def _batches(project: ProjectFolder) -> dict[str, int]:
    status = project.status()
    assert status is not None
    return {truck.name: truck.batches for truck in status.trucks}


def _jobs_since(events: Path, began: float) -> int:
    """How many jobs Spark started after that time, in milliseconds since 1970."""
    found = [
        json.loads(line)
        for path in events.rglob("*")
        if path.is_file()
        for line in path.read_text().splitlines()
        if "SparkListenerJobStart" in line
    ]
    return sum(job["Submission Time"] >= began for job in found if job["Event"] == "SparkListenerJobStart")
