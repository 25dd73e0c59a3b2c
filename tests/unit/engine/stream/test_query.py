"""The micro-batch in the driver, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.small_engine import SmallEngine, small_engines
from fixtures.waiting import wait_until
from trucker.change import TableId
from trucker.engine.destination.destination import Destination
from trucker.engine.spark.outcome_stream import Arriving
from trucker.engine.stream.batch_runner import Staging
from trucker.engine.stream.prefetch import Ahead
from trucker.engine.stream.query import SourceQuery
from trucker.engine.task.payload import Failure, Outcome, collect
from trucker.errors import EngineError, JobFailed, SinkError, SinkUnavailable, TruckerError
from trucker.observe.status import TruckPhase
from trucker.sinks.base import Batch, Receipt

Make = Callable[[dict[str, list[str]], dict[str, str]], SmallEngine]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    yield from small_engines(tmp_path_factory, monkeypatch)


@pytest.fixture
def engine(make: Make) -> SmallEngine:
    made = make({"one": ["a"], "two": ["b"]}, {"one": "x", "two": "y"})
    made.run.catch_up()
    return made


def test_a_job_that_fails_is_tried_again_by_everybody(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise JobFailed("its processes are killed")

    engine.commit("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr("trucker.engine.stream.batch_runner.run_job", killed)
        engine.run.batch(5000)
    assert [run.phase for run in engine.run.runs.values()] == [TruckPhase.RETRYING] * 2
    engine.settle()
    engine.check()


def test_a_bug_in_the_driver_stops_the_trucks_it_hits(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was committed before it: nothing is applied from a position that may be wrong."""

    def bug(*_: Any, **__: Any) -> None:
        raise KeyError("a row with 4711 in it")

    engine.commit("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr("trucker.engine.stream.batch_runner.Stager.run", bug)
        engine.run.batch(5000)
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
    begin, take, commit = Ahead.begin, Ahead.take, Destination.commit

    def beginning(self: Ahead, before: Arriving, guess: Callable[[], Staging | None]) -> None:
        begin(self, before, guess)
        begun.set()

    def noting(self: Ahead, staging: Staging | None) -> Arriving | None:
        begun.clear()
        made = self.end is not None
        arriving = take(self, staging)
        found.extend([arriving is not None] if made else [])
        return arriving

    def waiting(self: Destination, batch: Batch, receipts: Sequence[Receipt]) -> Mapping[str, TruckerError]:
        query = engine.run.query
        if begun.is_set() and batch.start == query.main and query.reader.durable().commit_lsn > batch.end:
            wait_until(lambda: query._ahead.end)
        return commit(self, batch, receipts)

    monkeypatch.setattr(Ahead, "begin", beginning)
    monkeypatch.setattr(Ahead, "take", noting)
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
    assert run.record.batches > 0, "a batch with rows for anybody is committed for all"
    before = engine.sinks["y"].open()["two"].lsn
    engine.trucks = {"two": ["b"]}
    engine.start()
    run = engine.run.runs["two"]
    engine.rows.setdefault("c", [])
    engine.trucks["other"], engine.destinations["other"] = ["c"], "y"
    engine.commit("c")
    engine.run.batch(5000)
    assert run.position > run.stored == before
    assert engine.sinks["y"].open()["two"].lsn == before
    del engine.trucks["other"]
    engine.commit("b")
    engine.run.batch(5000)
    assert run.position == run.stored == engine.sinks["y"].open()["two"].lsn
    engine.settle()
    engine.check()


def test_stopping_does_not_wait_for_a_batch_that_waits_for_its_turn() -> None:
    """Spark's stop returns when the batch in hand does; one that is about to begin must not need the turn for that."""
    query = SourceQuery.__new__(SourceQuery)
    query.turn, query.stopping = threading.Lock(), threading.Event()
    query._ahead = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
    called, in_batch = threading.Event(), threading.Event()

    def spark_stops() -> None:
        called.set()
        assert in_batch.wait(20), "the batch did not come to its end"

    query._query = SimpleNamespace(isActive=True, stop=spark_stops)  # type: ignore[assignment]
    query._end_of = lambda _: 1  # type: ignore[method-assign,assignment,return-value]

    def batch() -> None:
        assert called.wait(20)
        query._on_batch(None, 0)
        in_batch.set()

    thread = threading.Thread(target=batch)
    thread.start()
    query.stop()
    thread.join(20)
    assert in_batch.is_set()


@pytest.mark.parametrize(
    ("text", "code", "message", "remedy"),
    [
        (
            "[STREAM_FAILED] Query terminated\nTraceback …\ntrucker.errors.ChangeLogError: [TRK303] it is damaged\n"
            "  next: put the file back\n more",
            "TRK303",
            "it is damaged",
            "put the file back",
        ),
        ("x: [TRK307] it has been pruned", "TRK307", "it has been pruned", ""),
    ],
)
def test_a_log_that_cannot_be_read_is_told_from_a_process_that_died(
    text: str, code: str, message: str, remedy: str
) -> None:
    query = SourceQuery.__new__(SourceQuery)
    query._query = SimpleNamespace(exception=lambda: text)  # type: ignore[assignment]
    found = query.damage()
    assert found is not None
    assert (found.code, found.message, found.remedy) == (code, message, remedy)
    query._query = SimpleNamespace(exception=lambda: "[STREAM_FAILED] the worker was killed")  # type: ignore[assignment]
    assert query.damage() is None
    query._query = SimpleNamespace(exception=lambda: None)  # type: ignore[assignment]
    assert query.damage() is None


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
