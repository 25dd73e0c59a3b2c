"""The steps of rules, each applied to all rows at once.

New and old cells are treated alike, so that keys, and sums of `new - old`, stay right. A cell that was not sent stays
marked as such (I7). Steps are pickled for the executors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import SecretStr

from trucker.change import (
    DELETE,
    INSERT,
    OLD_FULL,
    OPERATIONS,
    UPDATE,
    Changes,
    Column,
    Mask,
    TableSchema,
    constant_cells,
)
from trucker.config.cast_types import CastType
from trucker.engine.transform.rules.casts import cast
from trucker.engine.transform.rules.texts import keyed_hash, mask, rewrite
from trucker.errors import DataError

OperationNames = frozenset[str]

_SHOWN: Final = 60
"""Characters of a key in an error."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Changes between two rules.

    `operation` is each row's operation before the rules, by which rules are limited: a filter may change `changes.op`.
    `unknown` marks updates whose old row may or may not have passed the filters.
    """

    changes: Changes
    operation: npt.NDArray[np.uint8]
    unknown: Mask

    @classmethod
    def of(cls, changes: Changes) -> Frame:
        return cls(changes, changes.op, np.zeros(len(changes), np.bool_))

    def take(self, rows: Mask) -> Frame:
        return Frame(self.changes.take(rows), self.operation[rows], self.unknown[rows])

    def among(self, operations: OperationNames) -> Mask:
        """The rows that came with one of these operations."""
        codes = [code for code, name in OPERATIONS.items() if name in operations]
        return np.isin(self.operation, codes)


class RuleStep(ABC):
    """One step of the rules."""

    @abstractmethod
    def apply(self, frame: Frame) -> Frame:
        """The frame after the step."""


@dataclass(frozen=True, slots=True)
class RewriteStep(RuleStep):
    """Replaces the cells of a column, in rows of some operations."""

    column: str
    operations: OperationNames
    schema: TableSchema

    @abstractmethod
    def cells(self, cells: pa.Array) -> pa.Array:
        """The new cells."""

    def apply(self, frame: Frame) -> Frame:
        changes = frame.changes
        among = frame.among(self.operations)
        count = len(changes)
        both = pa.concat_arrays([changes.new.column(self.column), changes.old.column(self.column)])
        rewritten = self.cells(both)
        if not among.all():
            rewritten = pc.if_else(pa.array(np.concatenate([among, among])), rewritten, both)
        changed = _with_column(changes, self.schema, self.column, rewritten[:count], rewritten[count:])
        return replace(frame, changes=changed)


@dataclass(frozen=True, slots=True)
class Masked(RewriteStep):
    """Characters replaced."""

    keep_first: int
    keep_last: int
    with_: str

    def cells(self, cells: pa.Array) -> pa.Array:
        return mask(cells, self.keep_first, self.keep_last, self.with_)


@dataclass(frozen=True, slots=True)
class Hashed(RewriteStep):
    """Values replaced by keyed hashes."""

    key: SecretStr

    def cells(self, cells: pa.Array) -> pa.Array:
        return keyed_hash(cells, self.key.get_secret_value().encode())


@dataclass(frozen=True, slots=True)
class Replaced(RewriteStep):
    """Matches of a pattern replaced."""

    pattern: str
    replacement: str

    def cells(self, cells: pa.Array) -> pa.Array:
        return rewrite(cells, self.pattern, self.replacement)


@dataclass(frozen=True, slots=True)
class Cast(RuleStep):
    """Converts a column to another type; a value that does not fit is an error, with the row's key if `names_key`."""

    column: Column
    to: CastType
    schema: TableSchema
    names_key: bool = True

    def apply(self, frame: Frame) -> Frame:
        changes, name, count = frame.changes, self.column.name, len(frame.changes)
        both = pa.concat_arrays([changes.new.column(name), changes.old.column(name)])
        converted, bad = cast(both, self.column, self.to)
        if bad.any():
            raise _unfit(changes, int(np.flatnonzero(bad)[0]), name, self)
        return replace(frame, changes=_with_column(changes, self.schema, name, converted[:count], converted[count:]))


@dataclass(frozen=True, slots=True)
class Reshape(RuleStep):
    """Leaves columns out, or renames them: `names` are the columns that stay, `schema` their new schema."""

    names: tuple[str, ...]
    schema: TableSchema

    def apply(self, frame: Frame) -> Frame:
        changes = frame.changes
        new_names = list(self.schema.names)
        renames = dict(zip(self.names, new_names, strict=True))
        changes = replace(
            changes,
            schema=self.schema,
            new=changes.new.select(list(self.names)).rename_columns(new_names),
            old=changes.old.select(list(self.names)).rename_columns(new_names),
            unchanged={renames[name]: cells for name, cells in changes.unchanged.items() if name in renames},
        )
        return replace(frame, changes=changes)


@dataclass(frozen=True, slots=True)
class ConstantStep(RuleStep):
    """A column with one value, in rows of some operations; NULL in the others where it is new."""

    column: str
    value: str
    operations: OperationNames
    schema: TableSchema

    def apply(self, frame: Frame) -> Frame:
        changes = frame.changes
        among = frame.among(self.operations)
        new = constant_cells(self.value, among & np.isin(changes.op, (INSERT, UPDATE)))
        old = constant_cells(self.value, among & (changes.old_kind == OLD_FULL))
        if self.column in changes.schema.names:
            choice = pa.array(among)
            new = pc.if_else(choice, new, changes.new.column(self.column))
            old = pc.if_else(choice, old, changes.old.column(self.column))
            return replace(frame, changes=_with_column(changes, self.schema, self.column, new, old))
        changes = replace(
            changes,
            schema=self.schema,
            new=changes.new.append_column(self.column, new),
            old=changes.old.append_column(self.column, old),
        )
        return replace(frame, changes=changes)


def _with_column(changes: Changes, schema: TableSchema, name: str, new: pa.Array, old: pa.Array) -> Changes:
    at = changes.schema.names.index(name)
    return replace(
        changes,
        schema=schema,
        new=changes.new.set_column(at, name, new),
        old=changes.old.set_column(at, name, old),
    )


def _unfit(changes: Changes, place: int, column: str, step: Cast) -> DataError:
    """The error for a value that a cast cannot convert; it shows the row's key and never the value (I10)."""
    row, old = place % len(changes), place >= len(changes) or changes.op[place % len(changes)] == DELETE
    cells = changes.old if old else changes.new
    key = ", ".join(
        f"{name} = {_short(cells.column(name)[row].as_py())}" for name in changes.schema.key if step.names_key
    )
    what = f"row ({key}) of table {changes.schema.table}" if key else f"a row of table {changes.schema.table}"
    return DataError(
        f"{what}: column {column} has a value that is not of type {step.to.type_name}",
        remedy="correct the row at the source, or change the rule `cast` in truck.yml; a `filter` before it "
        "can leave such rows out",
        code="TRK560",
        sqlstate="22P02",
        column=column,
    )


def _short(value: str | None) -> str:
    if value is None:
        return "NULL"
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
