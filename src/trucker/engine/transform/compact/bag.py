"""The net change of a table without key: how many times more or less each row is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, UPDATE, Changes
from trucker.engine.transform.compact.codes import dense_codes
from trucker.engine.transform.compact.stack import RowNumbers, Stack, pick


def net_of_bag(parts: Sequence[Changes]) -> list[Changes]:
    """Inserts less deletes, row by distinct row, each with its multiplicity."""
    stack = Stack(parts)
    if (stack.op == INSERT).all():
        return list(parts)
    places, gains = _events(stack)
    cells = [_whole(stack, name) for name in stack.schema.names]
    codes, count = dense_codes([column.take(pa.array(places)) for column in cells], stack.schema.columns)
    net = np.bincount(codes, np.where(gains, 1, -1), count).astype(np.int64)
    last_event = np.empty(count, np.int64)
    last_event[codes] = np.arange(len(codes))  # numpy keeps the last assignment to an index
    order = np.argsort(last_event, kind="stable")
    events = np.repeat(last_event[order], np.abs(net[order]))
    if not len(events):
        return []
    return [_built(stack, cells, places[events], net[codes[events]] > 0)]


def _events(stack: Stack) -> tuple[RowNumbers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Rows lost and gained, in order, as places in `Stack.either`; an update is a loss and a gain."""
    rows = np.arange(len(stack))
    updates = stack.op == UPDATE
    of = np.repeat(rows, np.where(updates, 2, 1))
    gains = stack.op[of] == INSERT
    second = np.concatenate([[False], of[1:] == of[:-1]])
    gains |= second
    return np.where(gains, of, of + len(stack)), gains


def _whole(stack: Stack, name: str) -> pa.Array:
    """The column's new cells, then its old ones; a cell that was not sent is the old row's."""
    mask = stack.unchanged(name)
    if mask is None:
        return stack.either(name)
    old = stack.old(name)
    return pa.concat_arrays([pc.if_else(pa.array(mask), old, stack.new(name)), old])


def _built(
    stack: Stack, cells: Sequence[pa.Array], places: RowNumbers, gains: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Changes:
    new, old = np.where(gains, places, -1), np.where(gains, -1, places)
    return stack.built(
        places % len(stack),
        np.where(gains, INSERT, DELETE).astype(np.uint8),
        [pick(column, new) for column in cells],
        [pick(column, old) for column in cells],
        np.where(gains, NO_OLD, OLD_FULL).astype(np.uint8),
        {},
    )
