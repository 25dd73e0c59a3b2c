"""The suite that every sink passes, trucker's own and yours. It needs pytest and nothing of Spark.

    from trucker.testing.suites.table_suite import TableSinkSuite

    class TestMySink(TableSinkSuite):
        def make_sink(self, project: str = "suite") -> Sink: ...
        def rows(self, table: TableId) -> list[dict[str, str | None]]: ...
        def put_foreign_row(self, table: TableId) -> None: ...

A sink that keeps tables in step (net changes) inherits `table_suite.TableSinkSuite`; one with
`Abilities.every_change` inherits `ChangeSinkSuite`; one that runs a truck's output.sql inherits
`output_suite.OutputSqlSuite` in another class, too. pytest makes one object of the class per test; give each a
destination of its own, most simply in an autouse fixture of your class. Writes are tried as the framework does them:
on a copy of the sink that has been pickled and never opened, with receipts that are pickled on their way to `commit`.

Only the types `integer` and `text` occur; read values back as text.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, ParamSpec

import pytest

from trucker.abilities import Visible
from trucker.change import Changes, CopiedRows, Lsn, TableId, TableSchema
from trucker.errors import SinkError
from trucker.sinks.base import Sink
from trucker.sinks.batch import CARRIED, Batch, Phase, Receipt, TableState, Work
from trucker.sinks.committer import Committer, stage_part
from trucker.sinks.target import Target
from trucker.testing.handmade import (
    Change,
    changes_of,
    copied_rows_of,
    delete,
    insert,
    schema_of,
    truncate,
    update,
)

P = ParamSpec("P")
Values = Sequence[Changes | CopiedRows]
TargetLoad = Mapping[Target, Sequence[Values]]
"""By target the parts, each a run of values."""

START = Lsn(0x1000)
ITEMS = schema_of(
    TableId("public", "items"), {"id": "integer not null", "name": "text", "qty": "integer", "note": "text"}, ["id"]
)
BAG = schema_of(TableId("public", "bag"), {"a": "integer", "b": "text"})
PAIR = schema_of(TableId("public", "pair"), {"a": "integer not null", "b": "text"}, ["a"])

ODD_VALUES = (
    None,
    "",
    " ",
    "'",
    '"',
    '""',
    "\\",
    "\\N",
    "\\.",
    "\\\\n",
    "\t",
    "a\tb",
    "\n",
    "\r\n",
    "one\ntwo\n",
    "one\n\\.\ntwo",
    ",;|",
    "NULL",
    "null",
    "{}",
    "%s $1 :name {{ x }}",
    "žluťoučký kůň 🐎 Ω 漢字",
    "\u2028\u00a0\u200b",
    "\x01\x7f",
    "x" * 300_000,
    "\\\t\n'\"" * 20_000,
)

ODD_NAMES = ("select", "Capital", "with space", 'qu"ote', "quo'te", "dash-dot.", "back\\slash", "percent%s", "é" * 31)


_LARGE = "x" * (CARRIED + 1)


def target_of(schema: TableSchema, truck: str = "main", table: TableId | None = None) -> Target:
    return Target(truck, schema, table or schema.table)


@dataclass(frozen=True, slots=True)
class Written:
    """One change a sink of every change wrote. `new` leaves out the cells that were not sent (I7)."""

    operation: str
    new: dict[str, str | None] | None = None
    old: dict[str, str | None] | None = None


def needs(ability: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A test for sinks with this ability (`trucker.abilities`) alone; others skip it."""

    def mark(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*arguments: P.args, **named: P.kwargs) -> None:
            suite: Any = arguments[0]
            sink: Sink = suite.make_sink()
            value = getattr(sink.abilities, ability)
            if not value or value is Visible.TABLE:
                pytest.skip(f"a {sink.name} destination does not have the ability {ability!r}")
            test(*arguments, **named)

        return run

    return mark


