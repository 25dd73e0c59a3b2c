"""From staged changes to the calls of a handler or a batcher, one at a time and in order (I9)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trucker.change import DELETE, INSERT, NO_OLD, UPDATE, Changes
from trucker.errors import DataError, TruckFailed
from trucker.handlers import HandlerRow, SourceTransaction
from trucker.row_changes import RowChange, row_changes
from trucker.sinks.delivery import Load
from trucker.sinks.target import Target
from trucker.table import TableId

STAGED_ROWS: Final = 2048
_COLUMN: Final = "changes"
_SCHEMA: Final = pa.schema([(_COLUMN, pa.large_binary())])

Cells = tuple[str | None, ...]
Read = Callable[[Load], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method. `number` is its place among the calls of a delivery.

    Calls of one `unit` belong together: a transaction, a piece of a copy. Those without a `key` are made alone. `place`
    stays the same when the same is tried again. `change` is the row's, with its index, where it is about one row.
    """

    method: str
    arguments: tuple[Any, ...]
    number: int
    unit: int
    target: Target
    place: Hashable
    key: Hashable = None
    change: tuple[Changes, int] | None = None


def staged_pieces(changes: Changes) -> Iterator[pa.RecordBatch]:
    """Changes as a spool takes them: one schema, whatever the columns of the table are."""
    for start in range(0, len(changes), STAGED_ROWS):
        rows = np.arange(start, min(start + STAGED_ROWS, len(changes)), dtype=np.int64)
        part = changes if len(rows) == len(changes) else changes.take(rows)
        yield pa.RecordBatch.from_arrays([pa.array([part.to_ipc()], pa.large_binary())], schema=_SCHEMA)


def unstaged(batches: Iterator[pa.RecordBatch]) -> Iterator[Changes]:
    """The changes again."""
    for batch in batches:
        for data in batch.column(_COLUMN):
            yield Changes.from_ipc(data.as_buffer())


# -- every change ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PlacedChange:
    """A change and where it is from."""

    change: RowChange
    target: Target
    changes: Changes
    index: int
    key: Hashable

    @property
    def order(self) -> tuple[int, int]:
        return int(self.change.commit_lsn), self.change.ordinal


class EventCalls:
    """The calls of a handler of every change, for one truck's share of a delivery."""

    def __init__(self, defined: frozenset[str], loads: Sequence[Load], read: Read, *, piece_rows: int) -> None:
        self._defined = defined
        self._loads = loads
        self._read = read
        self._piece_rows = piece_rows
        self._number = 0

    def of_stream(self, begin: int) -> Iterator[Call]:
        """Changes in commit order across tables, from the transaction whose commit is at `begin`."""
        streams = [self._events(load, snapshot=False) for load in self._loads]
        current: tuple[SourceTransaction, Target] | None = None
        for event in heapq.merge(*streams, key=lambda each: each.order):
            change = event.change
            if change.commit_lsn < begin:
                continue
            if current is None or current[0].commit_lsn != change.commit_lsn:
                yield from self._end(current)
                current = SourceTransaction(change.commit_lsn, change.commit_time, change.xid), event.target
                yield from self._marker("on_begin", *current)
            yield from self._row(event, int(change.commit_lsn))
        yield from self._end(current)

    def of_copy(self, begin: int) -> Iterator[Call]:
        """The rows of copies, table by table, in pieces; from the piece with the number `begin`."""
        unit = 0
        for load in self._loads:
            if load.replaces and unit >= begin:
                table = load.target.table
                yield from self._call("on_refresh", (table,), unit, load.target, ("refresh", table))
            unit += 1
            current: tuple[SourceTransaction, Target] | None = None
            for count, event in enumerate(self._events(load, snapshot=True)):
                if count % self._piece_rows == 0:
                    if current is not None:
                        yield from self._end(current, unit) if unit >= begin else ()
                        unit += 1
                    current = SourceTransaction(event.change.commit_lsn, None, 0, snapshot=True), event.target
                    yield from self._marker("on_begin", *current, unit) if unit >= begin else ()
                if unit >= begin:
                    yield from self._row(event, unit)
            if current is not None:
                yield from self._end(current, unit) if unit >= begin else ()
                unit += 1

    def _events(self, load: Load, *, snapshot: bool) -> Iterator[_PlacedChange]:
        target = load.target
        for changes in unstaged(self._read(load)):
            keys = lane_keys(changes)
            for index, change in enumerate(typed(changes, target, snapshot=snapshot)):
                yield _PlacedChange(change, target, changes, index, keys[index])

    def _row(self, event: _PlacedChange, unit: int) -> Iterator[Call]:
        change = event.change
        method = f"on_{change.operation}"
        if method in self._defined:
            place = (change.table, event.key or change.ordinal, change.snapshot or event.order)
            key = None if event.key is None else (change.table, event.key)
            self._number += 1
            yield Call(method, (change,), self._number, unit, event.target, place, key, (event.changes, event.index))

    def _end(self, current: tuple[SourceTransaction, Target] | None, unit: int | None = None) -> Iterator[Call]:
        if current is not None:
            yield from self._marker("on_commit", *current, unit)

    def _marker(
        self, method: str, transaction: SourceTransaction, target: Target, unit: int | None = None
    ) -> Iterator[Call]:
        place = (method, int(transaction.commit_lsn), unit)
        yield from self._call(method, (transaction,), unit or int(transaction.commit_lsn), target, place)

    def _call(
        self, method: str, arguments: tuple[Any, ...], unit: int, target: Target, place: Hashable
    ) -> Iterator[Call]:
        if method in self._defined:
            self._number += 1
            yield Call(method, arguments, self._number, unit, target, place)


