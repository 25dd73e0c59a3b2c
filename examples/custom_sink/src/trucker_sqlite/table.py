"""One table of the SQLite file: made and widened as the source's is, and changed as the source's was."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trucker.change import Column, SchemaChanges, TableId, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.sql.row_table import Cells, RowTable
from trucker.sinks.strict import refuse_columns
from trucker.sinks.target import Target
from trucker.types import Unfit, column_kind
from trucker_sqlite.adapter import TYPES


def table_name(table: TableId) -> str:
    """SQLite has no schemas: they are part of the name. The first dot ends the schema, whatever dots the names have."""
    return f"{table.schema.replace('%', '%25').replace('.', '%2E')}.{table.name}"


def has_rows(database: sqlite3.Connection, table: TableId) -> bool:
    """Whether there is such a table, with rows in it."""
    name = quote_identifier(table_name(table))
    there = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table_name(table)]).fetchone()
    return there is not None and database.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None


class Table(RowTable):
    """The table of a target, in the caller's transaction."""

    equals: ClassVar[str] = "IS"

    def __init__(self, database: sqlite3.Connection, target: Target) -> None:
        self.plain = table_name(target.table)
        super().__init__(target, quote_identifier(self.plain))
        self._database = database
        self._run = database.execute

    def columns(self) -> dict[str, str]:
        """The types of its columns by name; empty where there is no such table."""
        return {row[1]: row[2] for row in self._run(f"PRAGMA table_info({self.name})")}

    def clear(self) -> None:
        self._run(f"DELETE FROM {self.name}")

    # -- shape ------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        parts = [f"{quote_identifier(column.name)} {self.type_of(column)}" for column in self.target.source.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({self.listed(self.key)})")
        self._run(f"CREATE TABLE {self.name} ({', '.join(parts)}) STRICT")

    def type_of(self, column: Column) -> str:
        as_text = self.target.unfit_of(column.name) is Unfit.TEXT
        return TYPES.text.type if as_text else TYPES.of(column_kind(column)).type

    def rename(self, old: str, new: str) -> None:
        self._run(f"ALTER TABLE {self.name} RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}")

    def add(self, column: Column) -> None:
        name = quote_identifier(column.name)
        self._run(f"ALTER TABLE {self.name} ADD COLUMN {name} {self.type_of(column)}")
        if column.missing_value is not None:
            self._run(f"UPDATE {self.name} SET {name} = ?", [column.missing_value])

    def stored_name(self) -> str | None:
        """The name of the table in the file, which differs in case from ours where it is another's."""
        row = self._run("SELECT name FROM sqlite_master WHERE name = ? COLLATE NOCASE", [self.plain]).fetchone()
        return row[0] if row else None

    def key_columns(self) -> tuple[str, ...]:
        rows = sorted((row[5], row[1]) for row in self._run(f"PRAGMA table_info({self.name})") if row[5])
        return tuple(name for _, name in rows)

    # -- rows -------------------------------------------------------------------------------------------------------

    def run(self, statement: str, rows: Sequence[Cells]) -> int:
        return max(self._database.executemany(statement, rows).rowcount, 0) if rows else 0

    def find(self, key: Cells) -> Mapping[str, Any] | None:
        cursor = self._run(f"SELECT * FROM {self.name} WHERE {self.where(self.key)}", key)
        row = cursor.fetchone()
        return None if row is None else dict(zip((column[0] for column in cursor.description), row, strict=True))

    def removal(self, names: Sequence[str]) -> str:
        one = f"SELECT rowid FROM {self.name} WHERE {self.where(names)} LIMIT 1"
        return f"DELETE FROM {self.name} WHERE rowid = ({one})"


def prepare_table(table: Table, *, filled: bool) -> frozenset[str]:
    """Make the table fit, as far as the truck allows it; gives the columns that are left out.

    `filled` says that the table has been copied: it is not made a second time, because its rows would be missing.
    """
    target = table.target
    stored = table.stored_name()
    if stored is not None and stored != table.plain:
        raise SinkError(
            f"table {target.table} cannot be made: SQLite does not tell it from the table {stored}, which is there",
            remedy="name another table in the truck's output",
        )
    if stored is None:
        if filled:
            raise SinkError(
                f"table {target.table} was dropped at the destination",
                remedy=f"copy it again: trucker reset --truck {target.truck} --table {target.source.table}",
            )
        table.make()
        return frozenset()
    if table.key_columns() != table.key:
        raise SinkError(
            f"table {target.table} has another key than the rows it is to hold ({', '.join(table.key) or 'none'})",
            remedy="drop the table, then trucker reset --truck " + target.truck,
        )
    if target.strict:
        refuse_columns(target, table.columns(), ())
    return _alter(table)


def _alter(table: Table) -> frozenset[str]:
    target, columns = table.target, table.columns()
    renames = target.renames(columns)
    named = {dict(renames).get(name, name): kind for name, kind in columns.items()}
    added = [column for column in target.source.columns if column.name not in named]
    narrow = [c for c in target.source.columns if named.get(c.name, "TEXT") not in ("TEXT", table.type_of(c))]
    if narrow:
        raise SinkError(
            f"table {target.table}: column {narrow[0].name} is an integer there, and no longer one at the source",
            remedy="drop the table, then trucker reset --truck " + target.truck,
        )
    if target.schema_changes is SchemaChanges.IGNORE:
        return frozenset(column.name for column in target.source.columns if column.name not in columns)
    if target.schema_changes is SchemaChanges.STOP and (renames or added):
        raise SinkError(
            f"table {target.table} has other columns than the source's",
            remedy=f"run there: ALTER TABLE {table.name} …, or set schema_changes: apply",
        )
    for old, new in renames:
        table.rename(old, new)
    for column in added:
        table.add(column)
    return frozenset()
