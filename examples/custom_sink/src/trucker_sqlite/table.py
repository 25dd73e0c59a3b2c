"""One table of the SQLite file: made and widened as the source's is, and changed as the source's was."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from trucker.change import DELETE, UPDATE, Column, SchemaChanges, TableId, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.letters import Row
from trucker.sinks.strict import refuse_columns
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import MOVE, StagedRow
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


class Table:
    """The table of a target, in the caller's transaction."""

    def __init__(self, database: sqlite3.Connection, target: Target) -> None:
        self.target = target
        self._run = database.execute
        self._run_many = database.executemany
        self.plain = table_name(target.table)
        self.name = quote_identifier(self.plain)
        self.key = target.source.key

    def columns(self) -> dict[str, str]:
        """The types of its columns by name; empty where there is no such table."""
        return {row[1]: row[2] for row in self._run(f"PRAGMA table_info({self.name})")}

    def clear(self) -> None:
        self._run(f"DELETE FROM {self.name}")

    # -- shape ------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        parts = [f"{quote_identifier(column.name)} {self.type_of(column)}" for column in self.target.source.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({_list(self.key)})")
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

    def apply(self, rows: Sequence[StagedRow]) -> None:
        """One round: each key at most once."""
        if self.key:
            self._apply_keyed(rows)
        else:
            self._apply_rows(rows)

    def _apply_keyed(self, rows: Sequence[StagedRow]) -> None:
        """Deletes, then keys that move, as a set from the rows before, then the rest."""
        moves = [row for row in rows if row.action == MOVE]
        moved = [cells for row in moves if (cells := self._moved(row))]
        gone = [*(row.data for row in rows if row.action == DELETE), *(row.old_key for row in moves)]
        self._run_many(f"DELETE FROM {self.name} WHERE {_all(self.key)}", [self._key(row) for row in gone])
        for cells in moved:
            self._put(list(cells), [list(cells.values())])
        for row in rows:
            if row.action == UPDATE and row.sent is not None:
                self._update(row)
        names = self.target.source.names
        whole = [[row.data[name] for name in names] for row in rows if row.action == UPDATE and row.sent is None]
        self._put(names, whole)

    def _key(self, row: Row) -> list[str | None]:
        return [row[name] for name in self.key]

    def _moved(self, row: StagedRow) -> Row:
        """The whole row whose key moves, as it will be; empty where it is left out."""
        cursor = self._run(f"SELECT * FROM {self.name} WHERE {_all(self.key)}", self._key(row.old_key))
        stored = cursor.fetchone()
        if stored is None and row.sent is not None:
            self._is_missing()
            return {}
        before = dict(zip((column[0] for column in cursor.description), stored, strict=True)) if stored else {}
        return {**before, **row.cells}

    def _put(self, names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> None:
        """Insert rows, or give those that are there these cells."""
        others = [quote_identifier(name) for name in names if name not in self.key]
        marks = ", ".join("?" * len(names))
        change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        self._run_many(
            f"INSERT INTO {self.name} ({_list(names)}) VALUES ({marks}) ON CONFLICT ({_list(self.key)}) DO {change}",
            rows,
        )

    def _update(self, row: StagedRow) -> None:
        """Give a row the cells that were sent; the others stay (I7)."""
        sets = ", ".join(f"{quote_identifier(name)} = ?" for name in row.cells)
        statement = f"UPDATE {self.name} SET {sets} WHERE {_all(self.key)}"
        if self._run(statement, [*row.cells.values(), *self._key(row.data)]).rowcount != 1:
            self._is_missing()

    def _is_missing(self) -> None:
        """A row lacks cells and is not there: an error, unless it is still to come as a whole."""
        if not self.target.awaits_rows:
            raise self._missing()

    def _apply_rows(self, rows: Sequence[StagedRow]) -> None:
        """Without a key: rows come, then for each that goes one of those that are equal to it."""
        names = self.target.source.names
        cells = [[row.data[name] for name in names] for row in rows]
        marks = ", ".join("?" * len(names))
        added = [values for row, values in zip(rows, cells, strict=True) if row.action != DELETE]
        self._run_many(f"INSERT INTO {self.name} ({_list(names)}) VALUES ({marks})", added)
        one = f"SELECT rowid FROM {self.name} WHERE {_all(names)} LIMIT 1"
        removal = f"DELETE FROM {self.name} WHERE rowid = ({one})"
        for row, values in zip(rows, cells, strict=True):
            if row.action == DELETE and self._run(removal, values).rowcount != 1:
                raise self._missing()

    def _missing(self) -> SinkError:
        return SinkError(
            f"table {self.target.table} lacks a row that the source changed",
            remedy=f"copy it again: trucker reset --truck {self.target.truck}",
        )


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


def _list(names: Sequence[str]) -> str:
    return ", ".join(quote_identifier(name) for name in names)


def _all(names: Sequence[str]) -> str:
    """A condition on every column; IS compares NULL too."""
    return " AND ".join(f"{quote_identifier(name)} IS ?" for name in names)
