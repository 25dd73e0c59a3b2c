"""Copies in one go that continue by chunks: what becomes of the tables that do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.change import Column, Lsn, TableId
from trucker.config.models import CopyConfig
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.schema.written_schema import WrittenSchema
from trucker.engine.snapshot.copier import Need
from trucker.engine.snapshot.copy_cursor import CopyCursor
from trucker.engine.snapshot.incremental_copy import IncrementalCopier
from trucker.engine.snapshot.interrupted_copy import InterruptedCopy
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.life import TablePhase
from trucker.engine.truck.truck import InputTable, Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SinkError, SourceUnavailable, TruckerError
from trucker.observe.status import TruckPhase
from trucker.process.backoff import Backoff
from trucker.sinks.target import Target
from trucker.source.look import Look, SeenColumn
from trucker.testing.memory import MemorySink, drop_store

TABLES = A, B, C = tuple(TableId("public", name) for name in "abc")
STORE = "continued copies"
COLUMN = SeenColumn(1, Column("id", 25), False, 1)


class RefusingSink(MemorySink):
    """Cannot take some tables, once each, for the reasons given."""

    troubles: dict[TableId, list[TruckerError]]

    def prepare(self, target: Target) -> frozenset[str]:
        if self.troubles.get(target.source.table):
            raise self.troubles[target.source.table].pop()
        return super().prepare(target)


class World:
    """A truck of three tables whose first copy, in one go, was interrupted when it had some of the first two."""

    def __init__(self, troubles: dict[TableId, list[TruckerError]]) -> None:
        sink = RefusingSink(STORE)
        sink.troubles = troubles
        spec: Any = SinkSpec(SimpleNamespace(name="store"), SimpleNamespace())  # type: ignore[arg-type]
        destination = Destination(spec, sink)
        destination.open()
        tables = {table: InputTable(table, table, ("id",), key_numbers=(1,)) for table in TABLES}
        self.run = TruckRun(Truck("all", "source", "store", tables, by_table=True))
        self.lanes: list[Lane] = []
        look = {table: Look(table, 1, Lsn(1), ("id",), 1, (COLUMN,), {}) for table in TABLES}
        written = SimpleNamespace(get=lambda _, table: WrittenSchema(look[table], frozenset({1})))
        anything: Any = SimpleNamespace(cores=1, is_local=False)
        stream: Any = SimpleNamespace(reader=SimpleNamespace(oldest=lambda: Lsn(1)))
        self.copier = IncrementalCopier(
            anything,
            anything,
            stream,
            {"store": destination},
            anything,
            written,  # type: ignore[arg-type]
            anything,
            CopyConfig(),
            small_bytes=0,
            backoff=lambda: Backoff(1e-9, 1e-9),
            tries=None,
            spawn=self.lanes.append,
            hold=self.lanes.append,
            release=self.lanes.remove,
            take_up=lambda _: None,
        )

    def go_on(self) -> Need:
        interrupted = InterruptedCopy("first-1", Lsn(50), {A: CopyCursor(), B: CopyCursor()})
        need = Need(self.run, frozenset(TABLES), whole=True, interrupted=frozenset(TABLES))
        return self.copier.go_on(need, lambda: interrupted, threading.Event())

    @property
    def continued(self) -> Sequence[TableId]:
        return sorted(table for lane in self.lanes for table in lane.tables or ())


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("trucker.engine.destination.task_sinks.sink_for", lambda spec: MemorySink(STORE))
    yield
    drop_store(STORE)


def refused() -> TruckerError:
    return SinkError("the table there is somebody else's", code="TRK480")


def test_what_cannot_be_continued_is_left_for_a_copy_from_the_beginning() -> None:
    world = World({})
    rest = world.go_on()
    assert (world.continued, rest.tables, rest.whole) == ([A, B], {C}, False)


def test_a_table_that_was_set_aside_is_neither_continued_nor_left() -> None:
    """Though it is found again, and might be continued by then."""
    world = World({A: [refused()]})
    rest = world.go_on()
    assert (world.continued, rest.tables, rest.whole) == ([B], {C}, False)
    assert world.run.life.tables[A] is TablePhase.FAILED
    assert world.run.phase is not TruckPhase.FAILED


def test_all_is_continued_after_a_failure_that_passes() -> None:
    world = World({A: [SourceUnavailable("gone")]})
    rest = world.go_on()
    assert (world.continued, rest.tables) == ([A, B], {C})


def test_the_others_are_copied_where_each_table_was_set_aside() -> None:
    world = World({A: [refused()], B: [refused()]})
    rest = world.go_on()
    assert (world.continued, rest.tables, rest.whole) == ([], {C}, True)
    assert world.run.failed.keys() == {A, B}
