"""How a filter changes the operation of a row that starts or stops to pass it.

| change | passes after | passed before   | becomes                                         |
|--------|--------------|-----------------|-------------------------------------------------|
| insert | yes          |                 | insert                                          |
| insert | no           |                 | nothing                                         |
| update | yes          | yes             | update                                          |
| update | yes          | no              | insert: the row enters                          |
| update | yes          | not known       | insert, which finds the row there or not        |
| update | no           | yes, not known  | delete by the old key: the row leaves           |
| update | no           | no              | nothing                                         |
| delete |              | yes, not known  | delete                                          |
| delete |              | no              | nothing                                         |

The old values are known from the old tuple (REPLICA IDENTITY FULL), those of key columns always. Later rules do not get
rows that do not pass, so a row must pass every filter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import (
    DELETE,
    INSERT,
    NO_OLD,
    OLD_FULL,
    OLD_KEY,
    TRUNCATE,
    UPDATE,
    Changes,
    Column,
    Mask,
    constant_cells,
)
from trucker.engine.transform.rules.compare import Literal, comparison_of, passing
from trucker.engine.transform.rules.steps import Frame, OperationNames, RuleStep
from trucker.errors import SourceError
from trucker.types import Kind, column_kind

_FIXED = frozenset(
    {
        Kind.SMALLINT,
        Kind.INTEGER,
        Kind.BIGINT,
        Kind.REAL,
        Kind.DOUBLE,
        Kind.BOOLEAN,
        Kind.DATE,
        Kind.TIME,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
        Kind.UUID,
    }
)
"""Kinds of fixed length, which are always sent."""


@dataclass(frozen=True, slots=True)
class Filter(RuleStep):
    """A condition on a column, for rows of some operations; others pass. `null`: NULL passes `is_null`, else values."""

    column: Column
    comparison: str
    literals: tuple[Literal, ...]
    operations: OperationNames
    null: bool = True

    def apply(self, frame: Frame) -> Frame:
        changes = frame.changes
        concerned = frame.among(self.operations) & (changes.op != TRUNCATE)
        passes = ~concerned | self._passes(changes, concerned)
        judged, passed = self._passed(changes, concerned)
        refused = judged & ~passed  # the destination does not have these rows
        fails = np.isin(changes.op, (INSERT, UPDATE)) & ~passes
        nothing = (fails & ((changes.op == INSERT) | refused)) | ((changes.op == DELETE) & refused)
        entering = (changes.op == UPDATE) & passes & refused
        leaving = fails & ~nothing
        unknown = frame.unknown | ((changes.op == UPDATE) & passes & concerned & ~judged)
        if entering.any():
            changes = as_inserts(changes, entering)
        if leaving.any():
            changes = _as_deletes(changes, leaving)
        frame = Frame(changes, frame.operation, unknown & ~entering & ~leaving)
        return frame.take(~nothing) if nothing.any() else frame

    def _passing(self, cells: pa.Array) -> Mask:
        if self.comparison == "is_null":
            return np.asarray(pc.is_null(cells) if self.null else pc.is_valid(cells))
        return passing(comparison_of(self.column), self.comparison, self.literals, cells)

    def _passes(self, changes: Changes, concerned: Mask) -> Mask:
        cells = changes.new.column(self.column.name)
        unsent = changes.unchanged.get(self.column.name)
        if unsent is not None and (unsent & concerned).any():
            cells = filled(changes, self.column.name, unsent & concerned)
        return self._passing(cells)

    def _passed(self, changes: Changes, concerned: Mask) -> tuple[Mask, Mask]:
        """Of which rows the old value is known, and which of those passed before."""
        none = np.zeros(len(changes), np.bool_)
        has_old = changes.old_kind == OLD_FULL
        cells = changes.old.column(self.column.name)
        if self.column.name in changes.schema.key:
            # An update without an old tuple has the key it had.
            same = (changes.op == UPDATE) & (changes.old_kind == NO_OLD)
            has_old = has_old | same | (changes.old_kind == OLD_KEY)
            if same.any():
                cells = pc.if_else(pa.array(same), changes.new.column(self.column.name), cells)
        judged = has_old & concerned & np.isin(changes.op, (UPDATE, DELETE))
        return judged, self._passing(cells) & judged if judged.any() else none


def settled(frame: Frame) -> Changes:
    """The changes after all filters: an update of a row that the destination may not have becomes an insert."""
    changes, unknown = frame.changes, frame.unknown
    if not unknown.any():
        return changes
    moved = unknown & _moved(changes)
    if not moved.any():
        return as_inserts(changes, unknown)
    # The row with the old key, if the destination has it, is deleted.
    doubled = np.repeat(np.arange(len(changes)), moved + 1)
    first = np.concatenate([doubled[1:] == doubled[:-1], [False]])
    changes = _as_deletes(changes.take(doubled), first)
    return as_inserts(changes, unknown[doubled] & ~first)


def as_inserts(changes: Changes, rows: Mask) -> Changes:
    """The changes with the updates among `rows` as inserts of whole rows."""
    unchanged = {name: mask for name, mask in changes.unchanged.items() if (mask & rows).any()}
    new = changes.new
    for name, mask in unchanged.items():
        new = new.set_column(changes.schema.names.index(name), name, filled(changes, name, mask & rows))
    return replace(
        changes,
        op=np.where(rows, INSERT, changes.op).astype(np.uint8),
        new=new,
        old=_nulled(changes.old, rows),
        old_kind=np.where(rows, NO_OLD, changes.old_kind).astype(np.uint8),
        unchanged=_without(changes, rows),
    )


def _as_deletes(changes: Changes, rows: Mask) -> Changes:
    """The changes with the updates among `rows` as deletes by their old key."""
    old = changes.old
    same = pa.array(rows & (changes.old_kind == NO_OLD))
    for name in changes.schema.key:
        cells = pc.if_else(same, changes.new.column(name), old.column(name))
        old = old.set_column(changes.schema.names.index(name), name, cells)
    kind = np.where(rows & (changes.old_kind == NO_OLD), OLD_KEY, changes.old_kind)
    return replace(
        changes,
        op=np.where(rows, DELETE, changes.op).astype(np.uint8),
        new=_nulled(changes.new, rows),
        old=old,
        old_kind=kind.astype(np.uint8),
        unchanged=_without(changes, rows),
    )


def filled(changes: Changes, name: str, rows: Mask) -> pa.Array:
    """A column's new cells, with those of the marked rows, which were not sent, as the old row has them.

    A value of fixed length is always sent; where one was not, the change is older than its column.
    """
    column = changes.schema.column(name)
    cells = changes.new.column(name)
    full = rows & (changes.old_kind == OLD_FULL)
    if full.any():
        cells = pc.if_else(pa.array(full), changes.old.column(name), cells)
    rest = rows & ~full
    if not rest.any():
        return cells
    if column_kind(column).kind not in _FIXED or column_kind(column).array:
        raise unsent(changes.schema.table.quoted, str(changes.schema.table), name)
    return pc.if_else(pa.array(rest), constant_cells(column.missing_value, rest), cells)


def unsent(quoted: str, table: str, column: str) -> SourceError:
    """A filter needs a value that the source does not send."""
    return SourceError(
        f"table {table}: a rule `filter` needs the value of column {column}, which PostgreSQL does not send if "
        "it did not change (TOAST)",
        remedy=f"run: ALTER TABLE {quoted} REPLICA IDENTITY FULL, then trucker reset --truck NAME, then trucker "
        "run: earlier changes lack the value",
        code="TRK216",
    )


def _moved(changes: Changes) -> Mask:
    """Updates whose old key is another than their new one."""
    moved: Mask = np.zeros(len(changes), np.bool_)
    for name in changes.schema.key:
        differ = pc.not_equal(changes.old.column(name), changes.new.column(name))
        moved |= np.asarray(pc.fill_null(differ, False))
    has_old: Mask = changes.old_kind != NO_OLD
    return moved & has_old


def _nulled(batch: pa.RecordBatch, rows: Mask) -> pa.RecordBatch:
    where = pa.array(rows)
    nothing = pa.scalar(None, pa.string())
    cells = [pc.if_else(where, nothing, column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(cells, names=batch.schema.names)


def _without(changes: Changes, rows: Mask) -> dict[str, Mask]:
    return {name: mask & ~rows for name, mask in changes.unchanged.items() if (mask & ~rows).any()}
