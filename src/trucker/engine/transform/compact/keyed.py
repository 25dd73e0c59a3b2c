"""The net change of a table with a key, by numpy and Arrow, no loop over rows.

Rows become *events*, each of one key: an update that changes the key is two, a delete of the old key and an insert of
the new one that may borrow cells from the row it was. All else follows from the first and the last event of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, OLD_KEY, UPDATE, Changes, Mask
from trucker.engine.transform.compact.codes import dense_codes, rising
from trucker.engine.transform.compact.stack import RowNumbers, Stack, pick


def net_by_key(parts: Sequence[Changes]) -> list[Changes]:
    """One row per key (and a delete before a move to a key that was taken); see the package's docstring."""
    stack = Stack(parts)
    inserts = bool((stack.op == INSERT).all())
    if inserts and (len(stack) == 1 or _rising(stack)):
        return list(parts)
    events = _Events.of(stack)
    if events.count == len(events) == len(stack) and not _names_old_key(stack):  # nothing to fold
        return list(parts) if inserts else [Changes.concat(parts)]
    changes = _Net(stack, events).changes()
    return [changes] if len(changes) else []


def _rising(stack: Stack) -> bool:
    """Whether the keys rise, and so are all different, as in most large loads."""
    key = stack.schema.key
    return len(key) == 1 and rising(stack.new(key[0]), stack.schema.column(key[0]))


def _names_old_key(stack: Stack) -> bool:
    """Whether an update has an old key, which only those that move a row may have in the end."""
    return bool(((stack.op == UPDATE) & (stack.old_kind == OLD_KEY)).any())


@dataclass(frozen=True)
class _Events:
    """What happened to which key: `row` of the stack, `op`, key number `code` (of `count`); `old_key` where the key is
    the row's old one."""

    row: RowNumbers
    op: npt.NDArray[np.uint8]
    old_key: Mask
    code: RowNumbers
    count: int

    @classmethod
    def of(cls, stack: Stack) -> _Events:
        moves = _moved(stack)
        row = np.repeat(np.arange(len(stack)), moves + 1)
        op = stack.op[row]
        deletes = np.flatnonzero(moves) + np.arange(np.count_nonzero(moves))
        op[deletes], op[deletes + 1] = DELETE, INSERT
        old_key = op == DELETE
        place = pa.array(row + len(stack) * old_key)
        key = [stack.schema.column(name) for name in stack.schema.key]
        code, count = dense_codes([stack.either(column.name).take(place) for column in key], key)
        return cls(row, op, old_key, code, count)

    def __len__(self) -> int:
        return len(self.row)

    def first(self, among: Mask | None = None) -> RowNumbers:
        """The first event of each key (of those marked), -1 where there is none."""
        return self._edge(among, -1)

    def last(self, among: Mask | None = None) -> RowNumbers:
        """The last event of each key (of those marked), -1 where there is none."""
        return self._edge(among, 1)

    def _edge(self, among: Mask | None, step: int) -> RowNumbers:
        events = (np.arange(len(self)) if among is None else np.flatnonzero(among))[::step]
        edge = np.full(self.count, -1, np.int64)
        edge[self.code[events]] = events  # numpy keeps the last assignment to an index
        return edge


def moved(changes: Changes) -> Mask:
    """The updates that give a row another key."""
    return _moved(Stack([changes]))


def _moved(stack: Stack) -> Mask:
    """The updates whose old key is another than their new one."""
    updates = np.flatnonzero((stack.op == UPDATE) & (stack.old_kind != NO_OLD))
    moved = np.zeros(len(stack), np.bool_)
    if len(updates):
        chosen = pa.array(updates)
        for name in stack.schema.key:
            old, new = stack.old(name).take(chosen), stack.new(name).take(chosen)
            same = pc.fill_null(pc.equal(old, new), False)
            moved[updates] |= ~np.asarray(pc.or_(same, pc.and_(pc.is_null(old), pc.is_null(new))))
    return moved


