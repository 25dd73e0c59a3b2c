"""The engine against PostgreSQL as the model: whatever happens to the source, its copies end up equal.

Set TRUCKER_SEED to repeat a run. What is random: the changes, and when trucker is stopped and started again, at the
earliest before it streams.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import TABLES, RandomDml, chosen_seed, differences, duckdb_differences
from fixtures.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def dml(database: Database) -> Iterator[RandomDml]:
    made = RandomDml(database, chosen_seed())
    made.create()
    yield made
    made.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def copies(project: ProjectFolder, destination: Database, lake: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFolder:
    """All tables into PostgreSQL by one truck, into DuckDB by two; small batches, in many parts."""
    monkeypatch.setattr("trucker.engine.snapshot.copier.CHUNK_BYTES", 64 << 10)
    project.config["batch"] = {"max_bytes": 200_000, "part_bytes": 65_536}
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    project.truck("replica", ["public.*"], {"connection": "replica"})
    project.truck("lake", ["public.*", "!public.bag"], {"connection": "lake"})
    return project.truck("bag", ["public.bag"], {"connection": "lake"})


def _one_life(dml: RandomDml, copies: ProjectFolder, spark: Any) -> None:
    """Changes while it is down, changes while it comes up, changes while it streams; stopped in the midst of it."""
    random = dml.random
    for _ in range(random.randrange(30)):
        dml.transaction()
    with InThread(copies, spark) as run:
        if random.random() < 0.25:  # stopped while it starts
            for _ in range(random.randrange(60)):
                dml.transaction()
            return
        for _ in range(random.randrange(60)):
            dml.transaction()
        run.wait_streaming(120)
        for _ in range(random.randrange(20, 150)):
            dml.transaction()


def _all_equal(dml: RandomDml, copies: ProjectFolder, spark: Any, database: Database, destination: Database) -> None:
    """`--once` takes all that is committed; then everything is there, and still there once more."""
    dml.touch()
    InThread(copies, spark, once=True).join()
    lake = Path(copies.config["connections"][2]["path"])
    assert differences(database, destination) == ""
    assert duckdb_differences(database, lake) == ""


def _wait_equal(run: InThread, database: Database, destination: Database) -> None:
    def equal() -> bool:
        run.check()
        return not differences(database, destination)

    try:
        wait_until(equal, 60, 0.2)
    except AssertionError:
        pytest.fail(f"{differences(database, destination)}\n{run.folder.status()}")


def test_copies_equal_the_source_whatever_happens(
    dml: RandomDml, copies: ProjectFolder, spark: Any, database: Database, destination: Database
) -> None:
    for _ in range(4):
        _one_life(dml, copies, spark)
    _all_equal(dml, copies, spark, database, destination)
    assert all(database.query(f"select count(*) >= 0 from {table}") for table in TABLES)


def test_copies_equal_the_source_while_it_streams(
    dml: RandomDml, copies: ProjectFolder, spark: Any, database: Database, destination: Database
) -> None:
    """At rest after each burst, without a stop in between."""
    with InThread(copies, spark) as run:
        run.wait_streaming(120)
        for _ in range(3):
            for _ in range(120):
                dml.transaction()
            dml.touch()
            _wait_equal(run, database, destination)
    _all_equal(dml, copies, spark, database, destination)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_lives(
    dml: RandomDml, copies: ProjectFolder, spark: Any, database: Database, destination: Database
) -> None:
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    while time.monotonic() < deadline:
        for _ in range(4):
            _one_life(dml, copies, spark)
        _all_equal(dml, copies, spark, database, destination)
