"""The micro-batch in the driver, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fixtures.small_engine import FIRST, SmallEngine, small_engines
from fixtures.waiting import wait_until
from trucker.change import TableId
from trucker.changelog.format.log_range import LogRange
from trucker.engine.destination.destination import Destination
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.batch_runner import Staging
from trucker.engine.stream.prefetch import Prefetch
from trucker.engine.task.payload import Failure, Outcome, collect
from trucker.errors import (
    ChangeLogError,
    ChangeLogUnavailable,
    EngineError,
    JobFailed,
    SinkError,
    SinkUnavailable,
    TruckerError,
)
from trucker.observe.status import TruckPhase
from trucker.sinks.batch import Batch, Receipt

Make = Callable[[dict[str, list[str]], dict[str, str]], SmallEngine]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    yield from small_engines(tmp_path_factory)


@pytest.fixture
def engine(make: Make) -> SmallEngine:
    made = make({"one": ["a"], "two": ["b"]}, {"one": "x", "two": "y"})
    made.run.catch_up()
    return made


def test_a_job_that_fails_is_tried_again_by_everybody(engine: SmallEngine) -> None:
    engine.commit("a", "b")
    engine.jobs.failure = JobFailed("its processes are killed")
    engine.run.batch(5000)
    engine.jobs.failure = None
    assert [run.phase for run in engine.run.runs.values()] == [TruckPhase.RETRYING] * 2
    engine.settle()
    engine.check()


def test_a_bug_in_the_driver_stops_the_trucks_it_hits(engine: SmallEngine) -> None:
    """Whatever was committed before it: nothing is applied from a position that may be wrong."""
    engine.commit("a", "b")
    engine.jobs.failure = KeyError("a row with 4711 in it")
    engine.run.batch(5000)
    engine.jobs.failure = None
    for run in engine.run.runs.values():
        assert run.phase is TruckPhase.FAILED
        assert isinstance(run.error, EngineError)
        assert run.error.code == "TRK599"
        assert "4711" not in str(run.error)
    assert len(engine.bugs) == len(engine.run.runs)
    engine.bugs.clear()
    engine.start()
    engine.settle()
    engine.check()


@pytest.fixture
def taken(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether what was made ahead was what its turn asked for, turn by turn. No commit ends before the next range has
    been made, if there is one."""
    found: list[bool] = []
    begun = threading.Event()
    begin, take, commit = Prefetch.begin, Prefetch.take, Destination.commit

    def beginning(self: Prefetch, before: OutcomeStream, guess: Callable[[], Staging | None]) -> None:
        begin(self, before, guess)
        begun.set()

    def noting(self: Prefetch, staging: Staging | None) -> OutcomeStream | None:
        begun.clear()
        made = self.end is not None
        arriving = take(self, staging)
        found.extend([arriving is not None] if made else [])
        return arriving

    def waiting(self: Destination, batch: Batch, receipts: Sequence[Receipt]) -> Mapping[str, TruckerError]:
        stream = engine.run.stream
        if begun.is_set() and batch.start == stream.main and stream.reader.durable().commit_lsn > batch.end:
            wait_until(lambda: stream._ahead.end)
        return commit(self, batch, receipts)

    monkeypatch.setattr(Prefetch, "begin", beginning)
    monkeypatch.setattr(Prefetch, "take", noting)
    monkeypatch.setattr(Destination, "commit", waiting)
    return found


def test_a_range_is_staged_while_the_one_before_it_is_committed(engine: SmallEngine, taken: list[bool]) -> None:
    for _ in range(30):
        engine.commit("a", "b")
    while engine.run.batch(600):
        pass
    assert len(taken) > 3
    assert all(taken)
    engine.settle()
    engine.check()


def test_what_was_staged_ahead_is_staged_anew_when_a_truck_is_left_behind(
    engine: SmallEngine, taken: list[bool]
) -> None:
    """I3, I8: the range was made for both trucks; one of them cannot go on, and comes to it later by itself."""
    for _ in range(30):
        engine.commit("a", "b")
    engine.run.batch(600)
    engine.sinks["x"].next = "before"
    engine.run.batch(600)
    assert [run.phase for run in engine.run.runs.values()] == [TruckPhase.RETRYING, TruckPhase.STREAMING]
    taken.clear()
    engine.run.batch(600)
    assert taken[:1] == [False]
    engine.settle()
    engine.check()


