"""A destination in the driver: commits for as many trucks as it can, and says why not for the others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.sinks.batch import Batch, Phase, Receipt, TableState
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Entry, Ledger
from trucker.sinks.target import Target
from trucker.testing.faults import Fail, FaultySink
from trucker.testing.memory import MemorySink, drop_store, store

T = TableId("public", "t")


def target(truck: str, *columns: str) -> Target:
    names = columns or ("id",)
    return Target(truck, TableSchema(T, tuple(Column(name, 25) for name in names)), TableId(truck, "t"))


@pytest.fixture
def sink() -> Iterator[FaultySink]:
    yield FaultySink(MemorySink("destination under test"))
    drop_store("destination under test")


@pytest.fixture
def destination(sink: FaultySink) -> Destination:
    spec: Any = SinkSpec(SimpleNamespace(name="store"), SimpleNamespace())  # type: ignore[arg-type]
    made = Destination(spec, sink)
    made.open()
    return made


def _batch(*trucks: str, start: int = 0, end: int = 10) -> Batch:
    return Batch(Lsn(start), Lsn(end), {truck: Lsn(end) for truck in trucks})


def _positions() -> dict[str, int]:
    return {truck: int(lsn) for truck, lsn in store("destination under test").ledgers[""].positions.items()}


def test_a_truck_that_fails_is_left_out_and_the_others_are_committed(
    destination: Destination, sink: FaultySink
) -> None:
    reason, before = SinkError("its own fault"), time.monotonic()
    sink.script("publish", Fail(TruckFailed("b", reason)))
    assert destination.commit(_batch("a", "b", "c"), ()) == {"b": reason}
    assert _positions() == {"a": 10, "c": 10}
    assert destination.committed_at >= before


def test_when_all_fail_nothing_is_committed(destination: Destination, sink: FaultySink) -> None:
    first, second = SinkError("one"), SinkError("two")
    sink.script("publish", Fail(TruckFailed("a", first)), Fail(TruckFailed("b", second)))
    assert destination.commit(_batch("a", "b"), ()) == {"a": first, "b": second}
    assert _positions() == {}
    assert destination.committed_at == -math.inf


def test_an_unavailable_destination_fails_all_remaining_trucks(destination: Destination, sink: FaultySink) -> None:
    reason, away = SinkError("its own fault"), SinkUnavailable("away")
    sink.script("publish", Fail(TruckFailed("a", reason)), Fail(away))
    assert destination.commit(_batch("a", "b", "c"), ()) == {"a": reason, "b": away, "c": away}


def test_a_bug_of_the_sink_fails_its_trucks_and_shows_no_data(destination: Destination, sink: FaultySink) -> None:
    sink.script("publish", Fail(ValueError("a row with 4711 in it")))
    failures = destination.commit(_batch("a"), ())
    assert failures["a"].code == "TRK499"
    assert not failures["a"].transient
    assert "4711" not in str(failures["a"])
    assert "ValueError" in str(failures["a"])


def test_a_batch_without_trucks_is_not_committed(destination: Destination, sink: FaultySink) -> None:
    assert destination.commit(Batch(Lsn(0), Lsn(10)), ()) == {}
    assert "publish" not in sink.calls


def test_a_table_is_prepared_once_per_shape_and_connection(destination: Destination, sink: FaultySink) -> None:
    for shape in (target("a"), target("a"), target("a", "id", "more"), target("b")):
        destination.prepare(shape)
    assert sink.calls.count("prepare") == 3
    destination.open()
    destination.prepare(target("b"))
    assert sink.calls.count("prepare") == 4


def test_a_failed_preparation_is_tried_again(destination: Destination, sink: FaultySink) -> None:
    sink.script("prepare", Fail(SinkUnavailable("away")))
    with pytest.raises(SinkUnavailable):
        destination.prepare(target("a"))
    destination.prepare(target("a"))
    assert sink.calls.count("prepare") == 2


def test_a_batch_without_some_trucks() -> None:
    state = TableState(Phase.CATCHING_UP, Lsn(5))
    batch = Batch(
        Lsn(0), Lsn(9), {"a": Lsn(9), "b": Lsn(9)}, {("a", T): state, ("b", T): state}, (target("a"), target("b"))
    )
    assert batch.trucks == {"a", "b"}
    fine = batch.without({"a"})
    assert fine.trucks == {"b"}
    assert (dict(fine.positions), dict(fine.tables)) == ({"b": Lsn(9)}, {("b", T): state})
    assert [found.truck for found in fine.targets] == ["b"]
    assert fine.name == batch.name


def test_the_receipts_of_a_truck_that_fails_are_left_out(
    destination: Destination, sink: FaultySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts, published = [Receipt("a", T, 0, 1), Receipt("b", T, 0, 1)], list[list[Receipt]]()

    def publish(delivery: Delivery) -> None:
        published.append(list(delivery.receipts))
        if len(published) == 1:
            raise TruckFailed("a", SinkError("its own fault"))

    monkeypatch.setattr(sink, "publish", publish)
    destination.commit(_batch("a", "b"), receipts)
    assert published == [receipts, receipts[1:]]


# -- what a batch builds on --------------------------------------------------------------------------------------------


def _ledger(position: int, phase: Phase = Phase.STREAMING, lsn: int = 1) -> Ledger:
    return Ledger({"a": Lsn(position)}, {("a", T): Entry(phase, Lsn(lsn), TableId("a", "t"))})


@pytest.mark.parametrize(("stored", "refused"), [(5, False), (4, True), (6, True), (10, True), (11, True)])
def test_a_truck_must_be_where_it_is_believed_to_be(stored: int, refused: bool) -> None:
    batch = Batch(Lsn(5), Lsn(10), {"a": Lsn(10)}, targets=(target("a"),), builds_on={("a", None): Lsn(5)})
    if refused:
        with pytest.raises(SinkUnavailable):
            _ledger(stored).plan(batch)
    else:
        assert _ledger(stored).plan(batch).positions == {"a": Lsn(10)}


@pytest.mark.parametrize(
    ("phase", "lsn", "refused"),
    [
        (Phase.CATCHING_UP, 5, False),
        (Phase.CATCHING_UP, 7, True),
        (Phase.CATCHING_UP, 10, True),
        (Phase.STREAMING, 5, True),
    ],
)
def test_a_table_must_be_where_it_is_believed_to_be(phase: Phase, lsn: int, refused: bool) -> None:
    state = {("a", T): TableState(Phase.CATCHING_UP, Lsn(10))}
    batch = Batch(Lsn(5), Lsn(10), tables=state, targets=(target("a"),), builds_on={("a", T): Lsn(5)})
    if refused:
        with pytest.raises(SinkUnavailable):
            _ledger(3, phase, lsn).plan(batch)
    else:
        assert _ledger(3, phase, lsn).plan(batch).apply == {("a", T)}


def test_a_table_arrives_in_its_trucks_own_commit() -> None:
    """The position, the table's state and its rows move as one."""
    batch = Batch(
        Lsn(3),
        Lsn(10),
        {"a": Lsn(10)},
        {("a", T): TableState(Phase.STREAMING, Lsn(5))},
        (target("a"),),
        builds_on={("a", None): Lsn(3), ("a", T): Lsn(5)},
    )
    before = _ledger(3, Phase.CATCHING_UP, 5)
    plan = before.plan(batch)
    assert plan.apply == {("a", T)}
    after = before.after(plan).states()["a"]
    assert (after.lsn, after.tables[T]) == (Lsn(10), TableState(Phase.STREAMING, Lsn(5)))


