"""Waiting longer and longer."""

from __future__ import annotations

import threading
from unittest.mock import Mock

from trucker.process.backoff import Backoff


def _waits(backoff: Backoff, count: int) -> list[float]:
    stop = Mock(spec=threading.Event)
    for _ in range(count):
        backoff.wait(stop)
    return [call.args[0] for call in stop.wait.call_args_list]


def test_each_wait_is_about_twice_the_one_before_up_to_the_longest() -> None:
    waits = _waits(Backoff(1.0, 10.0), 8)
    for wait, expected in zip(waits, (1, 2, 4, 8, 10, 10, 10, 10), strict=True):
        assert 0.8 * expected <= wait <= 1.2 * expected


def test_after_success_it_begins_anew() -> None:
    backoff = Backoff(1.0, 10.0)
    _waits(backoff, 5)
    assert backoff.tries == 5
    backoff.reset()
    assert backoff.tries == 0
    assert _waits(backoff, 1)[0] <= 1.2


def test_it_ends_immediately_when_it_is_stopped() -> None:
    stop = threading.Event()
    stop.set()
    Backoff(3600.0).wait(stop)
