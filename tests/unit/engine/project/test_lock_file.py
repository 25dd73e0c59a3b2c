"""The lock on a project's state folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from trucker.engine.project.lock import ProjectLock
from trucker.errors import LockedError


def test_the_holder_is_named(tmp_path: Path) -> None:
    first = ProjectLock(tmp_path / "state")
    assert not first.held()
    first.acquire(wait=False)
    assert first.held()
    with pytest.raises(LockedError, match=f"process {os.getpid()} on "):
        ProjectLock(tmp_path / "state").acquire(wait=False)
    with pytest.raises(LockedError) as caught:  # by a command that has no --wait
        ProjectLock(tmp_path / "state").acquire(wait=False, remedy="stop that instance")
    assert caught.value.remedy == "stop that instance"
    first.release()
    assert not first.held()
    first.release()


def test_waiting_ends_with_the_holder(tmp_path: Path) -> None:
    first, second = ProjectLock(tmp_path), ProjectLock(tmp_path)
    first.acquire(wait=False)
    waiting = threading.Thread(target=lambda: second.acquire(wait=True))
    waiting.start()
    assert waiting.is_alive()
    first.release()
    waiting.join(20)
    assert not waiting.is_alive()
    assert first.held()
    second.release()


def test_a_status_query_does_not_block_a_start(tmp_path: Path) -> None:
    """`trucker status` in a loop must not make `trucker run` say that the project is running."""
    lock, done = ProjectLock(tmp_path), threading.Event()
    lock.acquire(wait=False)
    lock.release()

    def ask() -> None:
        while not done.is_set():
            lock.held()

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(200):
            other = ProjectLock(tmp_path)
            other.acquire(wait=False)
            other.release()
    finally:
        done.set()
        for thread in asking:
            thread.join()


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}"])
def test_a_holder_that_has_not_written_its_name_yet(tmp_path: Path, content: str) -> None:
    first = ProjectLock(tmp_path)
    first.acquire(wait=False)
    (tmp_path / "lock").write_text(content)
    with pytest.raises(LockedError, match="a process that is starting"):
        ProjectLock(tmp_path).acquire(wait=False)
    first.release()
