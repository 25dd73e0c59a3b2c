"""The copier without servers: what it tries again, what it hands on, and what it keeps the log for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.snapshot.copier import Copier, Need
from trucker.engine.snapshot.copy_record import CopyRecord
from trucker.engine.task.payload import Copied, CopyShare, Failure, Outcome
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.truck import InputTable, Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import JobFailed, SinkError, SourceUnavailable, TruckerError
from trucker.observe.status import CopyProgress, TruckPhase
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.batch import Phase, TableState, Work
from trucker.source.look import Look, SeenColumn
from trucker.testing.faults import FaultySink, Pass, unavailable
from trucker.testing.memory import MemorySink, drop_store, store

A, B = TableId("public", "a"), TableId("public", "b")
STORE = "copier under test"


def _schema(table: TableId) -> TableSchema:
    return TableSchema(table, (Column("id", 25),))


def _look(table: TableId, lsn: Lsn) -> Look:
    return Look(table, 1, lsn, (), 1, (SeenColumn(1, Column("id", 25), False, 1),), {})


class World:
    """A source of two tables and one destination; what goes wrong is in `trouble`, attempt by attempt."""

    def __init__(self) -> None:
        self.sink = FaultySink(MemorySink(STORE))
        spec: Any = SinkSpec(SimpleNamespace(name="store"), SimpleNamespace())  # type: ignore[arg-type]
        self.destination = Destination(spec, self.sink)
        self.destination.open()
        self.kept: list[Lsn | None] = []
        self.lanes: list[Lane] = []
        self.trouble: list[dict[tuple[str, TableId], TruckerError]] = []
        self.rewritten: list[set[TableId]] = []
        self.stop = threading.Event()
        self.given_up = False
        self.never = False
        """A snapshot is waited for until the stop."""
        self.runs: dict[str, TruckRun] = {}
        self.seen_copying: list[dict[str, dict[TableId, CopyProgress]]] = []
        self.lsn = 100
        self.resumed: list[Need] = []
        jobs: Any = SimpleNamespace(cores=2, is_local=False, run=self._run)
        self.copier = Copier(
            jobs,
            self,
            {"store": self.destination},
            SimpleNamespace(get=lambda *_: None, put=lambda *_: None),  # type: ignore[arg-type]
            Recipes(self, {"store": False}, 1000),
            backoff=Backoff(1e-9, 1e-9),
            tries=None,
            spawn=self.lanes.append,
            durable=lambda: Lsn(self.lsn),
            take_up=lambda _: None,
            resume=self._resume,
            record=CopyRecord(Path("nowhere")),
            recorded_bytes=1 << 30,
        )

    def _resume(self, need: Need) -> bool:
        self.resumed += [need] if need.fresh else []
        return bool(need.fresh)

    def truck(self, name: str, *tables: TableId) -> TruckRun:
        resolved = {table: InputTable(table, TableId(name, table.name), ()) for table in tables}
        self.runs[name] = TruckRun(Truck(name, "source", "store", resolved))
        return self.runs[name]

    def copy(self, *needs: Need, first: Any = None) -> None:
        self.copier.run(needs, first, self.stop)

    def exported(self) -> Any:
        self.lsn += 10
        return SimpleNamespace(lsn=Lsn(self.lsn), snapshot="s", standby=False, close=lambda: None)

    def export(self, stop: threading.Event) -> Any:
        if self.never:
            raise Stopped
        self.kept.append(self.copier.needs_from)
        self.rewritten[:1] = []
        return self.exported()

    def verify(self, exported: Any) -> None:
        """It shows what it did."""

    def view(self, exported: Any) -> Any:
        return nullcontext(
            SimpleNamespace(
                describe=lambda table: SimpleNamespace(schema=_schema(table), bytes=1),
                look=lambda table: _look(table, exported.lsn),
                chunks=self._plan,
            )
        )

    def _plan(self, table: Any, size: int, **__: Any) -> list[Any]:
        name = table.schema.table
        if self.rewritten and name in self.rewritten[0]:
            raise SourceUnavailable("rewritten")
        return [SimpleNamespace(schema=table.schema, leaf=name, bytes=1)]

    def _run(self, function: Any, shares: Sequence[CopyShare], *, group: str, reporting: Any = None) -> list[Outcome]:
        """Every part is a row, "<table> at <lsn>"; troubles as told."""
        trouble = self.trouble.pop(0) if self.trouble else {}
        (batch,) = function.args
        outcomes = []
        for part in (part for share in shares for part in share):
            receipts, failures = [], []
            for found in part.assignments:
                slot = (found.target.truck, found.target.source.table)
                if slot in trouble:
                    failures.append(Failure(slot[0], trouble[slot], slot[1]))
                    continue
                work = Work(batch.batches["store"], found.target, part.index)
                receipts.append(self.sink.stage(work, iter([_row(slot[1], batch.lsn)])))
            failed = {failure.truck for failure in failures}
            rows = {found.target.truck: 1 for found in part.assignments if found.target.truck not in failed}
            outcomes.append(Outcome({"store": receipts}, failures, copied=[Copied(part.index, rows, 0.5, 0.25)]))
            if reporting is not None:
                report, take = reporting
                take(report(outcomes[-1]))
            self.seen_copying.append({n: r.copying.copy() for n, r in self.runs.items()})
        if self.given_up:
            self.stop.set()
            raise JobFailed("Spark gave up on a job: SPARK_JOB_CANCELLED")
        return outcomes

    def rows(self, truck: str, table: TableId) -> list[str | None]:
        return [row["id"] for row in store(STORE).tables[TableId(truck, table.name)].rows]

    def state(self, truck: str) -> Any:
        return store(STORE).ledgers[""].states()[truck]


def _row(table: TableId, lsn: Lsn) -> Any:
    import pyarrow as pa

    from trucker.change import Changes

    rows = pa.RecordBatch.from_arrays([pa.array([f"{table.name} at {int(lsn)}"])], names=["id"])
    return Changes.inserts(_schema(table), rows, lsn)


@pytest.fixture
def world() -> Iterator[World]:
    yield World()
    drop_store(STORE)


def test_the_first_snapshot_is_the_slots_own(world: World) -> None:
    run = world.truck("one", A, B)
    world.copy(Need(run, frozenset({A, B}), whole=True), first=world.exported())
    assert world.kept == [], "no other snapshot was taken"
    assert (run.position, run.stored, run.floors) == (Lsn(110), Lsn(110), {A: Lsn(110), B: Lsn(110)})
    assert [(lane.position, lane.tables) for lane in world.lanes] == [(Lsn(110), None)]
    assert world.state("one").tables[A] == TableState(Phase.STREAMING, Lsn(110))


def test_every_try_takes_a_snapshot_and_keeps_the_log(world: World) -> None:
    """The log is needed from before the snapshot is known."""
    run = world.truck("one", A)
    world.sink.script("publish", unavailable(), unavailable(after=True))
    world.copy(Need(run, frozenset({A}), whole=True))
    assert world.kept == [Lsn(100), Lsn(110), Lsn(120)]
    assert world.copier.needs_from is None
    assert world.rows("one", A) == ["a at 130"]
    assert run.position == Lsn(130)


def test_a_lost_answer_at_the_end_copies_again_and_leaves_no_row_twice(world: World) -> None:
    from trucker.testing.faults import Pass

    run = world.truck("one", A)
    world.sink.script("publish", Pass(), unavailable(after=True))
    world.copy(Need(run, frozenset({A}), whole=True))
    assert world.rows("one", A) == ["a at 120"]
    assert world.state("one").lsn == run.position == Lsn(120)
    assert len(world.lanes) == 1


def test_a_table_that_cannot_be_read_for_now_waits_alone(world: World) -> None:
    run = world.truck("one", A, B)
    world.trouble = [{("one", B): SourceUnavailable("truncated meanwhile")}]
    world.copy(Need(run, frozenset({A, B}), whole=True))
    assert [(lane.position, lane.tables) for lane in world.lanes] == [(Lsn(110), None), (Lsn(120), frozenset({B}))]
    assert (run.position, run.floors) == (Lsn(110), {A: Lsn(110)})
    assert (world.rows("one", A), world.rows("one", B)) == (["a at 110"], ["b at 120"])
    assert world.state("one").tables == {
        A: TableState(Phase.STREAMING, Lsn(110)),
        B: TableState(Phase.CATCHING_UP, Lsn(120)),
    }


def test_a_table_left_for_later_is_copied_though_its_truck_streams_at_once(world: World) -> None:
    """The truck's lane is spawned before the copier decides what to try again, and may join at any instant after."""
    run = world.truck("one", A, B)
    world.trouble = [{("one", B): SourceUnavailable("truncated meanwhile")}]

    class JoinMeanwhile(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "copy failed":
                run.stream()

    handler = JoinMeanwhile()
    logging.getLogger("trucker.copy").addHandler(handler)
    try:
        world.copy(Need(run, frozenset({A, B}), whole=True))
    finally:
        logging.getLogger("trucker.copy").removeHandler(handler)
    assert [(lane.position, lane.tables) for lane in world.lanes] == [(Lsn(110), None), (Lsn(120), frozenset({B}))]
    assert world.rows("one", B) == ["b at 120"]


def test_a_table_rewritten_before_it_was_cut_waits_alone(world: World) -> None:
    run, other = world.truck("one", A, B), world.truck("two", B)
    world.rewritten = [set(), {B}]
    world.copy(Need(run, frozenset({A, B}), whole=True), Need(other, frozenset({B}), whole=True))
    lanes = [(lane.runs[0].name, lane.position, lane.tables) for lane in world.lanes]
    assert lanes == [("one", Lsn(110), None), ("one", Lsn(120), frozenset({B})), ("two", Lsn(120), None)]


def test_one_truck_fails_for_good_and_the_other_is_copied(world: World) -> None:
    good, bad = world.truck("good", A), world.truck("bad", A)
    world.trouble = [{("bad", A): SinkError("never")}]
    world.copy(Need(good, frozenset({A}), whole=True), Need(bad, frozenset({A}), whole=True))
    assert (good.position, bad.phase, str(bad.error)) == (Lsn(110), TruckPhase.FAILED, "[TRK400] never")
    assert [lane.runs for lane in world.lanes] == [[good]]
    assert world.state("bad").tables[A].phase is Phase.COPYING


def test_a_truck_that_failed_elsewhere_is_not_brought_back(world: World) -> None:
    run = world.truck("one", A)
    run.fail(SinkError("elsewhere"))
    world.sink.script("publish", unavailable())
    world.copy(Need(run, frozenset({A}), whole=False))
    assert (run.phase, str(run.error)) == (TruckPhase.FAILED, "[TRK400] elsewhere")


def test_it_gives_up_after_so_many_tries_where_it_must_end(world: World) -> None:
    run = world.truck("one", A)
    world.copier._tries = 3
    world.sink.script("publish", *[unavailable() for _ in range(9)])
    world.copy(Need(run, frozenset({A}), whole=True))
    assert run.phase is TruckPhase.FAILED
    assert len(world.kept) == 4


def test_a_first_copy_that_was_begun_and_interrupted_is_resumed_in_another_way(world: World) -> None:
    """Not one that has not begun, nor one that replaces rows; and the destination tells which it was."""
    run, tables = world.truck("one", A), frozenset({A})
    world.sink.script("publish", unavailable(), Pass(), unavailable())
    world.copy(Need(run, tables, whole=True, fresh=tables))
    assert world.resumed == [Need(run, tables, whole=True, fresh=tables)]
    assert world.destination.open()["one"].tables[A].unfinished
    other = world.truck("two", A)
    world.sink.script("publish", Pass(), unavailable())
    world.copy(Need(other, tables, whole=True))
    assert len(world.resumed) == 1
    assert len(world.kept) == 4
    assert not world.destination.open()["two"].tables[A].unfinished


def test_it_stops_while_it_waits_for_a_snapshot(world: World) -> None:
    world.never = True
    run = world.truck("one", A)
    world.copy(Need(run, frozenset({A}), whole=True))
    assert run.phase is TruckPhase.STARTING
    assert world.copier.needs_from is None


def test_every_table_has_its_own_progress_and_ends_at_100_per_cent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run = world.truck("one", A, B)
    with caplog.at_level(logging.INFO, "trucker.copy"):
        world.copy(Need(run, frozenset({A, B}), whole=True))
    first, last = ([seen["one"][table].percent for table in (A, B)] for seen in world.seen_copying)
    assert (first, last) == ([100, 0], [100, 100])
    assert run.copying == {}, "a copy that is over is not in progress"
    ended = [vars(record) for record in caplog.records if record.getMessage() == "table copied"]
    assert [(each["truck"], each["table"], each["rows"], each["seconds"]) for each in ended] == [
        ("one", "public.a", 1, 0.25),
        ("one", "public.b", 1, 0.25),
    ]


def test_a_copy_that_was_given_up_because_of_a_stop_is_no_error(world: World) -> None:
    run = world.truck("one", A)
    world.given_up = True
    world.copy(Need(run, frozenset({A}), whole=True))
    assert (run.error, run.copying) == (None, {})
    assert run.phase is TruckPhase.COPYING, "it neither failed nor is it tried again"