class _Net:
    """The row of each key before the batch and after it, from the events."""

    def __init__(self, stack: Stack, events: _Events) -> None:
        self.stack, self.events = stack, events
        self.first, self.last = events.first(), events.last()
        self.before: Mask = events.op[self.first] != INSERT
        self.after: Mask = events.op[self.last] != DELETE
        self.sources = {
            name: self._sources(mask)
            for name in stack.schema.names
            if (mask := stack.unchanged(name)) is not None and mask.any()
        }
        self.home = self._homes()

    def _sources(self, unchanged: Mask) -> RowNumbers:
        """For each key, the event whose row holds its final cell, or `-1 - key` where the row of that key before the
        batch does."""
        events = self.events
        unsent = unchanged[events.row]
        borrowing = unsent & (events.op == INSERT)
        setting = (events.op == INSERT) | ((events.op == UPDATE) & ~unsent)
        last = events.last(setting)
        if borrowing.any():
            last = np.where(last < 0, last, self._lenders(borrowing, setting)[last])
        return np.where(events.last(setting) < 0, -1 - np.arange(events.count), last)

    def _lenders(self, borrowing: Mask, setting: Mask) -> RowNumbers:
        """For each event that sets a cell, where its value is: itself, an earlier event, or `-1 - key` as above.

        A moved row borrows from what its old key held just before, which may be borrowed in turn.
        """
        events = self.events
        count = len(events)
        borrowers, setters = np.flatnonzero(borrowing), np.flatnonzero(setting)
        losses = borrowers - 1  # the delete that is the same update's other half
        by_key = np.sort(events.code[setters] * count + setters)
        position = np.searchsorted(by_key, events.code[losses] * count + losses) - 1
        lender = by_key[np.maximum(position, 0)]
        has_lender = (position >= 0) & (lender // count == events.code[losses])
        # A lender may have borrowed the cell itself: follow the chain until it ends at a row that holds the value.
        holder = np.arange(count)
        holder[borrowers] = np.where(has_lender, lender % count, -1 - events.code[losses])
        while True:
            reached = holder[borrowers]
            further = (reached >= 0) & borrowing[reached]
            if not further.any():
                return holder
            holder[borrowers[further]] = holder[reached[further]]

    def _homes(self) -> RowNumbers:
        """For each key, the key its row had before the batch, where the row has cells that are still there; else -1."""
        home = np.full(self.events.count, -1, np.int64)
        for source in self.sources.values():
            borrowed = self.after & (source < 0)
            home[borrowed] = -1 - source[borrowed]
        return home

    def changes(self) -> Changes:
        """The net change, in the order of each key's last event."""
        keys = np.arange(self.events.count)
        moves = (self.home >= 0) & (self.home != keys)
        vacated = np.zeros(self.events.count, np.bool_)
        vacated[self.home[moves]] = True
        stays = self.before & ~vacated
        deleted = np.flatnonzero(stays & (~self.after | moves))
        remaining = np.flatnonzero(self.after)
        remaining_op = np.where(moves | stays, UPDATE, INSERT)[remaining]
        deletes = self.events.last(self.events.op == DELETE)[deleted]

        event = np.concatenate([deletes, self.last[remaining]])
        order = np.argsort(event, kind="stable")
        key = np.concatenate([deleted, remaining])[order]
        op = np.concatenate([np.full(len(deleted), DELETE), remaining_op])[order].astype(np.uint8)
        return self._built(key, op, event[order], moves[key] & (op == UPDATE))

    def _built(self, key: RowNumbers, op: npt.NDArray[np.uint8], event: RowNumbers, move: Mask) -> Changes:
        stack, events = self.stack, self.events
        deleted = op == DELETE
        first = events.row[self.first[key]]
        full = (op != INSERT) & ~move & (stack.old_kind[first] == OLD_FULL)
        old_kind = np.where(full, OLD_FULL, np.where(deleted | move, OLD_KEY, NO_OLD)).astype(np.uint8)
        new_row = np.where(deleted, -1, events.row[event])
        old_row = np.where(full, first, -1)
        old_key = np.where(full, first + len(stack), np.where(deleted, events.row[event] + len(stack), -1))
        old_key[move] = self._place_of_key(self.home[key[move]])

        new, old, unchanged = [], [], {}
        for name in stack.schema.names:
            source = self.sources.get(name)
            rows = new_row if source is None else self._rows(source[key], deleted)
            if source is not None and (missing := (source[key] < 0) & ~deleted).any():
                unchanged[name] = missing
            if name in stack.schema.key:
                cells = stack.either(name)
                new.append(pick(cells, rows))
                old.append(pick(cells, old_key))
            else:
                new.append(pick(stack.new(name), rows))
                old.append(pick(stack.old(name), old_row) if full.any() else pa.nulls(len(key), pa.string()))
        return stack.built(events.row[event], op, new, old, old_kind, unchanged)

    def _rows(self, source: RowNumbers, deleted: Mask) -> RowNumbers:
        """The stack's rows that hold the cells, -1 where none does."""
        return np.where(deleted | (source < 0), -1, self.events.row[source])

    def _place_of_key(self, key: RowNumbers) -> RowNumbers:
        """Where, in `Stack.either`, the key's cells are."""
        event = self.first[key]
        return self.events.row[event] + len(self.stack) * self.events.old_key[event]
