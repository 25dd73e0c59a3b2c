"""What is made ahead of its turn counts only where it is what the turn asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.waiting import wait_until
from trucker.change import Lsn, TableId
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.batch_runner import Staging
from trucker.engine.stream.prefetch import Prefetch
from trucker.engine.task.payload import Outcome, StreamBatch, StreamPart
from trucker.engine.transform.assignment import Assignment
from trucker.sinks.batch import Batch
from trucker.sinks.target import Target
from trucker.testing.handmade import schema_of

SCHEMA = schema_of(TableId("public", "t"), {"id": "integer"}, ["id"])
OTHER = schema_of(TableId("public", "other"), {"id": "integer"}, ["id"])


def staging(start: int, end: int, *assignments: Assignment) -> Staging:
    given = assignments or (Assignment("here", Target("truck", SCHEMA, SCHEMA.table), Lsn(start)),)
    batch = StreamBatch(Path("log"), {"here": Batch(Lsn(start), Lsn(end))}, {}, given)
    return Staging(batch, [StreamPart(0, ())], 1 << 30, Lsn(end))


class Tasks:
    """Stands for Spark: what was started, and what was dropped."""

    def __init__(self) -> None:
        self.started: list[Staging] = []
        self.dropped: list[Mapping[str, Batch]] = []
        self.arriving = OutcomeStream(1)
        self.ahead = Prefetch(self.start, self.dropped.append)

    def start(self, staging: Staging) -> OutcomeStream:
        self.started.append(staging)
        return self.arriving

    def made(self, guess: Staging | None) -> None:
        """Let it be made, after a range whose outcomes are all there."""
        asked = []
        self.ahead.begin(OutcomeStream.done(()), lambda: asked.append(1) or guess)
        wait_until(lambda: asked)


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


def test_what_was_guessed_is_taken(tasks: Tasks) -> None:
    guess = staging(1, 2)
    tasks.made(guess)
    assert tasks.ahead.end == Lsn(2)
    assert tasks.ahead.take(staging(1, 2)) is tasks.arriving
    assert tasks.ahead.end is None
    assert tasks.ahead.take(staging(1, 2)) is None
    assert tasks.started == [guess]


def test_the_order_of_targets_makes_no_difference(tasks: Tasks) -> None:
    both = [Assignment("here", Target("truck", schema, schema.table), Lsn(1)) for schema in (SCHEMA, OTHER)]
    tasks.made(staging(1, 2, *both))
    assert tasks.ahead.take(staging(1, 2, *reversed(both))) is tasks.arriving


@pytest.mark.parametrize(
    "asked",
    [
        staging(1, 3),
        staging(2, 3),
        staging(1, 2, Assignment("here", Target("truck", SCHEMA, SCHEMA.table), Lsn(7))),
        staging(1, 2, Assignment("here", Target("another", SCHEMA, SCHEMA.table), Lsn(1))),
        staging(1, 2, Assignment("here", Target("truck", OTHER, SCHEMA.table), Lsn(1))),
        replace(staging(1, 2), parts=[StreamPart(0, ()), StreamPart(1, ())]),
        replace(staging(1, 2), batch=replace(staging(1, 2).batch, room=1)),
    ],
)
def test_nothing_else_is(tasks: Tasks, asked: Staging) -> None:
    """I3: what would be staged otherwise now is staged anew; what was staged in vain goes when it is past."""
    tasks.made(staging(1, 2))
    assert tasks.ahead.take(asked) is None
    tasks.ahead.passed(Lsn(2))
    assert not tasks.dropped, "its tasks may still be at work"
    tasks.arriving.put(0, Outcome())
    tasks.ahead.passed(Lsn(1))
    assert not tasks.dropped, "the range is not past"
    tasks.ahead.passed(Lsn(2))
    assert tasks.dropped == [{"here": Batch(Lsn(1), Lsn(2))}]
    tasks.ahead.passed(Lsn(3))
    assert len(tasks.dropped) == 1


def test_a_turn_that_comes_earlier_waits_for_nothing(tasks: Tasks) -> None:
    before = OutcomeStream(1)
    tasks.ahead.begin(before, lambda: staging(1, 2))
    assert tasks.ahead.take(staging(1, 2)) is None
    before.put(0, Outcome())
    tasks.made(None)
    assert not tasks.started


def test_nothing_is_made_after_what_failed(tasks: Tasks) -> None:
    before = OutcomeStream(1)
    tasks.ahead.begin(before, lambda: staging(1, 2))
    before.end(RuntimeError("Spark is gone"))
    tasks.made(None)
    assert not tasks.started


def test_a_guess_that_fails_is_none(tasks: Tasks) -> None:
    def fail() -> Staging:
        raise OSError("the log cannot be read")

    tasks.ahead.begin(OutcomeStream.done(()), fail)
    tasks.made(None)
    tasks.made(staging(1, 2))
    wait_until(lambda: tasks.started)


def test_when_it_is_closed_nothing_begins(tasks: Tasks) -> None:
    tasks.made(staging(1, 2))
    tasks.ahead.close()
    tasks.ahead.begin(OutcomeStream.done(()), lambda: staging(2, 3))
    assert tasks.ahead.take(staging(2, 3)) is None
    assert len(tasks.started) == 1
