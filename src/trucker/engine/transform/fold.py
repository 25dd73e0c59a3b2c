"""How far a truck's changes are folded: over a part, within each transaction, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, OLD_KEY, TRUNCATE, UPDATE, Changes, Column, TableSchema
from trucker.engine.transform.compact import compact, moved

RowIndices = npt.NDArray[np.int64]


class Fold(StrEnum):
    """Which changes of a key are combined into one: those of a part, of a transaction, or none."""

    NET = "net"
    TRANSACTION = "transaction"
    NONE = "none"


def fold(changes: Sequence[Changes], how: Fold) -> list[Changes]:
    """The folded changes of one table, in order; at most one value, except where the shape changes."""
    if not changes:
        return []
    if how is Fold.NONE:
        newest = changes[-1].schema
        return [Changes.concat([each.reshaped(newest) for each in changes])]
    if how is Fold.NET:
        return compact(changes)
    marked = [_marked(each) for each in changes]
    return [_unmarked(each, changes[-1].schema.key) for each in compact(marked)]


def _mark(schema: TableSchema) -> str:
    """The name of the added column: longer than any other, so that no column has it."""
    return max(schema.names, key=len) + "~"


def _marked(changes: Changes) -> Changes:
    """With the transaction as a column of the key, so that only its own changes of a row are folded."""
    schema = changes.schema
    name = _mark(schema)
    lsns, places = np.unique(changes.commit_lsn, return_inverse=True)
    texts = pa.array([str(lsn) for lsn in lsns.tolist()], pa.string()).take(pa.array(places))
    column = Column(name, 25, type_name="text")
    key = (*schema.key, name) if schema.key else ()
    return replace(
        changes,
        schema=TableSchema(schema.table, (*schema.columns, column), key),
        new=changes.new.append_column(name, texts),
        old=changes.old.append_column(name, texts),
    )


def _unmarked(changes: Changes, key: tuple[str, ...]) -> Changes:
    narrow = changes.only(changes.schema.names[:-1])
    return replace(narrow, schema=replace(narrow.schema, key=key))


def without_truncates(changes: Sequence[Changes]) -> list[Changes]:
    """All but the truncates."""
    rest = (each.take(each.op != TRUNCATE) if has_truncate([each]) else each for each in changes)
    return [each for each in rest if len(each)]


def has_truncate(changes: Sequence[Changes]) -> bool:
    return any(bool((each.op == TRUNCATE).any()) for each in changes)


def filled(changes: Changes) -> Changes:
    """Changes whose cells that were not sent are taken from the old row, where that was sent whole (I7)."""
    if not changes.unchanged:
        return changes
    full = changes.old_kind == OLD_FULL
    new = changes.new
    unchanged = {}
    for name, mask in changes.unchanged.items():
        sent_old = mask & full
        if sent_old.any():
            place = changes.schema.names.index(name)
            cells = pc.if_else(pa.array(sent_old), changes.old.column(name), new.column(name))
            new = new.set_column(place, name, cells)
        if (mask & ~full).any():
            unchanged[name] = mask & ~full
    return replace(changes, new=new, unchanged=unchanged)


def split_moves(changes: Changes) -> Changes:
    """Each update of a key as a delete of the old key and an insert of the new one.

    Folding leaves such updates only where cells were not sent. After those cells are read, the result has to be folded
    again: one row may have left a key that another row took.
    """
    moves: RowIndices = np.flatnonzero((changes.op == UPDATE) & (changes.old_kind == OLD_KEY))
    if not len(moves):
        return changes
    leaving = changes.take(moves)
    leaving = replace(leaving, op=np.full(len(moves), DELETE, np.uint8), new=_nothing(leaving.new), unchanged={})
    op, old_kind = changes.op.copy(), changes.old_kind.copy()
    op[moves], old_kind[moves] = INSERT, NO_OLD
    moved = pa.array(old_kind != changes.old_kind)
    old = [pc.if_else(moved, None, cells) for cells in changes.old.columns]
    arriving = replace(
        changes, op=op, old_kind=old_kind, old=pa.RecordBatch.from_arrays(old, names=list(changes.schema.names))
    )
    return Changes.concat([leaving, arriving])


def vacate_keys(changes: Changes) -> Changes:
    """With a delete before each update of a key, of the row that may have the new one.

    In the order of the changes, which have not been folded: the key is then not one that no row had before.
    """
    moves = moved(changes)
    if not moves.any():
        return changes
    twice = changes.take(np.repeat(np.arange(len(changes)), moves + 1))
    deletes = np.zeros(len(twice), np.bool_)
    deletes[np.flatnonzero(moves) + np.arange(np.count_nonzero(moves))] = True
    marked, names, nothing = pa.array(deletes), list(changes.schema.names), _nothing(twice.new)
    keys = [twice.new.column(name) if name in changes.schema.key else nothing.column(name) for name in names]
    old = [pc.if_else(marked, key, cells) for key, cells in zip(keys, twice.old.columns, strict=True)]
    new = [pc.if_else(marked, none, cells) for none, cells in zip(nothing.columns, twice.new.columns, strict=True)]
    return replace(
        twice,
        op=np.where(deletes, DELETE, twice.op).astype(np.uint8),
        new=pa.RecordBatch.from_arrays(new, names=names),
        old=pa.RecordBatch.from_arrays(old, names=names),
        old_kind=np.where(deletes, OLD_KEY, twice.old_kind).astype(np.uint8),
        unchanged={name: mask & ~deletes for name, mask in twice.unchanged.items()},
    )


def _nothing(rows: pa.RecordBatch) -> pa.RecordBatch:
    names = rows.schema.names
    return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, pa.string())] * len(names), names=names)
