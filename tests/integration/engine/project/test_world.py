"""Random tables, random changes by several connections, shapes that change, stops at any time: all sinks stay equal.

Set TRUCKER_SEED to repeat a run. The long form, with every kind of fault, is `tests/soak/test_world_soak.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.random_dml import chosen_seed
from fixtures.world import World
from fixtures.world_equality import differences

pytestmark = pytest.mark.spark


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    made = World(database, chosen_seed())
    made.create()
    yield made
    made.close()


@pytest.fixture
def copies(
    project: ProjectFolder, destination: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ProjectFolder:
    monkeypatch.setattr("trucker.engine.snapshot.copier.CHUNK_BYTES", 64 << 10)
    project.config["batch"] = {"max_bytes": 200_000, "part_bytes": 65_536}
    project.connect(
        postgres("replica", destination),
        {"name": "lake", "adapter": "duckdb", "path": str(tmp_path / "lake.duckdb")},
        {"name": "audit", "adapter": "jsonl", "path": str(tmp_path / "audit")},
    )
    for name in ("replica", "lake", "audit"):
        project.truck(name, ["public.*"], {"connection": name})
    return project


def test_every_sink_equals_the_source_whatever_happens(
    world: World, copies: ProjectFolder, database: Database, destination: Database, tmp_path: Path, spark: Any
) -> None:
    """I4, I6, I7: at every quiet point, after stops at any moment in between."""
    for _ in range(2):
        for _ in range(world.dice.randrange(150)):
            world.step()
        with InThread(copies, spark) as run:
            for _ in range(world.dice.randrange(300)):
                world.step()
            if world.dice.random() < 0.7:
                world.commit()
                run.wait_streaming(120)
                for _ in range(world.dice.randrange(50, 600)):
                    world.step()
        world.rest()
        InThread(copies, spark, once=True).join()
        status = copies.status()
        assert status is not None
        assert [truck.error for truck in status.trucks] == [None, None, None]
        assert differences(world, database, destination, tmp_path / "lake.duckdb", tmp_path / "audit" / "audit") == []
    assert world.refused < world.steps / 2