def test_a_quiet_range_is_not_committed_and_not_forgotten(engine: SmallEngine) -> None:
    """Truck two has nothing of what comes for a while: no commit; then its next one builds on what is stored."""
    for _ in range(3):
        engine.commit("a")
        engine.run.batch(5000)
    run = engine.run.runs["two"]
    assert run.life.batches > 0, "a batch with rows for anybody is committed for all"
    before = engine.sinks["y"].open().states()["two"].lsn
    engine.trucks = {"two": ["b"]}
    engine.start()
    run = engine.run.runs["two"]
    engine.rows.setdefault("c", [])
    engine.trucks["other"], engine.destinations["other"] = ["c"], "y"
    engine.commit("c")
    engine.run.batch(5000)
    assert run.position > run.stored == before
    assert engine.sinks["y"].open().states()["two"].lsn == before
    del engine.trucks["other"]
    engine.commit("b")
    engine.run.batch(5000)
    assert run.position == run.stored == engine.sinks["y"].open().states()["two"].lsn
    engine.settle()
    engine.check()


def test_stopping_waits_for_the_batch_in_hand_and_for_no_other(engine: SmallEngine) -> None:
    """A batch that waits for its turn when the stop begins returns without having done anything."""
    engine.commit("a")
    stream = engine.run.stream
    on_batch, begun = stream.on_batch, threading.Event()

    def noted(batch: LogRange) -> None:
        begun.set()
        on_batch(batch)

    stream.on_batch = noted  # type: ignore[method-assign]
    with stream.turn:
        stream.start(once=False)
        assert begun.wait(20)
        stop = threading.Thread(target=stream.stop)
        stop.start()
        wait_until(stream.stopping.is_set)
        assert stream.active
    stop.join(20)
    assert not stream.active
    assert stream.main == FIRST
    assert stream.failure() is None


@pytest.mark.parametrize(
    ("error", "failure", "damage"),
    [
        (ChangeLogError("it is damaged", code="TRK303", remedy="put it back"), "[TRK303] it is damaged", True),
        (ChangeLogUnavailable("it is away"), "[TRK310] it is away", False),
        (KeyError("a row"), "KeyError", False),
    ],
)
def test_an_unreadable_log_and_an_unreachable_log_are_different_errors(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, failure: str, damage: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    engine.commit("a")
    stream = engine.run.stream
    monkeypatch.setattr(stream, "apply", fail)
    stream.start(once=False)
    wait_until(lambda: not stream.active)
    assert stream.failure() == failure
    assert (stream.damage() is error) is damage


def test_what_is_durable_at_the_start_is_taken_in_batches_and_no_more_with_once(engine: SmallEngine) -> None:
    """Each begins where the one before ended; what comes while they are applied is left."""
    stream, ends = engine.run.stream, list[int]()
    for _ in range(4):
        engine.commit("a")
    last = stream.reader.durable().commit_lsn
    apply = stream.apply

    def noted(runs: Any, batch: LogRange) -> Any:
        assert batch.start == (ends[-1] if ends else FIRST)
        ends.append(batch.end)
        engine.commit("a")
        return apply(runs, batch)

    stream.apply = noted  # type: ignore[method-assign]
    stream.max_bytes = 1
    stream.start(once=True)
    wait_until(lambda: not stream.active)
    assert stream.failure() is None
    assert len(ends) == 4
    assert ends[-1] == stream.main == last


def test_workers_come_up_a_while_after_the_start(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a batch comes or not; never with once, which ends when it has taken what is there."""
    stream, asked = engine.run.stream, threading.Event()
    monkeypatch.setattr(stream._stager, "bring_up_workers", asked.set)
    stream._on_turn()
    stream.start(once=True)
    wait_until(lambda: not stream.active)
    assert not asked.is_set()
    stream.start(once=False)
    assert asked.wait(20)
    stream.stop()


def test_of_several_reasons_the_lasting_one_counts() -> None:
    lasting, passing = SinkError("lasting"), SinkUnavailable("passing")
    table = TableId("public", "t")
    receipts, failures = collect(
        [
            Outcome({"x": [Receipt("b", table, 0, 1)]}, [Failure("a", passing)]),
            Outcome({"x": [Receipt("b", table, 1, 1)]}, [Failure("a", lasting)]),
            Outcome({}, [Failure("a", passing)]),
        ]
    )
    assert failures == {"a": lasting}
    assert [receipt.part for receipt in receipts["x"]] == [0, 1]
