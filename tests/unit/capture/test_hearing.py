"""What the driver knows of the source, from what capture tells it: heard, missing something, or blind."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.capture.supervisor import BLIND_SECONDS, CaptureSupervisor

FULL = {"event": "reconnecting", "stage": "stream", "code": "TRK305", "message": "disk full", "remedy": "make room"}
LOST = {"event": "reconnecting", "stage": "stream", "code": "TRK201", "message": "gone", "remedy": ""}


class Capture:
    """A supervisor that is told what a capture process would tell, and no process."""

    def __init__(self) -> None:
        spec: Any = SimpleNamespace(source=SimpleNamespace(name="shop", slot="s", silence=60.0))
        self.supervisor = CaptureSupervisor(spec)
        self.start = time.time()

    def tell(self, **event: Any) -> None:
        self.supervisor._handle(event, SimpleNamespace())  # type: ignore[arg-type]

    def progress(self, heard: float, settled: float | None) -> None:
        self.tell(event="progress", heard=self.start + heard, settled=None if settled is None else self.start + settled)

    def at(self, seconds: float) -> tuple[float | None, bool, float | None]:
        """When all was in the log, whether that is current, and since when it is blind; in seconds since the start."""
        found = self.supervisor.hearing(self.start + seconds)
        since = None if found.blind_since is None else round(found.blind_since - self.start, 1)
        return None if found.settled is None else round(found.settled - self.start, 1), found.current, since


@pytest.fixture
def capture() -> Capture:
    return Capture()


def test_nothing_is_known_before_the_source_was_heard(capture: Capture) -> None:
    assert capture.at(1) == (None, False, None)
    capture.tell(event="connected")
    assert capture.at(1) == (None, False, None)
    assert capture.at(BLIND_SECONDS + 1) == (None, False, 0.0)


def test_a_quiet_source_is_current_until_it_has_been_silent_for_too_long(capture: Capture) -> None:
    capture.tell(event="connected")
    capture.progress(5, 5)
    assert capture.at(60) == (5.0, True, None)
    assert capture.at(66) == (5.0, False, 5.0)


def test_what_was_heard_and_is_not_in_the_log_is_missing(capture: Capture) -> None:
    """A large transaction, say: that is a lag, and not blindness."""
    capture.tell(event="connected")
    capture.progress(30, 5)
    assert capture.at(31) == (5.0, False, None)


def test_a_source_that_is_lost_is_missed_at_once_and_blind_after_a_while(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trucker.capture")
    capture.tell(event="connected")
    capture.progress(5, 5)
    for _ in range(3):
        capture.tell(**LOST)
    assert capture.at(6) == (5.0, False, None)
    assert capture.at(16) == (5.0, False, 5.0)
    capture.tell(event="connected")
    capture.progress(20, 20)
    assert capture.at(21) == (20.0, True, None)
    lost, back = caplog.records
    assert (lost.getMessage(), back.getMessage()) == ("source unavailable", "source available again")
    assert (vars(lost)["source"], vars(lost)["code"], vars(lost)["reason"]) == ("shop", "TRK201", "gone")
    assert "interrupted_seconds" in vars(back)


def test_a_full_disk_is_not_over_because_the_connection_stands(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trucker.capture")
    capture.progress(-5, -5)
    capture.tell(**FULL)
    capture.tell(event="connected")
    capture.progress(15, -5)
    assert capture.at(15) == (-5.0, False, -5.0)
    assert "TRK305" in (capture.supervisor.trouble or "")
    capture.tell(**FULL)
    capture.tell(event="connected")
    capture.progress(30, 30)
    assert capture.at(31) == (30.0, True, None)
    assert capture.supervisor.trouble is None
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["change log cannot be written", "change log can be written again"]
    full = vars(caplog.records[0])
    assert (full["code"], full["reason"], full["remedy"]) == ("TRK305", "disk full", "make room")
