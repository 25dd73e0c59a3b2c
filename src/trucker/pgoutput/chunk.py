"""Decodes some changes of one relation together: finds and reads the tuples, and builds columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, OLD_KEY, TRUNCATE, UPDATE, Mask, TableId, TableSchema
from trucker.errors import SourceError
from trucker.pgoutput.relation import Relation
from trucker.pgoutput.run import MessageRun
from trucker.pgoutput.tuples import Tuples
from trucker.pgoutput.wire import NEW_TUPLE, ByteArray, Offsets, bytes_at


@dataclass(frozen=True)
class DecodedChunk:
    """A decoded chunk. `entries` are the entries of its rows; `old` is empty where no row has an old tuple."""

    entries: Offsets
    op: ByteArray
    old_kind: ByteArray
    new: list[pa.Array]
    old: list[pa.Array] = field(default_factory=list)
    unchanged: dict[str, Mask] = field(default_factory=dict)


@dataclass
class ChunkRows:
    """The rows a chunk gives: entry, operation, and which old and new tuple each has (-1: none)."""

    at: Offsets
    op: ByteArray
    old_kind: ByteArray
    old: Offsets
    new: Offsets


class RelationChunk:
    """Some entries of one relation, decoded together."""

    def __init__(self, run: MessageRun, relation: Relation, schema: TableSchema, entries: Offsets) -> None:
        self.run, self.relation, self.schema, self.entries = run, relation, schema, entries
        self.messages = run.entries[entries]
        self.width = len(relation.columns)
        names = schema.names
        self.key = [names.index(name) for name in schema.key]

    def decoded(self) -> DecodedChunk:
        rows, old, new = self._tuples()
        new.read(self.width)
        new.finish()
        return self._part(rows, old, new)

    def _tuples(self) -> tuple[ChunkRows, Tuples, Tuples]:
        """Every row, its old tuples read, its new tuples located: a new tuple begins where the old one ends."""
        op = self.run.kinds[self.messages]
        marker = self.run.markers(self.messages)
        old_kind = self._old_kinds(op, marker)
        starts, ends = self.run.starts[self.messages], self.run.starts[self.messages + 1]
        base = starts[0] if len(starts) else 0
        buffer = self.run.payload[base : ends[-1] if len(ends) else 0]
        starts, ends = starts - base, ends - base

        with_old, with_new = old_kind != NO_OLD, (op == INSERT) | (op == UPDATE)
        old_at, new_at = _numbered(with_old), _numbered(with_new)
        places = starts + 6
        old = self._at(buffer, places[with_old], ends[with_old], with_old)
        old.read(self.width)
        self._check_old(buffer, old, op[with_old])
        places[with_old] = old.places + 1
        new = self._at(buffer, places[with_new], ends[with_new], with_new)
        if len(old):
            new.fill_with(old, old_at[with_new])
        return ChunkRows(np.arange(len(op)), op, old_kind, old_at, new_at), old, new

    def _at(self, buffer: ByteArray, places: Offsets, ends: Offsets, rows: Mask) -> Tuples:
        return Tuples(buffer, places, ends, self.messages[rows], self.width, self.run.blame)

    def _old_kinds(self, op: ByteArray, marker: ByteArray) -> ByteArray:
        """Which old tuple each row has. Raises where the replica identity does not contain the key."""
        has_old = (marker == OLD_KEY) | (marker == OLD_FULL)
        is_new = marker == NEW_TUPLE
        right = np.where(op == INSERT, is_new, np.where(op == DELETE, has_old, is_new | has_old)) | (op == TRUNCATE)
        if not right.all():
            raise self.run.blame(int(self.messages[right.argmin()]), "a tuple is missing")
        old_kind = np.where(has_old & ((op == UPDATE) | (op == DELETE)), marker, NO_OLD).astype(np.uint8)
        covered = self.schema.key and set(self.schema.key) <= set(self.relation.key_columns)
        if not covered and (((op == UPDATE) | (op == DELETE)) & (old_kind != OLD_FULL)).any():
            raise _uncovered(self.relation.table)
        return old_kind

    def _check_old(self, buffer: ByteArray, old: Tuples, op: ByteArray) -> None:
        if not len(old):
            return
        deletes = op == DELETE
        right = np.where(deletes, old.places == old.ends, bytes_at(buffer, old.places) == NEW_TUPLE)
        if not right.all():
            raise self.run.blame(int(old.messages[right.argmin()]), "the old tuple does not end at the expected byte")
        for cells in old.cells:
            if (unsent := cells.unsent) is not None:
                raise self.run.blame(int(old.messages[unsent.argmax()]), "the old tuple lacks a column")

    # columns

    def _check_key(self, new: Tuples) -> None:
        if any(new.cells[column].unsent is not None for column in self.key):
            raise _uncovered(self.relation.table)

    def _part(self, rows: ChunkRows, old: Tuples, new: Tuples) -> DecodedChunk:
        count = len(rows.at)
        self._check_key(new)
        new_at, old_at = _all_or(rows.new), _all_or(rows.old)
        columns = range(self.width)
        return DecodedChunk(
            self.entries[rows.at],
            rows.op,
            rows.old_kind,
            [new.text(column, new_at, count) for column in columns],
            [old.text(column, old_at, count) for column in columns] if len(old) else [],
            self._unchanged(rows, new),
        )

    def _unchanged(self, rows: ChunkRows, new: Tuples) -> dict[str, Mask]:
        masks = {}
        for name, cells in zip(self.schema.names, new.cells, strict=True):
            if (unsent := cells.unsent) is None:
                continue
            mask = np.zeros(len(rows.at), np.bool_)
            present = rows.new >= 0
            mask[present] = unsent[rows.new[present]]
            inserts = mask & (rows.op == INSERT)
            if inserts.any():
                raise self.run.blame(int(self.messages[rows.at[inserts.argmax()]]), "a column was not sent")
            if (mask & (rows.old_kind == OLD_FULL)).any():
                raise _uncovered(self.relation.table)  # a partition whose replica identity is not that of its table
            masks[name] = mask
        return masks


def _uncovered(table: TableId) -> SourceError:
    return SourceError(
        f"the replica identity of table {table}, or of one of its partitions, does not contain the key, so "
        "updates and deletes do not identify a row",
        remedy="if the key of the table was changed, run `trucker run`, which copies it again; otherwise run "
        "the ALTER TABLE that `trucker check` shows, if any, then `trucker reset --truck NAME` and `trucker "
        "run`",
        code="TRK251",
    ).of_table(table)


def _numbered(rows: Mask) -> Offsets:
    """0, 1, 2 … at the marked rows, -1 elsewhere."""
    return np.where(rows, np.cumsum(rows) - 1, -1)


def _all_or(at: Offsets) -> Offsets | None:
    """None where every row has a tuple: then no selection is needed."""
    return None if (at >= 0).all() else at
