"""A destination table: its catalog entry, and keeping its columns able to hold the source's rows.

Tables that trucker makes have no constraint at all. A PRIMARY KEY doubled the time of a bulk load when measured
(its index lives in memory, too), DuckDB does not use it for the joins that apply a batch, and it refuses legal
batches: a key that leaves a row and comes to another one inside a transaction is a violation to it. NOT NULL would
have to be released again for a column that the source drops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import duckdb

from trucker.adapters.duckdb import TEXT
from trucker.errors import DataError, SinkError, TruckerError
from trucker.sinks.altered import log_altered
from trucker.sinks.duckdb.dialect import SCHEMA
from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.duckdb.types import describe, duckdb_type, holds, literal, to_text, widens
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Row
from trucker.sinks.sql.alterations import Alterations
from trucker.sinks.sql.examination import examine_targets, parents_first
from trucker.sinks.target import Target
from trucker.table import Column, SchemaChanges, TableId, quote_identifier
from trucker.types import Unfit


@dataclass(frozen=True, slots=True)
class DuckDBColumn:
    """See `alterations.PresentColumn`."""

    bare_type: str
    not_null: bool = False
    fills_itself: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the file's catalog has it: its name for SQL, and its columns."""

    sql: str
    columns: Mapping[str, DuckDBColumn]
    types: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", {name: column.bare_type for name, column in self.columns.items()})


def find_table(connection: duckdb.DuckDBPyConnection, table: TableId) -> Table | None:
    """The table, None where there is none. Raises `SinkError` if only its capitals differ: to DuckDB it is the same."""
    rows = run(
        connection,
        "SELECT schema_name, table_name, column_name, data_type, NOT is_nullable, column_default IS NOT NULL "
        "FROM duckdb_columns() "
        "WHERE database_name = current_database() AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?) "
        "ORDER BY column_index",
        [table.schema, table.name],
    )
    if not rows:
        return None
    if rows[0][1] != table.name:
        raise SinkError(
            f"table {table} and the existing table {rows[0][0]}.{rows[0][1]} have the same name in DuckDB, "
            "which ignores case",
            remedy="name another table in the truck's output",
            code="TRK435",
        )
    return Table(_sql_name(connection, table), {name: DuckDBColumn(*column) for _, _, name, *column in rows})


def has_unique(connection: duckdb.DuckDBPyConnection, table: TableId) -> bool:
    """Whether the user gave the table a key: DuckDB may then refuse to insert what the same transaction deleted."""
    rows = run(
        connection,
        "SELECT count(*) FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = ? "
        "AND table_name = ? AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        [table.schema, table.name],
    )
    return rows != [(0,)]


def _sql_name(connection: duckdb.DuckDBPyConnection, table: TableId) -> str:
    return f"{catalog(connection)}.{table.quoted}"


def prepare_table(connection: duckdb.DuckDBPyConnection, target: Target) -> frozenset[str]:
    """Create the table, or alter it as far as the target allows; returns the columns it lacks. The caller owns the
    transaction."""
    table, due = due_actions(connection, target)
    if table is None:
        _create(connection, target)
        return frozenset()
    if due is None:
        return frozenset(target.source.names) - table.columns.keys()
    for action in due:
        run(connection, f"ALTER TABLE {table.sql} {action}")
        log_altered(target, action)
    return frozenset()


def due_actions(connection: duckdb.DuckDBPyConnection, target: Target) -> tuple[Table | None, list[str] | None]:
    """The table that is there, and what has to be done to it; None where nothing may be. Changes nothing.

    Raises `SinkError` for a table that cannot hold the target's rows, with the statements that a person has to run.
    """
    _check_names(target)
    table = find_table(connection, target.table)
    if table is None:
        return None, []
    alterations = DuckDBAlterations(connection, target, table.columns)
    if target.strict:
        alterations.refuse_other_columns()
    elif target.schema_changes is SchemaChanges.IGNORE:
        if not alterations.called_otherwise():
            _refuse_missing_key(target, table)
        return table, None
    return table, alterations.due()


def examine_tables(
    connection: duckdb.DuckDBPyConnection, ledger: Ledger, targets: Sequence[Target], due: Collection[TableId]
) -> Iterator[tuple[Target, TruckerError]]:
    """See `Examinable.examine`."""
    yield from examine_targets(
        targets,
        due,
        lambda: ledger,
        lambda target: due_actions(connection, target)[0] is not None,
        partial(is_empty, connection),
    )


def _refuse_missing_key(target: Target, table: Table) -> None:
    lost = sorted(frozenset(target.source.key) - table.columns.keys())
    if lost:
        raise SinkError(
            f"table {target.table} has no column {lost[0]!r}, which is part of the key of {target.source.table}",
            remedy=f"ALTER TABLE {target.table.quoted} ADD COLUMN {quote_identifier(lost[0])} …",
            code="TRK438",
        )


