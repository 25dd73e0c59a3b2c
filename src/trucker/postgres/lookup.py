"""Tables that a truck looks values up in: described, and read by keys or whole, every value as text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Final

import psycopg
import pyarrow as pa

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError
from trucker.pg.listening import Listening
from trucker.postgres.catalog import source_types
from trucker.postgres.connect import connect, translated
from trucker.postgres.source_query.arrays import array_literal
from trucker.postgres.source_query.result import describe, stream
from trucker.table import Column, TableId, quote_identifier

TOO_MANY: Final = "TRK264"


class LookupSession:
    """A connection for lookups, kept open. One thread at a time reads; the others wait."""

    as_text: ClassVar[bool] = True

    def __init__(self, config: PostgresConnection) -> None:
        self._config = config.replica or config
        self._lock = threading.Lock()
        self._connection: Listening | None = None

    def columns(self, table: TableId) -> tuple[Column, ...]:
        """The table's columns. It may be a view, too."""
        with self._lock, translated(f"connection {self._config.name}: reading the columns of {table}"):
            link = self._open()
            fields = describe(link, f"select * from {table.quoted}")
            types = source_types(link, [(field.type_oid, field.typmod) for field in fields])
        return tuple(Column(f.name, f.type_oid, f.typmod, types[f.type_oid, f.typmod].name) for f in fields)

    def check(self, table: TableId, columns: Sequence[Column], keys: Sequence[Column]) -> None:
        """Whether values of the keys' types can be looked up in the columns of their names; nothing is read."""
        with self._lock, translated(f"connection {self._config.name}: looking up rows in {table}"):
            describe(self._open(), _statement(table, columns, keys))

    def read(
        self, table: TableId, columns: Sequence[Column], keys: Sequence[Column], values: pa.Table, most: int
    ) -> pa.RecordBatch:
        """See `Lookup.read`. A key's type is the values' own, whatever the column's is."""
        pieces, rows = [], 0
        parameters = [array_literal(values.column(key.name).combine_chunks()) for key in keys]
        with self._lock, translated(f"connection {self._config.name}: looking up rows in {table}"):
            for piece in stream(self._open(), f"{_statement(table, columns, keys)} limit {most + 1}", parameters):
                pieces.append(piece)
                rows += piece.num_rows
        if rows > most:
            raise SourceError(
                f"a lookup in {table} returns more than {most} rows",
                remedy="look up by keys (on:) that match fewer rows, or raise rows_max in truck.yml",
                code=TOO_MANY,
            )
        names = [column.name for column in columns]
        empty = pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(columns), names=names)
        return pa.concat_batches([empty, *(piece.rename_columns(names) for piece in pieces)])

    def close(self) -> None:
        with self._lock, suppress(psycopg.Error):
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def _open(self) -> Listening:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = connect(self._config, application="trucker lookup", own_sql=True)
        return self._connection


def _statement(table: TableId, columns: Sequence[Column], keys: Sequence[Column]) -> str:
    listed = ", ".join(f"l.{quote_identifier(column.name)}" for column in columns)
    statement = f"select {listed} from {table.quoted} l"
    if len(keys) == 1:
        return f"{statement} where l.{quote_identifier(keys[0].name)} = any($1::{keys[0].type_name}[])"
    if keys:
        arrays = ", ".join(f"${number}::{key.type_name}[]" for number, key in enumerate(keys, 1))
        names = ", ".join(f"k{number}" for number in range(len(keys)))
        same = " and ".join(f"l.{quote_identifier(key.name)} = k.k{number}" for number, key in enumerate(keys))
        return f"{statement} join unnest({arrays}) as k({names}) on {same}"
    return statement
