"""The base of sinks for tables in a store without transactions over tables: rows are merged by key and version.

A store implements, besides `prepare`:

    read_ledger()            the ledger that is stored there; may connect
    store(ledger)            store the ledger; the last thing of a delivery
    is_empty(table)          whether a destination table has no rows
    empty(target)            remove all rows of the target's table
    merge(target, rows)      add versioned rows: of the rows of one key, the one with the highest version counts

A delivery is published table by table, its ledger last. After a crash in between, the same changes come again, perhaps
in other batches: rows that are there already come with the same version, and older ones never win. Every row is whole,
and every table has a key: the framework sees to both (`Abilities.partial_rows`, `Abilities.keyless`).
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.abilities import Abilities, Visible
from trucker.change import DELETE, INSERT, NO_OLD, UPDATE, Changes, CopiedRows
from trucker.errors import SinkError, TruckFailed
from trucker.failpoint import reach
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import Ledger, foreign_rows
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.table import TableId

VERSION: Final = "_version"
DELETED: Final = "_deleted"
# The place of a change in its transaction, next to the LSN of its commit: room for 10^12 changes.
_ORDINAL_BITS: Final = 40


class MergeSink(Sink):
    """Guarantee: exactly once for readers of the rows that count; one table becomes visible after the other."""

    abilities: ClassVar[Abilities] = Abilities(visible=Visible.TABLE, keyless=False, partial_rows=False)

    def __init__(self, workspace: Workspace) -> None:
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._opened = False

    @abstractmethod
    def read_ledger(self) -> Ledger:
        """The ledger that is stored there; an empty one where there is none."""

    @abstractmethod
    def store(self, ledger: Ledger) -> None:
        """Store the ledger, durably, once all that was merged is durable."""

    @abstractmethod
    def is_empty(self, table: TableId) -> bool:
        """Whether the table has no rows, or is not there."""

    @abstractmethod
    def empty(self, target: Target) -> None:
        """Remove all rows of the target's table."""

    @abstractmethod
    def merge(self, target: Target, rows: Iterator[pa.RecordBatch]) -> None:
        """Add rows: the target's columns as text, `VERSION` (a whole number) and `DELETED` (the row with this key is
        gone; it has the key alone)."""

    def replace(self, target: Target, rows: Iterator[pa.RecordBatch]) -> None:
        """Have these rows instead of those that are there. A store that can exchange tables does it at once."""
        self.empty(target)
        self.merge(target, rows)

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        ledger = self.read_ledger()
        self._opened = True
        return ledger

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        count = 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for value in changes:
                whole = value.to_changes() if isinstance(value, CopiedRows) else value
                count += len(whole)
                yield versioned(_inserts(whole).reshaped(work.target.source), copied=bool(work.batch.snapshot))

        staged = self._spool.stage(work, rows())
        return work.receipt(count, staged)

    def publish(self, delivery: Delivery) -> None:
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in delivery.receipts])
        ledger = delivery.verify(self.read_ledger())
        for copy in delivery.copies:
            if not copy.ours and not self.is_empty(copy.target.table):
                raise foreign_rows(copy.target)
        replaced = {target.table for target in delivery.replaced()}
        for load in delivery.loads():
            self._merge(load, replaces=load.target.table in replaced)
            replaced.discard(load.target.table)
        reach("sink.position.before")
        self.store(ledger)
        reach("sink.position.after")
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def _merge(self, load: Load, *, replaces: bool) -> None:
        rows = self._spool.read_all(load.parts)
        try:
            if replaces:
                self.replace(load.target, rows)
            elif load.rows:
                self.merge(load.target, rows)
        except SinkError as error:
            if error.transient or isinstance(error, TruckFailed):
                raise
            raise TruckFailed(load.target.truck, error, load.target.source.table) from error


def versioned(changes: Changes, *, copied: bool = False) -> pa.RecordBatch:
    """A set of net changes as rows with a version. A copy's rows come before all changes of its position."""
    names, key = list(changes.schema.names), list(changes.schema.key)
    lsns, ordinals = changes.commit_lsn.tolist(), changes.ordinal.tolist()
    versions = pa.array(
        [(lsn << _ORDINAL_BITS) + (0 if copied else ordinal + 1) for lsn, ordinal in zip(lsns, ordinals, strict=True)],
        pa.decimal128(38),
    )
    whole = changes.new.append_column(VERSION, versions)
    rows = whole.filter(pa.array(changes.op != DELETE))
    rows = rows.append_column(DELETED, pa.array(np.zeros(rows.num_rows, np.bool_)))
    removed = (changes.op == DELETE) | ((changes.old_kind != NO_OLD) & _moved(changes))
    if not removed.any():
        return rows
    gone = pa.table([changes.old.column(name) for name in key] + [versions], [*key, VERSION]).filter(pa.array(removed))
    # A key that another row takes within the same set is not gone, whatever the order of the two changes was.
    gone = gone.join(pa.table(rows.select(key)), keys=key, join_type="left anti").combine_chunks()
    columns = [
        gone.column(name).combine_chunks() if name in key else pa.nulls(len(gone), pa.string()) for name in names
    ]
    tombstones = pa.record_batch(
        [*columns, gone.column(VERSION).combine_chunks(), pa.array(np.ones(len(gone), np.bool_))],
        [*names, VERSION, DELETED],
    )
    return pa.concat_batches([rows, tombstones])


def _inserts(changes: Changes) -> Changes:
    """Updates as inserts: rows are whole, also in columns that were added after these changes."""
    return dataclasses.replace(changes, op=np.where(changes.op == UPDATE, np.uint8(INSERT), changes.op))


def _moved(changes: Changes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    moved = np.zeros(len(changes), np.bool_)
    for name in changes.schema.key:
        differs = pc.not_equal(changes.new.column(name), changes.old.column(name))
        moved |= pc.fill_null(differs, False).to_numpy(zero_copy_only=False)
    return moved