class DuckDBAlterations(Alterations[DuckDBColumn]):
    """How a table of the file follows the source's."""

    retype: ClassVar[str] = "SET DATA TYPE"
    text: ClassVar[str] = TEXT
    place: ClassVar[str] = "in the DuckDB file"

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, target: Target, columns: Mapping[str, DuckDBColumn]
    ) -> None:
        super().__init__(target, columns)
        self._connection = connection

    def wanted(self, column: Column) -> str:
        return _wanted(self.target, column)

    def holds(self, kind: str, other: str) -> bool:
        return holds(kind, other)

    def widens(self, kind: str, other: str) -> bool:
        return widens(other, kind)

    def missing_value(self, column: Column) -> str:
        unfit, wanted, text = self.target.unfit_of(column.name), self.wanted(column), column.missing_value or ""
        value = literal(text, wanted, unfit)
        if unfit is not Unfit.NULL and run(self._connection, f"SELECT TRY({value}) IS NULL") == [(True,)]:
            raise unfit_value(self.target, column.name, wanted, text)
        return value

    def check_name(self, column: Column, columns: Mapping[str, DuckDBColumn]) -> None:
        for existing in columns:
            if existing.lower() == column.name.lower():
                raise _same_name(self.target, column.name, existing)

    def widened(self, column: Column, present: DuckDBColumn) -> Iterator[str]:
        target, actual, wanted = self.target, present.bare_type, self.wanted(column)
        if target.unfit_of(column.name) is Unfit.TEXT:
            yield _text_conversion(target, column.name, actual)
        elif widens(actual, wanted):
            yield f"ALTER COLUMN {quote_identifier(column.name)} {self.retype} {wanted}"
        elif not column.was_type:
            raise _unfit(target, column.name, actual, wanted)


def _wanted(target: Target, column: Column) -> str:
    return duckdb_type(column, target.unfit_of(column.name))


def _text_conversion(target: Target, column: str, actual: str) -> str:
    """The truck's policy has become `text`: rows that are there get PostgreSQL's text of their values, too."""
    name = quote_identifier(column)
    text = to_text(name, actual)
    if text is None:
        raise SinkError(
            f"column {column!r} of table {target.table} is {actual}, whose text form differs between DuckDB and "
            "PostgreSQL",
            remedy=f"remove unfit: text ({actual} holds every value of the source); or drop the table and run "
            f"`trucker reset --truck {target.truck}`, then `trucker run`, which copies it as text",
            code="TRK438",
        )
    return f"ALTER COLUMN {name} SET DATA TYPE VARCHAR USING {text}"


def _create(connection: duckdb.DuckDBPyConnection, target: Target) -> None:
    columns = ", ".join(f"{quote_identifier(c.name)} {_wanted(target, c)}" for c in target.source.columns)
    run(connection, f"CREATE SCHEMA IF NOT EXISTS {catalog(connection)}.{quote_identifier(target.table.schema)}")
    run(connection, f"CREATE TABLE {_sql_name(connection, target.table)} ({columns})")


def _check_names(target: Target) -> None:
    if target.table.schema.lower() == SCHEMA:
        raise SinkError(
            f"table {target.table} is in the schema of trucker's own tables",
            remedy="name another schema in the truck's output",
            code="TRK436",
        )
    refuse_capitals(target, target.source.names)