class SinkMeans:
    """The means to ask a sink anything."""

    def make_sink(self, project: str = "suite") -> Sink:
        """A new sink, not opened, on this test's destination; every call is as if from another process."""
        raise NotImplementedError

    def committer(self, project: str = "suite") -> Committer:
        """The framework around a new sink."""
        return Committer(self.make_sink(project))

    def write(self, batch: Batch, load: TargetLoad) -> list[Receipt]:
        """Every part by a worker of its own."""
        return [
            self.write_part(Work(batch, target, part), values)
            for target, parts in load.items()
            for part, values in enumerate(parts)
        ]

    def write_part(self, work: Work, values: Values) -> Receipt:
        worker: Sink = pickle.loads(pickle.dumps(self.make_sink()))
        try:
            receipt: Receipt = pickle.loads(pickle.dumps(stage_part(worker, work, iter(values))))
        finally:
            worker.close()
        assert (receipt.truck, receipt.table, receipt.part) == (work.target.truck, work.target.source.table, work.part)
        return receipt

    def copy(self, sink: Committer, load: TargetLoad, *, at: Lsn = START, name: str = "first") -> None:
        """Snapshot the targets into their tables and let their trucks stream from `at`."""
        self.begin_copy(sink, tuple(load), at=at, name=name)
        copied_batch = self.copied(tuple(load), at=at, name=name)
        sink.commit(copied_batch, self.write(copied_batch, load))

    def begin_copy(self, sink: Committer, targets: Sequence[Target], *, at: Lsn = START, name: str = "first") -> None:
        for target in targets:
            sink.prepare(target)
        copying = {(t.truck, t.source.table): TableState(Phase.COPYING, at) for t in targets}
        sink.commit(Batch(at, at, tables=copying, targets=tuple(targets), snapshot=name), [])

    def copied(self, targets: Sequence[Target], *, at: Lsn = START, name: str = "first") -> Batch:
        """The batch that makes a copy count."""
        return Batch(
            at,
            at,
            positions={target.truck: at for target in targets},
            tables={(t.truck, t.source.table): TableState(Phase.STREAMING, at) for t in targets},
            targets=tuple(targets),
            snapshot=name,
        )

    def started(self, *targets: Target) -> Committer:
        """An open sink whose targets are empty and stream."""
        sink = self.committer()
        sink.open()
        self.copy(sink, {target: [] for target in targets})
        return sink

    def batch(self, targets: Sequence[Target], step: int = 1) -> Batch:
        """The `step`th batch after the snapshot."""
        start, end = Lsn(START + 0x100 * (step - 1)), Lsn(START + 0x100 * step)
        return Batch(start, end, {target.truck: end for target in targets}, targets=tuple(targets))

    def apply(self, sink: Committer, load: TargetLoad, step: int = 1) -> Batch:
        """Write and commit the `step`th batch."""
        batch = self.batch(tuple(load), step)
        sink.commit(batch, self.write(batch, load))
        return batch

    def change(self, sink: Committer, target: Target, *changes: Change, step: int = 1) -> Batch:
        """One batch of one part with these changes."""
        return self.apply(sink, {target: [[self.values(target.source, *changes, step=step)]]}, step)

    def values(self, schema: TableSchema, *changes: Change, step: int = 1) -> Changes:
        return changes_of(schema, changes, lsn=Lsn(START + 0x100 * step - 8))