def typed(changes: Changes, target: Target, *, snapshot: bool = False) -> Iterator[RowChange]:
    """The changes with Python values, under the name that the truck gives their table. Raises `TruckFailed` for a value
    that does not fit, where its policy is an error."""
    unfit = target.unfit_of if target.unfit else None
    try:
        for change in row_changes(changes, unfit=unfit, snapshot=snapshot):
            yield _named(change, target)
    except ValueError as error:
        reason = DataError(
            f"table {target.table}: {error}",
            remedy="write unfit: null or text for the column in the truck's output, or leave unfit out",
            code="TRK746",
        )
        raise TruckFailed(target.truck, reason, target.source.table) from None


def _named(change: RowChange, target: Target) -> RowChange:
    if change.table == target.table:
        return change
    return RowChange(
        target.table,
        change.operation,
        change.new,
        change.old,
        change.unsent,
        change.commit_lsn,
        change.ordinal,
        change.commit_time,
        change.xid,
        change.snapshot,
    )


def key_cells(changes: Changes, *, old: bool) -> list[Cells]:
    """The cells of the key of every row, as PostgreSQL wrote them; none where the table has no key."""
    rows = changes.old if old else changes.new
    columns = [rows.column(name).to_pylist() for name in changes.schema.key]
    return list(zip(*columns, strict=True)) if columns else [()] * len(changes)


def lane_keys(changes: Changes) -> list[Hashable]:
    """For each change the key of its row; None where it is not about a row of one key."""
    if not changes.schema.key:
        return [None] * len(changes)
    new, old = key_cells(changes, old=False), key_cells(changes, old=True)
    keys: list[Hashable] = []
    for op, kind, after, before in zip(changes.op.tolist(), changes.old_kind.tolist(), new, old, strict=True):
        if op in (INSERT, UPDATE):
            keys.append(after if op == INSERT or kind == NO_OLD or after == before else None)
        else:
            keys.append(before if op == DELETE else None)
    return keys


# -- net changes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a batch, or the key of one that is gone, and the change that it is from."""

    cells: Cells
    row: HandlerRow
    change: tuple[Changes, int]


@dataclass(frozen=True, slots=True)
class BatchCall:
    """One call of a batcher; `truncate` has no rows."""

    method: str
    table: TableId
    rows: Sequence[BatchRow]
    target: Target

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.table,) if self.method == "truncate" else (self.table, [each.row for each in self.rows])

    @property
    def place(self) -> Hashable:
        first = self.rows[0].cells if self.rows else None
        return self.method, self.table, first

    def halves(self) -> tuple[BatchCall, BatchCall]:
        middle = len(self.rows) // 2
        return replace(self, rows=self.rows[:middle]), replace(self, rows=self.rows[middle:])


class BatchCalls:
    """The calls of a batcher for one load: the net changes of its parts, folded once more, in batches."""

    def __init__(self, load: Load, read: Read, *, batch_rows: int) -> None:
        self._load = load
        self._read = read
        self._batch_rows = batch_rows
        self._rows: dict[Cells, tuple[str, BatchRow]] = {}

    def calls(self) -> Iterator[BatchCall]:
        for changes in unstaged(self._read(self._load)):
            yield from self._take(changes)
        yield from self._flush()

    def _take(self, changes: Changes) -> Iterator[BatchCall]:
        new, old = key_cells(changes, old=False), key_cells(changes, old=True)
        rows = list(typed(changes, self._load.target))
        names = changes.schema.key
        gone: dict[Cells, tuple[str, BatchRow]] = {}
        present: dict[Cells, tuple[str, BatchRow]] = {}
        for index, (op, row) in enumerate(zip(changes.op.tolist(), rows, strict=True)):
            moved = op != DELETE and changes.old_kind[index] != NO_OLD and new[index] != old[index]
            if (op == DELETE or moved) and row.old is not None:
                key = {name: row.old[name] for name in names}
                gone[old[index]] = "delete", BatchRow(old[index], key, (changes, index))
            if op != DELETE and row.new is not None:
                present[new[index]] = "upsert", BatchRow(new[index], row.new, (changes, index))
        # A key that another row takes within the same value is not gone, whatever the order of the two was.
        self._rows |= gone
        self._rows |= present
        if len(self._rows) >= self._batch_rows:
            yield from self._flush()

    def _flush(self) -> Iterator[BatchCall]:
        rows, self._rows = self._rows, {}
        target = self._load.target
        for method in ("delete", "upsert"):
            items = [row for kind, row in rows.values() if kind == method]
            for start in range(0, len(items), self._batch_rows):
                yield BatchCall(method, target.table, items[start : start + self._batch_rows], target)