def refuse_capitals(target: Target, names: Sequence[str]) -> None:
    """Raise for names that are one to DuckDB."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise _same_name(target, name, other)


def _same_name(target: Target, name: str, other: str) -> SinkError:
    return SinkError(
        f"columns {name!r} and {other!r} of table {target.table} have the same name in DuckDB, which ignores case",
        remedy="leave one of them out with except_columns, or rename it at the source",
        code="TRK437",
    )


def _unfit(target: Target, name: str, actual: str, wanted: str) -> SinkError:
    column = quote_identifier(name)
    return SinkError(
        f"column {name!r} of table {target.table} is {actual}, which cannot hold every {wanted}",
        remedy=f"ALTER TABLE {target.table.quoted} ALTER {column} TYPE {wanted} (or VARCHAR, which holds everything)",
        code="TRK438",
    )


def table_of(connection: duckdb.DuckDBPyConnection, target: Target) -> Table:
    """The prepared table of a target. Raises `SinkError` if it, or a column, was dropped while it is being copied."""
    table = find_table(connection, target.table)
    lost = [] if table is None else [name for name in target.source.names if name not in table.types]
    if table is None or lost:
        what = f"column {lost[0]!r} of table {target.table}" if lost else f"table {target.table}"
        raise SinkError(
            f"{what} does not exist", remedy="run `trucker run`, which creates it and copies the table", code="TRK439"
        )
    return table


def is_empty(connection: duckdb.DuckDBPyConnection, table: TableId) -> bool:
    """Whether the table has no rows, or is not there."""
    existing = find_table(connection, table)
    return existing is None or not run(connection, f"SELECT 1 FROM {existing.sql} LIMIT 1")


def in_order(connection: duckdb.DuckDBPyConnection, targets: Sequence[Target]) -> list[Target]:
    """The targets, those with tables that others refer to by foreign keys first."""
    if len(targets) < 2:
        return list(targets)
    rows = run(
        connection,
        "SELECT schema_name, table_name, referenced_table FROM duckdb_constraints() "
        "WHERE database_name = current_database() AND constraint_type = 'FOREIGN KEY'",
    )
    parents: dict[TableId, set[TableId]] = defaultdict(set)
    for schema, child, parent in rows:
        if child != parent:
            parents[TableId(schema, child)].add(TableId(schema, parent))
    tables = parents_first([target.table for target in targets], parents)
    return sorted(targets, key=lambda target: tables.index(target.table))


def read_row(connection: duckdb.DuckDBPyConnection, table: Table, target: Target, key: Row) -> Row | None:
    """The row with that key, each cell as a text that is read as the same value again."""
    names, types = target.source.names, table.types
    cells = ", ".join(
        to_text(quote_identifier(name), types[name]) or f"CAST({quote_identifier(name)} AS VARCHAR)" for name in names
    )
    where = " AND ".join(f"{quote_identifier(name)} = {literal(cell, types[name])}" for name, cell in key.items())
    rows = run(connection, f"SELECT {cells} FROM {table.sql} WHERE {where}")
    return dict(zip(names, rows[0], strict=True)) if rows else None


def nulled(connection: duckdb.DuckDBPyConnection, table: Table, target: Target, row: Row) -> Row:
    """The row with NULL for what does not fit in columns of that policy."""
    cells = dict(row)
    for name, unfit in target.unfit:
        if unfit is Unfit.NULL and cells.get(name) is not None:
            value = literal(cells[name], table.types[name], unfit)
            if run(connection, f"SELECT {value} IS NULL") == [(True,)]:
                cells[name] = None
    return cells


def has_keys(connection: duckdb.DuckDBPyConnection, table: TableId) -> bool:
    """Whether keys of the user's are on it: DuckDB lets no key go and come again within a transaction."""
    keys = run(
        connection,
        "SELECT 1 FROM duckdb_constraints() WHERE constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')"
        " AND schema_name = ? AND table_name = ? UNION ALL"
        " SELECT 1 FROM duckdb_indexes() WHERE is_unique AND schema_name = ? AND table_name = ?",
        [table.schema, table.name] * 2,
    )
    return bool(keys)


def unique_columns(connection: duckdb.DuckDBPyConnection, table: TableId) -> list[tuple[str, ...]]:
    """The columns of each unique constraint and index; an index over expressions is left out."""
    rows = run(
        connection,
        "SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        " AND schema_name = ? AND table_name = ? UNION ALL SELECT CAST(expressions AS VARCHAR[]) FROM duckdb_indexes()"
        " WHERE is_unique AND schema_name = ? AND table_name = ?",
        [table.schema, table.name] * 2,
    )
    return [tuple(str(name).strip('"') for name in names) for (names,) in rows]


def unfit_value(target: Target, column: str, kind: str, text: str) -> DataError:
    """A value that the destination's type cannot hold; says what kind it is, never the value (I10)."""
    return DataError(
        f"column {column!r} of table {target.table} is {kind}, which cannot hold {describe(text, kind)}",
        remedy=f"in truck {target.truck} set output.columns.{column}.unfit: text makes the column VARCHAR and "
        "loses nothing, null writes NULL; or leave the column out with except_columns",
        code="TRK442",
        sqlstate="22000",
        column=column,
    )


_CONSTRAINTS: Final = (
    ("NOT NULL constraint", "23502", "a NOT NULL constraint"),
    ("CHECK constraint", "23514", "a CHECK constraint"),
    ("foreign key", "23503", "a foreign key"),
    ("UNIQUE", "23505", "a unique key"),
    ("uplicate key", "23505", "a unique key"),
)


def constraint_of(message: str) -> tuple[str, str]:
    """The kind of constraint that DuckDB speaks of: PostgreSQL's code for it, and in words."""
    matches = ((state, what) for mark, state, what in _CONSTRAINTS if mark in message)
    return next(matches, ("23000", "a constraint"))
