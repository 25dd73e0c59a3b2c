"""The life of a truck and its tables: which steps are allowed, and that listeners and the status follow every one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.capture.supervisor import Hearing
from trucker.change import Lsn, TableId
from trucker.engine.project.truck_status import TruckStatuses
from trucker.engine.truck.life import (
    ENDED,
    TABLE_STEPS,
    TRUCK_STEPS,
    IllegalStep,
    LifeEvent,
    TableChanged,
    TablePhase,
    TableStep,
    TruckAdvanced,
    TruckChanged,
    TruckLife,
    TruckStep,
)
from trucker.engine.truck.table_failure import RetryWaits
from trucker.engine.truck.truck import InputTable, Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SinkError, SinkUnavailable, SourceUnavailable
from trucker.observe.status import TruckPhase, TruckStatus
from trucker.sinks.batch import Phase, TableState, TruckState

TABLES = tuple(TableId("public", name) for name in "abc")
A, B, C = TABLES


class Mirror:
    """What a listener knows by events alone. An event that does not begin where the last one ended is out of order."""

    def __init__(self) -> None:
        self.phase = TruckPhase.STARTING
        self.error: object = None
        self.position = Lsn(0)
        self.rows = 0
        self.tables = dict.fromkeys(TABLES, TablePhase.WAITING)
        self.events: list[LifeEvent] = []

    def __call__(self, event: LifeEvent) -> None:
        self.events.append(event)
        match event:
            case TruckChanged():
                assert event.before is self.phase
                self.phase, self.error = event.after, event.life.error
            case TruckAdvanced():
                assert event.before == self.position
                assert event.life.rows >= self.rows
                self.position, self.rows = event.after, event.life.rows
            case TableChanged():
                assert event.before is self.tables[event.table]
                self.tables[event.table] = event.after


def _run(mirror: Mirror | None = None) -> TruckRun:
    truck = Truck("t", "source", "store", {table: InputTable(table, table, ()) for table in TABLES})
    return TruckRun(truck, waits=RetryWaits(0.0, 0.0), listeners=[mirror] if mirror else [])


def _status(run: TruckRun) -> TruckStatus:
    store: Any = SimpleNamespace(letters=lambda _: 0)
    source: Any = SimpleNamespace(
        name="source",
        source_lsn=Lsn(0),
        destinations={"store": store},
        durable=None,
        trouble=None,
        hearing=lambda _: Hearing(),
    )
    return TruckStatuses().of(source, run, None, running=True)


tables = st.sets(st.sampled_from(TABLES), min_size=1).map(sorted)
lsns = st.integers(1, 50).map(Lsn)
states = st.dictionaries(st.sampled_from(TABLES), st.builds(TableState, st.sampled_from(Phase), lsns))

Call = tuple[str, Callable[[TruckRun], object]]


def _call(name: str, *arguments: object, **named: object) -> Call:
    return name, lambda run: getattr(run, name)(*arguments, **named)


away, refused = SinkUnavailable("away"), SinkError("refused")
calls: st.SearchStrategy[Call] = st.one_of(
    st.sampled_from(
        [
            _call("catch_up"),
            _call("stream"),
            _call("retry_later", away),
            _call("fail", refused),
            _call("fail"),
            _call("failed_again", away),
            _call("pause"),
            _call("stop"),
            _call("due_tables"),
        ]
    ),
    st.builds(lambda t, w: _call("begin_copy", t, whole=w), tables, st.booleans()),
    st.builds(lambda t, lsn, w: _call("end_copy", t, lsn, 1, whole=w), tables, lsns, st.booleans()),
    st.builds(lambda t, lsn: _call("follow", t, lsn), tables, lsns),
    st.builds(lambda t: _call("leave", t), st.sampled_from(TABLES)),
    st.builds(lambda t: _call("copy_again", dict.fromkeys(t, "why")), tables),
    st.builds(lambda t, alone: _call("retry_tables", t, away, alone=alone), tables, st.booleans()),
    st.builds(lambda t: _call("relieve", t), tables),
    st.builds(
        lambda t, lsn, h: _call("set_aside", t, refused, lsn, held=h), st.sampled_from(TABLES), lsns, st.booleans()
    ),
    st.builds(lambda end, p: _call("applied", end, 2, persisted=p), st.none() | lsns, st.booleans()),
    st.builds(lambda lsn: _call("keep_from", lsn), lsns),
    st.builds(lambda lsn, found: _call("reconcile", TruckState(lsn, found)), lsns, states),
    st.builds(lambda t, names: _call("leave_out", t, names), st.sampled_from(TABLES), st.sampled_from([(), ("x",)])),
)

MOVES_BACK = {"keep_from", "reconcile", "end_copy"}


@given(st.lists(calls, max_size=40))
def test_listeners_and_status_show_what_is_known(script: list[Call]) -> None:
    mirror = Mirror()
    run = _run(mirror)
    for name, call in script:
        was, heard = run.life, len(mirror.events)
        try:
            call(run)
        except IllegalStep:
            assert run.life is was, "an illegal step changes nothing"
            assert len(mirror.events) == heard, "and nobody hears of it"
            assert not was.has_ended, "a truck that has ended ignores what comes too late"
        life, status = run.life, _status(run)
        assert (mirror.phase, mirror.error, mirror.position) == (life.phase, life.error, life.position)
        assert mirror.tables == life.tables
        assert (status.phase, status.rows) == (mirror.phase, mirror.rows)
        assert status.error == (str(mirror.error) if mirror.error else None)
        assert status.position == (str(mirror.position) if mirror.position else None)
        assert [failed.table for failed in status.failed] == [str(table) for table in sorted(life.failed)]
        _check(was, life, name)


def _check(was: TruckLife, life: TruckLife, name: str) -> None:
    """What always holds, and of every change."""
    streaming = {table for table, phase in life.tables.items() if phase is TablePhase.STREAMING}
    assert life.floors.keys() == streaming
    assert life.arriving.keys() <= life.floors.keys()
    assert {table for table, phase in life.tables.items() if phase is TablePhase.FAILED} <= life.failed.keys()
    assert life.troubles.keys().isdisjoint(streaming)
    assert was.own not in ENDED or life.own is was.own or _is_paused_after_failure(was, life), "an end is final"
    assert life.own is not TruckPhase.PAUSED or life.error is None, "a truck that is paused waits for nothing else"
    assert life.stored <= life.position
    assert name in MOVES_BACK or life.position >= was.position
    assert life.rows >= was.rows


def _is_paused_after_failure(was: TruckLife, life: TruckLife) -> bool:
    return (was.own, life.own) == (TruckPhase.FAILED, TruckPhase.PAUSED)


ALLOWED_OF_TRUCKS = {
    TruckPhase.STARTING: "copy catch_up stream retry fail pause stop",
    TruckPhase.COPYING: "copy catch_up stream retry fail pause stop",
    TruckPhase.CATCHING_UP: "copy catch_up stream retry fail pause stop",
    TruckPhase.RETRYING: "copy catch_up stream retry fail pause stop",
    TruckPhase.STREAMING: "retry fail pause stop",
    TruckPhase.FAILED: "pause",
}

ALLOWED_OF_TABLES = {
    TablePhase.WAITING: "copy catch_up follow retry set_aside",
    TablePhase.COPYING: "catch_up follow retry set_aside",
    TablePhase.CATCHING_UP: "await_copy follow retry set_aside",
    TablePhase.STREAMING: "await_copy catch_up set_aside",
    TablePhase.RETRYING: "await_copy copy follow retry set_aside",
    TablePhase.FAILED: "await_copy catch_up set_aside",
}


@pytest.mark.parametrize("phase", TruckPhase)
def test_the_steps_of_a_truck(phase: TruckPhase) -> None:
    life = TruckLife(phase)
    for step in TruckStep:
        if step.name.lower() in ALLOWED_OF_TRUCKS.get(phase, "").split():
            assert life.stepped(step, away).own is TRUCK_STEPS[step][1]
        elif phase in ENDED:
            assert life.stepped(step, away) is life
        else:
            with pytest.raises(IllegalStep, match=phase.value):
                life.stepped(step, away)


@pytest.mark.parametrize("phase", TablePhase)
def test_the_steps_of_a_table(phase: TablePhase) -> None:
    life = TruckLife(TruckPhase.STREAMING, tables={A: phase})
    for step in TableStep:
        if step.name.lower() in ALLOWED_OF_TABLES[phase].split():
            assert life.tables_stepped(step, [A]).tables == {A: TABLE_STEPS[step][1]}
        else:
            with pytest.raises(IllegalStep, match=r"table public\.a"):
                life.tables_stepped(step, [A])


def test_a_truck_is_retrying_while_one_of_its_tables_is() -> None:
    """Whatever the truck itself does meanwhile, and until the table follows it."""
    run = _run()
    run.begin_copy(TABLES, whole=True)
    run.end_copy([A, B], Lsn(10), 5, whole=True)
    truncated = SourceUnavailable("truncated")
    run.retry_tables([C], truncated)
    run.catch_up()
    run.stream()
    assert (run.phase, run.error) == (TruckPhase.RETRYING, truncated)
    run.begin_copy([C], whole=False)
    run.end_copy([C], Lsn(20), 1, whole=False)
    assert (run.phase, run.error) == (TruckPhase.RETRYING, truncated)
    run.follow([C], Lsn(20))
    assert (run.phase, run.error) == (TruckPhase.STREAMING, None)
    assert run.floors == {A: Lsn(10), B: Lsn(10), C: Lsn(20)}


def test_a_truck_that_has_failed_is_not_brought_back() -> None:
    """A lane or a copy of it, in another thread, may be about to say that it goes on."""
    run = _run()
    run.begin_copy(TABLES, whole=True)
    run.end_copy(TABLES, Lsn(10), 5, whole=True)
    assert run.fail(refused)
    assert not run.catch_up()
    assert not run.stream()
    assert not run.retry_later(away)
    assert not run.fail(away)
    run.follow(TABLES, Lsn(20))
    assert (run.phase, run.error) == (TruckPhase.FAILED, refused)


def test_a_truck_that_is_paused_goes_on_in_a_new_run_only() -> None:
    run = _run()
    run.begin_copy(TABLES, whole=True)
    run.end_copy(TABLES, Lsn(10), 5, whole=True)
    run.copy_again({C: "why"})
    run.retry_tables([C], away)
    assert run.pause()
    assert not run.pause(), "it is paused already"
    assert (run.phase, run.error, run.has_ended) == (TruckPhase.PAUSED, None, True)
    for late in (run.catch_up, run.stream, run.fail, lambda: run.retry_later(away)):
        assert not late()
    run.stop()
    assert run.phase is TruckPhase.PAUSED, "the end of the project does not end the pause"
    again = run.started_again()
    assert (again.phase, again.stored) == (TruckPhase.CATCHING_UP, Lsn(10))
    assert again.stream()


def test_what_failed_until_the_next_start_cannot_be_paused_and_so_not_resumed_before() -> None:
    """The next start checks the cause; a resume does not."""
    run = _run()
    run.fail(refused)
    assert run.is_over
    assert not run.pause()
    assert (run.phase, run.error) == (TruckPhase.FAILED, refused)


def test_an_advance_is_kept_though_the_truck_has_failed() -> None:
    """The destination has committed it: the log need not be kept for it."""
    run = _run()
    run.fail(refused)
    run.applied(Lsn(30), 1)
    assert (run.position, run.stored) == (Lsn(30), Lsn(30))


def test_threads_lose_no_change_and_listeners_hear_of_all_in_order() -> None:
    mirror, each = Mirror(), 300
    run = _run(mirror)
    start = threading.Barrier(4)

    def advance() -> None:
        start.wait()
        for _ in range(each):
            run.applied(None, 1)

    def retry() -> None:
        start.wait()
        for _ in range(each):
            run.retry_later(away)
            run.catch_up()

    threads = [threading.Thread(target=work) for work in (advance, advance, advance, retry)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.life.rows == run.life.batches == mirror.rows == 3 * each
    rows = [event.life.rows for event in mirror.events if isinstance(event, TruckAdvanced)]
    assert rows == list(range(1, 3 * each + 1))
    changes = [event.after for event in mirror.events if isinstance(event, TruckChanged)]
    assert changes == [TruckPhase.RETRYING, TruckPhase.CATCHING_UP] * each


def test_a_run_that_is_started_again_is_the_only_one_heard() -> None:
    mirror = Mirror()
    old = _run(mirror)
    old.fail(refused)
    new = old.started_again()
    heard = len(mirror.events)
    old.applied(Lsn(30), 1)
    assert len(mirror.events) == heard
    mirror.phase = new.phase
    new.stream()
    assert isinstance(mirror.events[-1], TruckChanged)
    assert mirror.phase is TruckPhase.STREAMING
