"""How long what has failed waits before it is tried again."""

from __future__ import annotations

import pytest

from trucker.change import Lsn, TableId
from trucker.engine.truck import table_failure
from trucker.engine.truck.table_failure import REST_FACTOR, Retry, RetryWaits
from trucker.engine.truck.truck import Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SinkError
from trucker.observe.status import TruckPhase


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [3.0]  # a machine that has just booted
    monkeypatch.setattr(table_failure.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(table_failure.random, "uniform", lambda *_: 1.0)
    return now


def test_waits_double_up_to_the_longest(clock: list[float]) -> None:
    retry = Retry(RetryWaits(60, 200))
    for wait in (60, 120, 200, 200):
        retry.failed()
        clock[0] += wait - 1
        assert not retry.due
        clock[0] += 1
        assert retry.due
        retry.begin()
        assert not retry.due


def test_after_a_long_try_comes_a_long_wait(clock: list[float]) -> None:
    """A table that takes an hour to copy, and is refused at the end, is not copied all day."""
    retry = Retry(RetryWaits(60, 200))
    retry.failed()
    clock[0] += 60
    retry.begin()
    clock[0] += 3600
    retry.failed()
    clock[0] += REST_FACTOR * 3600 - 1
    assert not retry.due
    clock[0] += 1
    assert retry.due


def test_the_number_of_failures_has_no_end() -> None:
    assert RetryWaits(60, 200).before(10_000) <= 240


def test_what_the_stream_does_not_tell_is_not_tried_again(clock: list[float]) -> None:
    """Applying the stream once more would succeed and hide the cause: only a start looks for it again."""
    table, waits = TableId("public", "t"), RetryWaits(60, 200)
    run = TruckRun(Truck("a", "source", "store", {}), waits=waits, retry=Retry(waits))
    run.set_aside(table, SinkError("stale", code="TRK426"), Lsn(1), held=True, again=False)
    run.give_up(SinkError("stale", code="TRK426"))
    clock[0] += 1_000_000
    assert run.phase is TruckPhase.FAILED
    assert run.is_over
    assert run.retry is not None
    assert not run.retry.due
    assert not run.failed[table].retry.due


def test_a_truck_that_streams_again_begins_to_count_anew(clock: list[float]) -> None:
    """A day of streaming is no try that took a day."""
    retry = Retry(RetryWaits(60, 200))
    retry.failed()
    clock[0] += 60
    retry.begin()
    retry.succeeded()
    clock[0] += 86_400
    retry.failed()
    clock[0] += 60
    assert retry.due
