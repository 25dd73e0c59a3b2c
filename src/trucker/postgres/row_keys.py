"""Rows of a table by their keys, which are given and returned as PostgreSQL's text of their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors, pq

from trucker.errors import ControlError, SourceError
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import query_error, translated
from trucker.source.snapshot import SnapshotChunk
from trucker.source.source_table import SourceTable
from trucker.table import Key, TableSchema, quote_identifier

CHUNK_KEYS: Final = 2_000
ROW_BYTES: Final = 256
"""What a row is taken to have, for the size of a chunk."""

_ARRAY: Final = "%s::text[]"


@translated("checking keys")
def canonical_keys(
    connection: PgConnection, schema: TableSchema, names: Sequence[str], keys: Sequence[Key]
) -> list[Key]:
    """The keys as the server writes them. Raises for the first that is no value of the column's type."""
    if not keys:
        return []
    types = _types(connection, schema, names)
    wrong = _first_wrong(connection, types, keys)
    if wrong is not None:
        listed = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
        raise ControlError(
            f"key {wrong + 1} is not a key of {schema.table}",
            remedy=f"give values of the types of its key: {listed}",
            code="TRK630",
        )
    return _cast(connection, types, keys)


def _types(connection: PgConnection, schema: TableSchema, names: Sequence[str]) -> list[str]:
    """The types of columns without lengths: a cast to a length would cut a value."""
    oids = [schema.column(name).type_oid for name in names]
    query = b"select pg_catalog.format_type(t, -1) from unnest(%s::oid[]) with ordinality as k(t, n) order by n"
    return [name for (name,) in connection.execute(query, [oids]).fetchall()]


def _cast(connection: PgConnection, types: Sequence[str], keys: Sequence[Key]) -> list[Key]:
    texts = ", ".join(f"k.c{i}::{kind}::text" for i, kind in enumerate(types))
    return _run(connection, f"select {texts} from {_given(types)} order by k.n", keys)


def _run(connection: PgConnection, query: str, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
    """Run a query on `_given` keys. Its other `%`, those of a condition say, are none of psycopg's."""
    escaped = query.replace("%", "%%").replace(f"%{_ARRAY}", _ARRAY)
    return list(connection.execute(escaped.encode(), [list(column) for column in zip(*keys, strict=True)]))


def _given(types: Sequence[str]) -> str:
    """Arrays of texts, which are parameters, as a relation of keys with their numbers."""
    names = ", ".join(f"c{i}" for i in range(len(types)))
    return f"unnest({', '.join([_ARRAY] * len(types))}) with ordinality as k({names}, n)"


def _first_wrong(connection: PgConnection, types: Sequence[str], keys: Sequence[Key]) -> int | None:
    """The number of the first key that cannot be cast, found by halving; PostgreSQL's message has the value (I10)."""
    first, last = 0, len(keys)
    if _can_cast(connection, types, keys):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        if _can_cast(connection, types, keys[first:middle]):
            first = middle
        else:
            last = middle
    return first


def _can_cast(connection: PgConnection, types: Sequence[str], keys: Sequence[Key]) -> bool:
    try:
        _cast(connection, types, keys)
    except (psycopg.DataError, errors.InvalidTextRepresentation):
        return False
    return True


def check_condition(connection: PgConnection, schema: TableSchema, where: str) -> None:
    """Raise where a condition cannot be planned for a table's columns."""
    names = ", ".join(map(quote_identifier, schema.names))
    rows = f"(select {names} from only {schema.table.quoted}) as {quote_identifier(schema.table.name)}"
    try:
        connection.execute(f"explain select from {rows} where ({where}\n)".encode())
    except psycopg.OperationalError as error:
        raise query_error(f"reading table {schema.table}", error) from None
    except psycopg.Error as error:
        raise ControlError(
            f"the condition is not valid for table {schema.table}: {error.diag.message_primary}",
            remedy="correct it: it must be an SQL condition on the columns of the table at the source",
            code="TRK630",
        ) from None


def selected_keys(connection: PgConnection, table: SourceTable, names: Sequence[str], where: str) -> Iterator[Key]:
    """The keys of the rows that meet the condition, by one statement."""
    columns = ", ".join(f"{quote_identifier(name)}::text" for name in names)
    query = f"copy (select {columns} from {root_of(table)} where ({where}\n)) to stdout"
    try:
        with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            yield from copy.rows()
    except psycopg.OperationalError as error:
        raise query_error(f"reading table {table.table}", error) from None
    except psycopg.Error as error:  # its text may have a value of a row (I10)
        raise SourceError(
            f"reading table {table.table}: the condition failed with {type(error).__name__}",
            remedy="correct the condition for the rows that it fails on",
        ) from None


@translated("looking for rows by key")
def keyed_chunks(
    connection: PgConnection,
    table: SourceTable,
    names: Sequence[str],
    keys: Sequence[Key],
    columns: Sequence[str],
    where: str | None,
) -> tuple[list[SnapshotChunk], list[Key]]:
    """Chunks that have the rows of these keys, as far as they meet `where`, and the keys without such a row."""
    types = _types(connection, table.schema, names)
    schema = table.schema.only(columns)
    chunks: list[SnapshotChunk] = []
    for first in range(0, len(keys), CHUNK_KEYS):
        part = keys[first : first + CHUNK_KEYS]
        condition = _condition(connection, names, types, part)
        if where:
            condition = f"({where}\n) and {condition}"
        size = ROW_BYTES * len(part)
        chunks += [SnapshotChunk(schema, leaf.table, leaf.oid, 0, None, condition, size) for leaf in table.leaves]
    return chunks, _absent(connection, table, names, types, keys, where)


def _condition(connection: PgConnection, names: Sequence[str], types: Sequence[str], keys: Sequence[Key]) -> str:
    """A condition that the keys alone meet; as text, since COPY takes no parameters."""
    quote = pq.Escaping(connection.pgconn).escape_literal

    def row(key: Key) -> str:
        cells = (f"{quote(cell.encode()).decode()}::{kind}" for cell, kind in zip(key, types, strict=True))
        return f"({', '.join(cells)})"

    columns = ", ".join(map(quote_identifier, names))
    listed = ", ".join(map(row, keys))
    return f"{columns} in ({listed})" if len(names) == 1 else f"({columns}) in (values {listed})"


def _absent(
    connection: PgConnection,
    table: SourceTable,
    names: Sequence[str],
    types: Sequence[str],
    keys: Sequence[Key],
    where: str | None,
) -> list[Key]:
    condition = f" where ({where}\n)" if where else ""
    equal = " and ".join(
        f"r.{quote_identifier(name)} = k.c{i}::{kind}" for i, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    query = (
        f"select k.n from {_given(types)} where not exists (select from (select * from {root_of(table)}{condition}) r"
        f" where {equal}) order by k.n"
    )
    return [keys[number - 1] for (number,) in _run(connection, query, keys)]


def root_of(table: SourceTable) -> str:
    """The table with its partitions; of others that inherit from it, the table alone is published."""
    return table.table.quoted if table.partitioned else f"only {table.table.quoted}"
