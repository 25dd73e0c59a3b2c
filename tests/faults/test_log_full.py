"""The change log's disk is full: nothing is acknowledged, the status says so, and it goes on by itself (I2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import InThread, ProjectFolder, postgres
from fixtures.waiting import wait_until
from trucker import failpoint
from trucker.changelog.format.durable import read_durable
from trucker.lsn import Lsn

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("boundary", ["capture.write", "capture.fsync"])
def test_a_full_log_is_waited_for(
    project: ProjectFolder,
    database: Database,
    destination: Database,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    boundary: str,
) -> None:
    """Capture, a process of its own, meets ENOSPC until there is room; the file `room` says when."""
    room = tmp_path / "room"
    monkeypatch.setenv(failpoint.VARIABLE, f"{boundary}.before=full@3:{room}")
    database.execute("create table t (id int primary key)", "insert into t values (0)")
    project.connect(postgres("replica", destination)).truck("copy", ["public.t"], {"connection": "replica"})
    with InThread(project, spark) as run:
        run.wait_streaming(120)

        def told() -> bool:
            database.execute("insert into t select max(id) + 1 from t")
            return "No space left on device" in (_error(run) or "")

        wait_until(told, 60, 0.05)
        wait_until(lambda: (lag := _lag(run)) is None or lag > 1, 60)  # unknown, if it was full from the start
        assert "change log cannot be written" in caplog.messages
        durable = read_durable(project.state / "log" / "source")
        assert _confirmed(database) <= durable.seen_lsn
        assert _current(database) > durable.seen_lsn
        room.touch()
        wait_until(lambda: same(database, destination, "t"), 60)
        wait_until(lambda: _error(run) is None, 60)
        wait_until(lambda: _lag(run) == 0, 60)


def _error(run: InThread) -> str | None:
    truck = run.truck()
    return truck.error if truck else None


def _lag(run: InThread) -> float | None:
    truck = run.truck()
    return truck.lag_seconds if truck else None


def _confirmed(database: Database) -> Lsn:
    slot = f"select confirmed_flush_lsn::text from pg_replication_slots where database = '{database.name}'"
    return Lsn.parse(database.query(slot)[0][0])


def _current(database: Database) -> Lsn:
    return Lsn.parse(database.query("select pg_current_wal_flush_lsn()::text")[0][0])
