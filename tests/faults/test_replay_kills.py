"""SIGKILL in the midst of a replay: the same command goes on; no row is lost or doubled (I3, I4)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, run_cli
from fixtures.random_dml import RandomDml, chosen_seed, duckdb_differences
from fixtures.waiting import busy
from trucker.failpoint import VARIABLE
from trucker.project import Project

pytestmark = pytest.mark.spark

BATCHES = 5


def _killed(project: ProjectFolder, failpoint: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "trucker", "replay", *arguments, "--project", str(project.folder)]
    environment = {**os.environ, VARIABLE: failpoint}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120 * busy())
    assert ended.returncode == -9, (failpoint, ended.stdout, ended.stderr)


def _replayed(project: ProjectFolder, *arguments: str) -> dict[str, Any]:
    ended = run_cli("replay", *arguments, "--json", "--project", str(project.folder))
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.mark.timeout(600)
def test_killed_in_the_midst_of_a_replay(
    project: ProjectFolder, database: Database, tmp_path: Path, spark: Any
) -> None:
    """A copied file with its position in it, and a series of events."""
    project.connect(
        {"name": "lake", "adapter": "duckdb", "path": str(tmp_path / "lake.duckdb")},
        {"name": "rescue", "adapter": "duckdb", "path": str(tmp_path / "rescue.duckdb")},
        {"name": "events", "adapter": "jsonl", "path": str(tmp_path / "events")},
    )
    project.config |= {"log": {"keep": 3600}, "batch": {"max_bytes": 4096}}
    project.save().truck("all", ["public.*"], {"connection": "lake"})

    def take() -> None:
        assert Project.load(project.folder).run(once=True, spark=spark).failures == ()

    dml = RandomDml(database, chosen_seed(), rare=0.0)
    dml.create()
    for _ in range(20):
        dml.transaction()
    take()
    shutil.copyfile(tmp_path / "lake.duckdb", tmp_path / "rescue.duckdb")
    start = database.query("select pg_current_wal_insert_lsn()::text")[0][0]
    for _ in range(BATCHES):  # what a run takes in one go is one batch
        for _ in range(8):
            dml.transaction()
        take()
    dml.close()
    for failpoint in ("sink.commit.before=kill@2", "sink.commit.after=kill@2"):
        _killed(project, failpoint, "all", "--into", "rescue")
    replayed = _replayed(project, "all", "--into", "rescue")
    assert replayed["complete"]
    assert replayed["start"] != start, "it has gone on"
    assert duckdb_differences(database, tmp_path / "rescue.duckdb") == ""

    _killed(project, "sink.commit.after=kill@3", "all", "--into", "events", "--from", start)
    events = _replayed(project, "all", "--into", "events", "--from", start)
    series = [path for path in (tmp_path / "events").iterdir() if path.is_dir()]
    assert len(series) == 2, "the one that was interrupted, and another one"
    lines = [json.loads(line) for line in _text(tmp_path / "events" / events["truck"]).splitlines()]
    assert len(lines) == events["rows"]
    positions = [tuple(int(part, 16) for part in line["commit_lsn"].split("/")) for line in lines]
    assert positions == sorted(positions)


def _text(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("*.jsonl")))