class SinkSuite(SinkMeans):
    """What both kinds of sink are asked."""

    def content(self, target: Target) -> Sized:
        """All that can be read of the target, row by row or change by change, in a form that compares equal when
        nothing has changed."""
        raise NotImplementedError

    # -- positions and states (I3, I4) ---------------------------------------------------------------------------

    def test_a_new_destination_stores_nothing(self) -> None:
        sink = self.committer()
        assert dict(sink.open()) == {}
        assert dict(self.committer().open()) == {}
        sink.close()

    def test_close_without_open(self) -> None:
        sink = self.committer()
        sink.close()
        sink.close()

    def test_a_restart_sees_the_positions(self) -> None:
        items, bag = target_of(ITEMS), target_of(PAIR, "other")
        sink = self.started(items, bag)
        batch = self.change(sink, items, insert({"id": "1"}))
        sink.close()
        states = self.committer().open()
        assert states["main"].lsn == batch.end
        assert states["other"].lsn == START
        assert states["main"].tables[ITEMS.table].phase is Phase.STREAMING
        assert states["other"].tables[PAIR.table].phase is Phase.STREAMING

    def test_an_empty_batch_moves_the_position(self) -> None:
        items = target_of(ITEMS)
        sink = self.started(items)
        batch = self.apply(sink, {items: []})
        assert self.committer().open()["main"].lsn == batch.end

    def test_a_table_being_copied_is_reported(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [items])
        assert self.committer().open()["main"].tables[ITEMS.table] == TableState(Phase.COPYING, START)

    def test_a_batch_committed_again_changes_nothing(self) -> None:
        items, bag = target_of(ITEMS), target_of(PAIR)
        sink = self.started(items, bag)
        batch = self.batch([items, bag])
        load: TargetLoad = {
            items: [[self.values(ITEMS, insert({"id": "1", "qty": "1"}))]],
            bag: [[self.values(PAIR, insert({"a": "1"}), insert({"a": "1"}))]],
        }
        receipts = self.write(batch, load)
        sink.commit(batch, receipts)
        before = (self.content(items), self.content(bag))
        again = self.committer()
        again.open()
        again.commit(batch, self.write(batch, load))
        assert (self.content(items), self.content(bag)) == before
        assert again.open()["main"].lsn == batch.end

    def test_a_late_batch_never_moves_a_position_back(self) -> None:
        items = target_of(ITEMS)
        sink = self.started(items)
        self.change(sink, items, insert({"id": "1"}), step=1)
        last = self.change(sink, items, insert({"id": "2"}), step=2)
        before = self.content(items)
        self.change(sink, items, insert({"id": "3"}), step=1)
        assert self.content(items) == before
        assert self.committer().open()["main"].lsn == last.end

    @pytest.mark.parametrize("note", ["x", _LARGE], ids=["carried", "large"])
    def test_the_next_batch_may_be_staged_before_this_one_is_committed(self, note: str) -> None:
        """I3: it counts for nothing before its own commit, and nothing of it is gone by then."""
        items = target_of(ITEMS)
        sink = self.started(items)
        steps = (1, 2)
        batches = [self.batch([items], step) for step in steps]
        staged = [
            self.write(batch, {items: [[self.values(ITEMS, insert({"id": str(step), "note": note}), step=step)]]})
            for step, batch in zip(steps, batches, strict=True)
        ]
        for step, batch, receipts in zip(steps, batches, staged, strict=True):
            sink.commit(batch, receipts)
            assert len(self.content(items)) == step
        assert self.committer().open()["main"].lsn == batches[-1].end

    @pytest.mark.parametrize("note", ["x", _LARGE], ids=["carried", "large"])
    def test_what_was_staged_in_vain_goes(self, note: str) -> None:
        """A batch that is not committed, then another of the same range: the one that is committed counts."""
        items = target_of(ITEMS)
        sink = self.started(items)
        batch = self.batch([items], 2)
        self.change(sink, items, insert({"id": "1"}), step=1)
        before = self.content(items)
        self.write(batch, {items: [[self.values(ITEMS, insert({"id": "2", "note": note}), step=2)]]})
        sink.discard(batch)
        assert self.content(items) == before
        self.change(sink, items, insert({"id": "3", "note": note}), step=2)
        assert len(self.content(items)) == 2

    def test_a_table_catches_up_by_a_position_of_its_own(self) -> None:
        items, bag = target_of(ITEMS), target_of(PAIR)
        sink = self.started(items)
        self.change(sink, items, insert({"id": "1"}), step=3)
        self.begin_copy(sink, [bag], name="later")
        truck_table = (bag.truck, PAIR.table)
        at = TableState(Phase.CATCHING_UP, START)
        sink.commit(Batch(START, START, tables={truck_table: at}, targets=(bag,), snapshot="later"), [])
        for step, phase in ((1, Phase.CATCHING_UP), (2, Phase.STREAMING)):
            plain = self.batch([bag], step)
            batch = replace(plain, positions={}, tables={truck_table: TableState(phase, plain.end)})
            load: TargetLoad = {bag: [[self.values(PAIR, insert({"a": str(step)}), step=step)]]}
            sink.commit(batch, self.write(batch, load))
            before = self.content(bag)
            sink.commit(batch, self.write(batch, load))
            assert self.content(bag) == before
            assert self.committer().open()["main"].tables[PAIR.table].phase is phase
        assert self.committer().open()["main"].lsn == Lsn(START + 0x300)

    def test_forget(self) -> None:
        items, bag = target_of(ITEMS), target_of(PAIR, "other")
        sink = self.started(items, bag)
        self.change(sink, items, insert({"id": "1"}))
        before = self.content(items)
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main", "never heard of")), [])
        states = self.committer().open()
        assert states["main"].lsn == 0
        assert states["main"].tables[ITEMS.table] == TableState(Phase.COPYING, Lsn(0))
        assert states["other"].lsn == START
        assert self.content(items) == before

    def test_two_sources_with_the_same_range(self) -> None:
        """Two connections to one database have batches of the same range: each is committed with its own rows,
        whatever the other has staged meanwhile."""
        items, bag = target_of(ITEMS), target_of(PAIR, "other")
        sink = self.started(items, bag)
        staged = []
        for target, row in ((items, {"id": "1", "name": _LARGE}), (bag, {"a": "1", "b": _LARGE})):
            batch = replace(self.batch([target]), source=target.truck)
            load: TargetLoad = {target: [[self.values(target.source, insert(row))]]}
            staged.append((batch, self.write(batch, load)))
        for batch, receipts in staged:
            sink.commit(batch, receipts)
        states = self.committer().open()
        assert states["main"].lsn == states["other"].lsn == Lsn(START + 0x100)

    def test_projects_do_not_see_each_other(self) -> None:
        """A destination that takes one project only refuses the other."""
        self.started(target_of(ITEMS))
        with contextlib.suppress(SinkError):
            assert dict(self.committer("another").open()) == {}
        assert set(self.committer().open()) == {"main"}

    def test_an_empty_commit(self) -> None:
        sink = self.started(target_of(ITEMS))
        sink.commit(Batch(START, START), [])
        assert self.committer().open()["main"].lsn == START


