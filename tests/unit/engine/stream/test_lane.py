"""Lanes and the main one, step by step: whoever comes when, whatever becomes of a commit, every row arrives once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.small_engine import SmallEngine, small_engines
from trucker.change import TableId
from trucker.errors import SinkError
from trucker.observe.status import TruckPhase

Make = Callable[[dict[str, list[str]], dict[str, str]], SmallEngine]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    yield from small_engines(tmp_path_factory)


TABLES = ("a", "b", "c")
TRUCKS = {"one": ["a", "b"], "two": ["b"], "three": ["a"]}
DESTINATIONS = {"one": "x", "two": "x", "three": "y"}

# A failure that is settled by a copy, one that keeps the table's position, and none.
CODES = ("TRK406", "TRK425", "")

steps = st.one_of(
    st.tuples(st.just("commit"), st.sets(st.sampled_from(TABLES), min_size=1)),
    st.tuples(st.just("widen"), st.sampled_from(TABLES)),
    st.tuples(st.just("batch"), st.sampled_from((1, 600, 5000))),
    st.tuples(st.just("lane"), st.integers(0, 5)),
    st.tuples(st.just("fault"), st.tuples(st.sampled_from(("x", "y")), st.sampled_from(("before", "after", "late")))),
    st.tuples(st.just("add"), st.tuples(st.sampled_from(tuple(TRUCKS)), st.sampled_from(TABLES))),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("prune"), st.none()),
    st.tuples(st.just("capture"), st.booleans()),
    st.tuples(
        st.just("refuse"), st.tuples(st.sampled_from(("x", "y")), st.sampled_from(TABLES), st.sampled_from(CODES))
    ),
    st.tuples(st.just("retry"), st.booleans()),
)


def _take(engine: SmallEngine, step: tuple[str, object]) -> None:
    match step:
        case ("commit", tables):
            known = engine.all_tables()
            chosen = sorted(t for t in tables if t in known)  # type: ignore[attr-defined]
            if chosen:
                engine.commit(*chosen)
        case ("widen", table):
            engine.widen(str(table))
        case ("batch", size):
            engine.run.batch(int(size))  # type: ignore[call-overload]
        case ("lane", number):
            engine.run.step(int(number))  # type: ignore[call-overload]
        case ("fault", (name, fault)):
            engine.sinks[name].next = fault
        case ("add", (truck, table)):
            if table not in engine.trucks[truck]:
                engine.trucks[truck] = [*engine.trucks[truck], table]
                engine.start()
        case ("restart", _):
            engine.start()
        case ("capture", lags):
            engine.behind = bool(lags)
            engine.capture()
        case ("prune", _):
            engine.run._prune()
        case ("refuse", (name, table, code)):
            refused = engine.sinks[name].refused
            refused.pop(TableId("public", table), None)
            if code:
                refused[TableId("public", table)] = code
        case ("retry", copies):
            engine.run.retry()
            if copies:
                engine.copy()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=60))
def test_every_row_arrives_once(make: Make, script: list[tuple[str, object]]) -> None:
    engine = make(dict(TRUCKS), DESTINATIONS)
    try:
        for step in script:
            _take(engine, step)
        engine.settle()
        engine.check()
    finally:
        engine.close()


def test_a_commit_that_lands_late_is_not_taken_back_by_the_next_one_of_another_table(make: Make) -> None:
    """I3, I4: the next commit is of a table that catches up, and was planned with the ledger of before."""
    engine = make(dict(TRUCKS), DESTINATIONS)
    try:
        for step in (("commit", {"a"}), ("fault", ("x", "late")), ("add", ("one", "c")), ("batch", 1)):
            _take(engine, step)
        engine.settle()
        engine.check()
    finally:
        engine.close()


def test_a_commit_that_lands_after_it_was_asked_about(make: Make) -> None:
    engine = make({"one": ["a"]}, {"one": "x"})
    engine.run.catch_up()
    engine.commit("a")
    engine.sinks["x"].next = "late"
    engine.run.batch(600)
    assert engine.run.runs["one"].phase is TruckPhase.RETRYING
    engine.commit("a")  # so that the lane's first range is another one than the lost
    engine.settle()
    engine.check()


def test_a_commit_that_lands_after_a_start_has_looked(make: Make) -> None:
    """Two tables were copied in turn; of one the driver's last commit says that it follows. The next start finds both
    at one place, and then that commit lands."""
    engine = make({"one": ["a"], "two": ["b"]}, {"one": "x", "two": "y"})
    for table in ("b", "c"):
        engine.trucks["one"] = [*engine.trucks["one"], table]
        engine.start()
    first = next(n for n, (lane, _) in enumerate(engine.run.runners) if lane.tables)
    engine.commit("a")
    engine.run.step(first)
    engine.sinks["x"].next = "late"
    engine.run.batch(1)
    engine.start()
    engine.settle()
    engine.check()


def test_a_table_does_not_arrive_before_its_truck(make: Make) -> None:
    """The truck lags behind the others, its new table does not: it must not be called streaming and passed by."""
    engine = make({"one": ["a"], "two": ["b"]}, {"one": "x", "two": "y"})
    engine.run.catch_up()
    engine.trucks["one"] = ["a", "b"]
    engine.sinks["x"].next = "before"
    engine.commit("a", "b")
    engine.run.batch(5000)
    for _ in range(30):
        engine.commit("a", "b")
        engine.run.batch(5000)
    engine.start()
    late = next(n for n, (lane, _) in enumerate(engine.run.runners) if lane.tables)
    for _ in range(5):
        engine.run.step(late)
        engine.commit("b")
        engine.run.batch(5000)
    engine.settle()
    engine.check()


def test_a_copy_that_is_younger_than_the_log(make: Make) -> None:
    """Another truck's position may lie where capture is not yet: who lags has not caught up by getting there."""
    engine = make({"one": ["a"]}, {"one": "x", "two": "y"})
    engine.run.catch_up()
    engine.commit("a")
    engine.behind = True
    engine.commit("a")
    engine.trucks["two"] = ["b"]
    engine.start()  # copies b at an LSN that the log does not reach
    engine.start()
    engine.run.catch_up()
    engine.capture()
    engine.settle()
    engine.check()


@pytest.mark.parametrize("fault", ["before", "after", "late"])
def test_a_lost_answer_when_a_table_arrives(make: Make, fault: str) -> None:
    engine = make({"one": ["a"]}, {"one": "x"})
    engine.run.catch_up()
    engine.commit("a")
    engine.run.batch(600)
    engine.trucks["one"] = ["a", "b"]
    engine.start()
    engine.commit("a", "b")
    engine.run.catch_up()
    engine.sinks["x"].next = fault
    for _ in range(3):
        engine.commit("b", "a")
        engine.run.batch(5000)
    engine.start()
    engine.settle()
    engine.check()


def test_a_lane_that_failed_keeps_its_share_of_the_log(make: Make) -> None:
    engine = make({"one": ["a"]}, {"one": "x"})
    engine.run.catch_up()
    engine.trucks["one"] = ["a", "b"]
    engine.start()
    engine.commit("b")
    (lane,) = [lane for lane, _ in engine.run.runners if lane.tables]
    engine.run.runs["one"].fail(SinkError("elsewhere"))
    engine.run.step(next(n for n, (found, _) in enumerate(engine.run.runners) if found is lane))
    for _ in range(60):
        engine.commit("a", "b")
    engine.run.stream.main = engine.run.stream.reader.durable().commit_lsn
    engine.run.runs["one"].applied(engine.run.stream.main, 0)
    engine.run._prune()
    assert engine.run.stream.reader.oldest() <= lane.position