def test_an_output_that_moved_is_refused() -> None:
    moved = Target("a", target("a").source, TableId("elsewhere", "t"))
    with pytest.raises(TruckFailed) as failed:
        _ledger(3).plan(Batch(Lsn(3), Lsn(10), {"a": Lsn(10)}, targets=(moved,)))
    assert failed.value.code == "TRK418"
    again: Sequence[Target] = (moved,)
    copying = {("a", T): TableState(Phase.COPYING, Lsn(9))}
    plan = _ledger(3).plan(Batch(Lsn(9), Lsn(9), tables=copying, targets=tuple(again), snapshot="copy"))
    assert [copy.ours for copy in plan.copies] == [False]


def test_a_truck_that_is_only_forgotten_may_fail(
    destination: Destination, sink: FaultySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is tried again without it, and not with it for ever."""
    reason, forgotten = SinkError("its own fault"), list[tuple[str, ...]]()

    def publish(delivery: Delivery) -> None:
        forgotten.append(tuple(sorted(delivery.plan.forgotten)))
        if "b" in delivery.plan.forgotten:
            raise TruckFailed("b", reason)

    monkeypatch.setattr(sink, "publish", publish)
    assert destination.commit(Batch(Lsn(0), Lsn(0), forget=("a", "b")), ()) == {"b": reason}
    assert forgotten == [("a", "b"), ("a",)]
