"""The micro-batch in the driver, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.small_engine import SmallEngine, small_engines
from trucker.change import TableId
from trucker.engine.plan import Failure, Outcome
from trucker.engine.query import SourceQuery, _collect
from trucker.errors import EngineError, JobFailed, SinkError, SinkUnavailable
from trucker.observe.status import TruckPhase
from trucker.sinks.base import Receipt

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
        patched.setattr("trucker.engine.query.run_job", killed)
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
        patched.setattr("trucker.engine.query.SourceQuery._run", bug)
        engine.run.batch(5000)
    for run in engine.run.runs.values():
        assert run.phase is TruckPhase.FAILED
        assert isinstance(run.error, EngineError)
        assert run.error.code == "TRK599"
        assert "4711" not in str(run.error)
    engine.start()
    engine.settle()
    engine.check()


def test_a_quiet_range_is_not_committed_and_not_forgotten(engine: SmallEngine) -> None:
    """Truck two has nothing of what comes for a while: no commit; then its next one builds on what is stored."""
    for _ in range(3):
        engine.commit("a")
        engine.run.batch(5000)
    run = engine.run.runs["two"]
    assert run.batches > 0, "a batch with rows for anybody is committed for all"
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
    receipts, failures = _collect(
        [
            Outcome({"x": [Receipt("b", table, 0, 1)]}, [Failure("a", passing)]),
            Outcome({"x": [Receipt("b", table, 1, 1)]}, [Failure("a", lasting)]),
            Outcome({}, [Failure("a", passing)]),
        ]
    )
    assert failures == {"a": lasting}
    assert [receipt.part for receipt in receipts["x"]] == [0, 1]