class ChangeSinkSuite(SinkSuite):
    """For sinks that keep every change (`Abilities.every_change`)."""

    def written(self, table: TableId) -> list[Written]:
        """The changes of one table that a reader finds at the destination, in order."""
        raise NotImplementedError

    def content(self, target: Target) -> Sized:
        return self.written(target.table)

    def test_every_change_in_order(self) -> None:
        items = target_of(ITEMS)
        sink = self.started(items)
        self.change(
            sink,
            items,
            insert({"id": "1", "name": "a", "qty": "1", "note": "x"}),
            update({"id": "1", "name": "b", "qty": "2"}, unchanged=["note"]),
            update({"id": "2", "name": "b", "qty": "2", "note": None}, old={"id": "1"}),
            delete({"id": "2"}),
            truncate(),
        )
        assert self.written(ITEMS.table) == [
            Written("insert", {"id": "1", "name": "a", "qty": "1", "note": "x"}),
            Written("update", {"id": "1", "name": "b", "qty": "2"}),
            Written("update", {"id": "2", "name": "b", "qty": "2", "note": None}, {"id": "1"}),
            Written("delete", None, {"id": "2"}),
            Written("truncate"),
        ]

    def test_a_full_old_row(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        old: dict[str, str | None] = {"a": "1", "b": None}
        self.change(sink, bag, update({"a": "2", "b": ""}, old=old), delete({"a": "2", "b": ""}))
        assert self.written(BAG.table) == [
            Written("update", {"a": "2", "b": ""}, old),
            Written("delete", None, {"a": "2", "b": ""}),
        ]

    def test_parts_and_values_keep_their_order(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        numbers = iter(range(100))
        parts = [
            [self.values(BAG, *(insert({"a": str(next(numbers))}) for _ in range(3))) for _ in range(2)]
            for _ in range(4)
        ]
        batch = self.batch([bag])
        sink.commit(batch, list(reversed(self.write(batch, {bag: parts}))))
        assert [change.new and change.new["a"] for change in self.written(BAG.table)] == [str(n) for n in range(24)]

    def test_snapshot_rows_are_inserts(self) -> None:
        items = target_of(ITEMS)
        sink = self.committer()
        sink.open()
        rows = [{"id": str(n), "name": "n", "qty": None, "note": ""} for n in range(4)]
        self.copy(sink, {items: [[copied_rows_of(ITEMS, rows[:2])], [copied_rows_of(ITEMS, rows[2:])]]})
        assert self.written(ITEMS.table) == [Written("insert", row) for row in rows]

    def test_a_part_written_twice_counts_once(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        batch = self.batch([bag])
        values = [self.values(BAG, insert({"a": "1", "b": "x"}))]
        self.write_part(Work(batch, bag, 0), values)
        sink.commit(batch, [self.write_part(Work(batch, bag, 0), values)])
        assert self.written(BAG.table) == [Written("insert", {"a": "1", "b": "x"})]

    def test_a_write_without_commit_leaves_nothing(self) -> None:
        bag = target_of(BAG)
        sink = self.started(bag)
        self.write(self.batch([bag]), {bag: [[self.values(BAG, insert({"a": "1"}))]]})
        sink.close()
        again = self.committer()
        again.open()
        assert self.written(BAG.table) == []
        self.change(again, bag, insert({"a": "2", "b": None}))
        assert self.written(BAG.table) == [Written("insert", {"a": "2", "b": None})]

    def test_odd_values_and_names(self) -> None:
        odd = schema_of(TableId("Odd schema", "select"), {"id": "integer", **dict.fromkeys(ODD_NAMES, "text")}, ["id"])
        target = target_of(odd)
        sink = self.started(target)
        rows = [{"id": str(n), **dict.fromkeys(ODD_NAMES, value)} for n, value in enumerate(ODD_VALUES)]
        self.change(sink, target, *(insert(row) for row in rows))
        assert self.written(odd.table) == [Written("insert", row) for row in rows]

    def test_the_columns_of_a_changed_table(self) -> None:
        wider = schema_of(BAG.table, {"a": "integer", "b": "text", "c": "text"})
        sink = self.started(target_of(BAG))
        sink.prepare(target_of(wider))
        self.change(sink, target_of(wider), insert({"a": "1", "b": "x", "c": "y"}))
        assert self.written(BAG.table) == [Written("insert", {"a": "1", "b": "x", "c": "y"})]
