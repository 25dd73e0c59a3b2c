"""Capture in trouble that passes by itself, and in trouble that does not: a full disk, a slot somebody else holds."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.capture import Source, capturing, inserted, prepare
from fixtures.pg import Database
from fixtures.waiting import wait_until
from trucker.capture import process as capture_module
from trucker.capture.process import Capture, CaptureTask
from trucker.changelog.format.durable import read_durable
from trucker.changelog.log_creation import create_log
from trucker.errors import SourceError


@pytest.fixture
def source(database: Database, tmp_path: Path) -> Source:
    database.execute("create table t (id int primary key, note text)")
    return prepare(database, tmp_path / "log")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What capture would tell its parent."""
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(capture_module, "tell", lambda event, **facts: events.append({"event": event, **facts}))
    return events


@contextmanager
def in_this_process(task: CaptureTask) -> Iterator[Capture]:
    """Capture in a thread, where its system calls can be made to fail."""
    capture = Capture(task)
    thread = threading.Thread(target=capture.run, name="capture under test")
    thread.start()
    try:
        yield capture
    finally:
        capture.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_full_disk_acknowledges_nothing_and_passes(
    source: Source, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.writev, threading.Event()

    def writev(fd: int, buffers: Sequence[bytes]) -> int:
        if full.is_set():
            os.write(fd, buffers[0][:10])
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(fd, buffers)

    monkeypatch.setattr(os, "writev", writev)
    with in_this_process(source.spec.task()):
        source.database.execute("insert into t values (1)")
        wait_until(lambda: read_durable(source.spec.folder).commit_lsn > source.start)
        before = read_durable(source.spec.folder).commit_lsn
        full.set()
        source.database.execute("insert into t values (2)")
        wait_until(lambda: sum(event["event"] == "reconnecting" for event in told) >= 2)
        assert {event["code"] for event in told if event["event"] == "reconnecting"} == {"TRK305"}
        assert read_durable(source.spec.folder).commit_lsn == before
        assert source.confirmed() <= read_durable(source.spec.folder).seen_lsn
        full.clear()
        wait_until(lambda: read_durable(source.spec.folder).commit_lsn > before)
    assert [inserted(found) for found in source.captured().values()] == [["1"], ["2"]]


def test_a_slot_that_stays_in_use_is_given_up(
    source: Source, told: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "SLOT_SECONDS", 0.2)
    create_log(tmp_path / "second", source.spec.identity, source.start)
    task = source.spec.task()
    other = CaptureTask(
        task.conninfo, task.slot, task.publication, tmp_path / "second", task.source, task.heartbeat, task.segment_bytes
    )
    with capturing(source.spec), pytest.raises(SourceError, match=f'slot "{source.slot}" is in use: pid'):
        Capture(other).run()
    assert told[0]["event"] == "reconnecting"


def test_the_task_survives_json(source: Source) -> None:
    task = source.spec.task()
    assert CaptureTask.from_json(task.to_json()) == task
