"""Whether the tables at a destination are still the ones that trucker has filled (I8).

A table that was dropped, or made again under its name, holds no row of those that were copied; a column that was
dropped, or added again, has lost its values. Neither can be seen from names alone. A sink that keeps tables therefore
stores an identity of each table with its state, in the same transaction as the DDL that it runs itself, and compares.

When. `prepare` compares before it alters a table, and stores what the table is afterwards. `commit` compares the tables
that it writes. `changed_tables` compares all of them, for `trucker check` and for tables that have no changes.
A table in COPYING is not compared: all of its rows come again. Should it be replaced while it is copied, the
commit that ends the copy fails with `replaced_while_copied`, and the copy is repeated.

What follows. The truck stops with `TableChange.error`. Nothing that is missing is made again until the user has chosen:
`trucker reset --table` has the table copied again, `trucker accept` stores the identity of what is there now.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trucker.errors import SinkError, SinkUnavailable
from trucker.table import Column, TableId

CODE: Final = "TRK428"


@dataclass(frozen=True, slots=True)
class TableChange:
    """What is no longer what it was: a destination's table, or columns of it. `source` is the table it is a copy of;
    `shared` says that rows of other source tables are in it, too."""

    truck: str
    source: TableId
    table: TableId
    missing: bool = False
    replaced: bool = False
    missing_columns: tuple[str, ...] = ()
    replaced_columns: tuple[str, ...] = ()
    shared: bool = False

    def among(self, columns: Collection[str]) -> TableChange | None:
        """The change as far as it concerns the table, or these columns; None where it does not."""
        if self.missing or self.replaced:
            return self
        missing, replaced = (
            tuple(name for name in names if name in columns) for names in (self.missing_columns, self.replaced_columns)
        )
        return replace(self, missing_columns=missing, replaced_columns=replaced) if missing or replaced else None

    def what(self) -> str:
        """What has happened, in words."""
        if self.missing:
            return f"table {self.table} was dropped at the destination"
        if self.replaced:
            return f"table {self.table} was dropped and created again at the destination"
        parts = [
            f"{'columns' if len(names) > 1 else 'column'} {', '.join(names)} of table {self.table}"
            f" {'were' if len(names) > 1 else 'was'} {how}"
            for names, how in (
                (self.missing_columns, "dropped at the destination"),
                (self.replaced_columns, "dropped and added again at the destination"),
            )
            if names
        ]
        return "; ".join(parts)

    def error(self) -> SinkError:
        """The reason for which the truck stops, with the choice."""
        truck = f"--truck {shlex.quote(self.truck)}"
        table = "" if self.shared else f" --table {shlex.quote(typed_name(self.source))}"
        return SinkError(
            f"truck {self.truck}: {self.what()}; trucker does not create it again, because rows of "
            f"{self.source} would be missing",
            remedy=f"copy it again: trucker reset {truck}{table}; or go on with the destination as it is now:"
            f" trucker accept {truck}{table}; then trucker run",
            code=CODE,
        ).of_table(self.source)


def typed_name(table: TableId) -> str:
    """A table's name as the command line and truck.yml take it."""
    plain = all(part.replace("_", "").isalnum() for part in (table.schema, table.name))
    return str(table) if plain else table.quoted


def replaced_while_copied(source: TableId, table: TableId) -> SinkUnavailable:
    """Rows of a copy went into a table that is no longer there."""
    return SinkUnavailable(
        f"table {table} was dropped or created again at the destination while {source} was copied to it",
        remedy="none needed: trucker copies the table again",
        code="TRK429",
    ).of_table(source)


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """A table, and the columns of it that trucker writes, by what no other table or column will ever be called.

    `table` is "" for a table that is not there, which the user has accepted: it may be created.
    """

    table: str
    columns: Mapping[str, int] = field(default_factory=dict)

    @property
    def accepts_any(self) -> bool:
        return not self.table

    def only(self, names: Collection[str]) -> TableIdentity:
        """The same, with these columns."""
        return TableIdentity(self.table, {name: n for name, n in self.columns.items() if name in names})

    def lost(
        self, now: TableIdentity, columns: Sequence[Column] | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns that are missing in the same table as it is `now`, and such that have been replaced.

        `columns` are those that are to be written: others may be gone, and one that the source has renamed may have
        been renamed here. Without `columns` a column that is there under another name counts as there.
        """
        if columns is None:
            numbers = frozenset(now.columns.values())
            expected = {name: number for name, number in self.columns.items() if number not in numbers}
        else:
            wanted = {column.name for column in columns}
            expected = {name: number for name, number in self._renamed(now, columns).items() if name in wanted}
        missing = tuple(name for name in expected if name not in now.columns)
        replaced = tuple(name for name, n in expected.items() if now.columns.get(name, n) != n)
        return missing, replaced

    def _renamed(self, now: TableIdentity, columns: Sequence[Column]) -> dict[str, int]:
        moved = {
            column.was_name: column.name
            for column in columns
            if column.was_name in self.columns and now.columns.get(column.name) == self.columns[column.was_name]
        }
        stayed = {name: number for name, number in self.columns.items() if name not in moved}
        return {**stayed, **{new: self.columns[old] for old, new in moved.items()}}


def compare(
    truck: str,
    source: TableId,
    table: TableId,
    stored: TableIdentity | None,
    now: TableIdentity | None,
    columns: Sequence[Column] | None = None,
    *,
    shared: bool = False,
) -> TableChange | None:
    """What has changed since the identity was stored. Of a table that nothing is stored of only its absence shows."""
    change = TableChange(truck, source, table, shared=shared)
    if stored is not None and stored.accepts_any:
        return None
    if now is None:
        return replace(change, missing=True)
    if stored is None:
        return None
    if stored.table != now.table:
        return replace(change, replaced=True)
    missing, replaced = stored.lost(now, columns)
    if not missing and not replaced:
        return None
    return replace(change, missing_columns=missing, replaced_columns=replaced)
