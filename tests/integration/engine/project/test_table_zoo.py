"""Every kind of table in one project, copied and followed into PostgreSQL and DuckDB, compared by checksums.

Set TRUCKER_SEED to repeat a run.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.table_zoo import HANDED_ON, SETUP, ZooKeeper, zoo
from fixtures.waiting import wait_until
from trucker.change import TableId
from trucker.testing.equality import columns, duckdb_sums, postgres_sum

pytestmark = pytest.mark.spark


@pytest.fixture
def keeper(database: Database) -> Iterator[ZooKeeper]:
    made = ZooKeeper(database, chosen_seed(), zoo())
    made.create()
    yield made
    made.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake.duckdb"


@pytest.fixture
def copies(project: ProjectFolder, destination: Database, lake: Path) -> ProjectFolder:
    """All tables into PostgreSQL and DuckDB; small batches, in several parts. On a busy machine DuckDB may be slow."""
    project.config["batch"] = {"max_bytes": 300_000, "part_bytes": 128 << 10, "patience": 120}
    destination.execute(*SETUP)
    project.connect(postgres("replica", destination), {"name": "lake", "adapter": "duckdb", "path": str(lake)})
    schemas = ["public.*", '"Odd.schema ""1""".*']
    project.truck("replica", schemas, {"connection": "replica"})
    return project.truck("lake", schemas, {"connection": "lake"})


def different(tables: Sequence[TableId], database: Database, destination: Database) -> list[str]:
    """The tables that are not the same in PostgreSQL, to the letter."""
    found = []
    with database.connect() as source, destination.connect() as copy:
        for table in tables:
            names = columns(source, table.schema, table.name)
            sums = [postgres_sum(each, table.schema, table.name, names) for each in (source, copy)]
            if sums[0] != sums[1]:
                found.append(f"{table} {sums[0]} {sums[1]}")
    return found


def different_in_duckdb(tables: Sequence[TableId], database: Database, lake: Path) -> list[str]:
    found = []
    by_schema = defaultdict(list)
    for table in tables:
        by_schema[table.schema].append(table.name)
    with database.connect() as source:
        for schema, names in by_schema.items():
            for name, copied in duckdb_sums(source, lake, schema, names).items():
                expected = postgres_sum(source, schema, name, columns(source, schema, name))
                if copied != expected:
                    found.append(f"{schema}.{name} {expected} {copied}")
    return found


def wait_same(run: InThread, keeper: ZooKeeper, database: Database, destination: Database) -> None:
    tables = keeper.tables

    def same() -> bool:
        run.check()
        for name in ("replica", "lake"):
            truck = run.truck(name)
            assert truck is not None
            assert truck.error is None, truck.error
        return not different(tables, database, destination)

    try:
        wait_until(same, 90, 1.0)
    except AssertionError:
        pytest.fail(f"{different(tables, database, destination)}\n{run.folder.status()}")


def test_every_kind_of_table(
    keeper: ZooKeeper, copies: ProjectFolder, spark: Any, database: Database, destination: Database, lake: Path
) -> None:
    """I4-I7 for all of them; keys that are equal to PostgreSQL are one key, however they are written."""
    with InThread(copies, spark) as run:
        for _ in range(20):
            keeper.transaction()
        run.wait_streaming(120)
        destination.execute(*HANDED_ON)
        for _ in range(80):
            keeper.transaction()
        keeper.rewrite()
        wait_same(run, keeper, database, destination)
    InThread(copies, spark, once=True).join()
    assert different_in_duckdb(keeper.tables, database, lake) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_kind_of_table_for_long(
    keeper: ZooKeeper, copies: ProjectFolder, spark: Any, database: Database, destination: Database, lake: Path
) -> None:
    deadline = time.monotonic() + 60 * float(os.environ.get("TRUCKER_SOAK_MINUTES", "10"))
    while time.monotonic() < deadline:
        with InThread(copies, spark) as run:
            for _ in range(keeper.random.randrange(100)):
                keeper.transaction()
            run.wait_streaming(120)
            for _ in range(keeper.random.randrange(400)):
                keeper.transaction()
            keeper.rewrite()
            wait_same(run, keeper, database, destination)
        InThread(copies, spark, once=True).join()
        assert different_in_duckdb(keeper.tables, database, lake) == []
