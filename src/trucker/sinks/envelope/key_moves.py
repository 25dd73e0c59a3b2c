"""Updates that change the key of a row as a delete and an insert, for envelopes whose readers go by the key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, UPDATE, Changes, Mask
from trucker.sinks.envelope.encoded import operation_codes
from trucker.sinks.envelope.row_shapes import Indices

_MOVED_AWAY: Final = "/delete"


@dataclass(frozen=True, slots=True)
class SplitChanges:
    """Changes of which none moves a key. `change` is the number of the change that each is of, `suffix` the end of its
    event's id, `operation` the event's."""

    changes: Changes
    change: Indices
    operation: npt.NDArray[np.uint8]
    suffix: pa.LargeStringArray


def split_key_moves(changes: Changes) -> SplitChanges:
    """The changes with a delete before each one that changes the key, which becomes an insert. Values that were not
    sent are taken from the old row where it has them."""
    changes = _with_known_values(changes)
    moves = _moved(changes)
    rows: Indices = np.repeat(np.arange(len(changes)), 1 + moves)
    suffix = np.zeros(len(rows), np.bool_)
    if moves.any():
        split = changes.take(rows)
        suffix[:-1] = rows[1:] == rows[:-1]
        arrives = moves[rows] & ~suffix
        op = np.where(suffix, DELETE, np.where(arrives, INSERT, split.op)).astype(np.uint8)
        gone, stays = pa.array(suffix), pa.array(arrives)
        new = [pc.if_else(gone, None, cells) for cells in split.new.columns]
        old = [pc.if_else(stays, None, cells) for cells in split.old.columns]
        names = list(changes.schema.names)
        changes = replace(
            split,
            op=op,
            new=pa.RecordBatch.from_arrays(new, names=names),
            old=pa.RecordBatch.from_arrays(old, names=names),
            old_kind=np.where(arrives, NO_OLD, split.old_kind).astype(np.uint8),
            unchanged={name: mask & ~suffix for name, mask in split.unchanged.items() if (mask & ~suffix).any()},
        )
    texts = pa.array(["", _MOVED_AWAY], pa.large_string()).take(pa.array(suffix.astype(np.int8)))
    return SplitChanges(changes, rows, operation_codes(changes.op), texts)


def _moved(changes: Changes) -> Mask:
    """Updates after which the row has another key."""
    updates = changes.op == UPDATE
    if not changes.schema.key or not updates.any():
        return np.zeros(len(changes), np.bool_)
    moved = np.zeros(len(changes), np.bool_)
    with_old = updates & (changes.old_kind != NO_OLD)
    for name in changes.schema.key:
        unsent = changes.unchanged.get(name)
        differs = pc.fill_null(pc.not_equal(changes.new.column(name), changes.old.column(name)), False)
        known = with_old if unsent is None else with_old & ~unsent
        moved |= known & differs.to_numpy(zero_copy_only=False)
    return moved


def _with_known_values(changes: Changes) -> Changes:
    """Unsent values from the old row: of all columns where all of it was sent, of the key wherever there is one."""
    columns, unchanged = list(changes.new.columns), {}
    for name, mask in changes.unchanged.items():
        at, known = changes.schema.names.index(name), changes.old_kind == OLD_FULL
        if name in changes.schema.key:
            known = changes.old_kind != NO_OLD
        if (mask & known).any():
            columns[at] = pc.if_else(pa.array(mask & known), changes.old.column(at), columns[at])
        if (mask & ~known).any():
            unchanged[name] = mask & ~known
    if not changes.unchanged:
        return changes
    new = pa.RecordBatch.from_arrays(columns, names=list(changes.schema.names))
    return replace(changes, new=new, unchanged=unchanged)
