"""Failpoints: off by default, told by the environment, over when their file is there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trucker import failpoint
from trucker.failpoint import VARIABLE, ArmedPoint, InjectedError, arm, hits, parse, reach

POINT = "sink.commit.before"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm({})


def test_nothing_is_armed_by_default() -> None:
    arm({})
    for point in failpoint.POINTS:
        reach(point)


def test_what_the_variable_says() -> None:
    assert parse(" capture.write.after=kill@3:/tmp/a ; sink.commit.before=full;") == {
        "capture.write.after": ArmedPoint("kill", 3, "/tmp/a"),
        "sink.commit.before": ArmedPoint("full", 1, ""),
    }


@pytest.mark.parametrize("text", ["nowhere=kill", "sink.commit.before=explode", "sink.commit.before=hang", "x"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        parse(text)


def test_an_error_from_the_nth_time_on() -> None:
    arm({VARIABLE: f"{POINT}=error@2"})
    reach(POINT)
    for _ in range(2):
        with pytest.raises(InjectedError, match=POINT):
            reach(POINT)
    assert hits(POINT) == 3


def test_an_error_with_a_path_strikes_once(tmp_path: Path) -> None:
    arm({VARIABLE: f"{POINT}=error:{tmp_path / 'done'}"})
    with pytest.raises(InjectedError):
        reach(POINT)
    reach(POINT)
    arm({VARIABLE: f"{POINT}=error:{tmp_path / 'done'}"})
    reach(POINT)


def test_a_disk_is_full_until_there_is_room(tmp_path: Path) -> None:
    arm({VARIABLE: f"{POINT}=full:{tmp_path / 'room'}"})
    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as full:
            reach(POINT)
        assert full.value.errno == errno.ENOSPC
    (tmp_path / "room").touch()
    reach(POINT)


def test_a_hang_ends_when_the_file_is_there(tmp_path: Path) -> None:
    arm({VARIABLE: f"{POINT}=hang:{tmp_path / 'go'}"})
    thread = threading.Thread(target=reach, args=[POINT])
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    (tmp_path / "go").touch()
    thread.join(10)
    assert not thread.is_alive()


def test_a_kill_is_a_kill(tmp_path: Path) -> None:
    code = f"from trucker.failpoint import reach\nfor _ in range(3): reach({POINT!r})"
    environment = {**os.environ, VARIABLE: f"{POINT}=kill@3:{tmp_path / 'done'}"}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert subprocess.run(command, env=environment, check=False).returncode == 0
