"""Ten trucks, two destinations, one Spark job per batch: read from Spark's own event log."""

from __future__ import annotations

import json
from collections import Counter
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
    for round_ in range(10):
        database.execute("; ".join(f"insert into {name} values ({1000 + round_}, 'w')" for name in names))
        wait_until(lambda: same(database, destination, *names))
    assert trucker.stop() == 0

    jobs = _jobs_per_batch(events)
    assert len(jobs) >= 10
    assert set(jobs.values()) == {1}
    with duckdb.connect(str(tmp_path / "lake.duckdb"), read_only=True) as lake:
        for name in names:
            assert lake.execute(f"select count(*) from public.{name}").fetchall() == [(110,)]


def _jobs_per_batch(events: Path) -> Counter[str]:
    """How many jobs Spark started for each micro-batch of the streaming query."""
    jobs: Counter[str] = Counter()
    for path in (path for path in events.rglob("*") if path.is_file()):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                batch = event.get("Properties", {}).get("streaming.sql.batchId")
                if batch is not None:
                    jobs[batch] += 1
    return jobs
