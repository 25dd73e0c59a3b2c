"""Tables of a DuckDB file that a truck looks values up in. Read in the driver, typed.

A file that trucker writes to is open in this process already: it is read through the same instance. Any other is
opened for reading alone, and closed at once, so that a writer can open it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

import duckdb
import pyarrow as pa

from trucker.adapters.duckdb import DuckDBConnection
from trucker.errors import SinkError
from trucker.sinks.duckdb.session import connect, run, written_here
from trucker.table import Column, TableId, quote_identifier

_TYPES: Final = {
    "TINYINT": "smallint",
    "SMALLINT": "smallint",
    "INTEGER": "integer",
    "BIGINT": "bigint",
    "UTINYINT": "smallint",
    "USMALLINT": "integer",
    "UINTEGER": "bigint",
    "UBIGINT": "numeric(20,0)",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "BOOLEAN": "boolean",
    "BLOB": "bytea",
    "DATE": "date",
    "TIMESTAMP": "timestamp without time zone",
    "TIMESTAMP WITH TIME ZONE": "timestamp with time zone",
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


class DuckDBLookup:
    """The tables of one file."""

    as_text: ClassVar[bool] = False

    def __init__(self, connection: DuckDBConnection) -> None:
        self._config = connection

    def columns(self, table: TableId) -> tuple[Column, ...]:
        """The table's columns, by PostgreSQL's names of their types; what has none there is text."""
        with self._explaining(table), self._open() as connection:
            rows = run(connection, f"DESCRIBE SELECT * FROM {table.quoted}")
        return tuple(Column(str(name), 0, type_name=_type(str(kind))) for name, kind, *_ in rows)

    def check(self, table: TableId, columns: Sequence[Column], keys: Sequence[Column]) -> None:
        """DuckDB compares what it can, and says so when it cannot."""

    def close(self) -> None:
        """Nothing is held."""

    def read(
        self, table: TableId, columns: Sequence[Column], keys: Sequence[Column], values: pa.Table, most: int
    ) -> pa.Table:
        """See `Lookup.read`. The rows are typed as DuckDB has them."""
        listed = ", ".join(_selected(column) for column in columns)
        statement = f"SELECT {listed} FROM {table.quoted} l"
        with self._explaining(table), self._open() as connection:
            if keys:
                connection.register("trucker_keys", values)
                names = ", ".join(f"l.{quote_identifier(name)}" for name in values.column_names)
                statement += f" WHERE ({names}) IN (SELECT * FROM trucker_keys)"
            rows = connection.sql(f"{statement} LIMIT {most + 1}").to_arrow_table()
        if rows.num_rows > most:
            raise SinkError(
                f"a lookup in {table} returns more than {most} rows",
                remedy="look up by keys (on:) that match fewer rows, or raise rows_max in truck.yml",
                code="TRK475",
            )
        return rows

    @contextmanager
    def _open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        path = self._config.path
        if written_here(path):
            connection = connect(path, memory=self._config.memory)
        else:
            connection = connect(path, memory=self._config.memory, read_only=True)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _explaining(self, table: TableId) -> Iterator[None]:
        """DuckDB's errors as ours. The text of one of its catalogue's holds names alone."""
        try:
            yield
        except duckdb.CatalogException as error:
            raise SinkError(
                f"connection {self._config.name}: {str(error).splitlines()[0][:200]}",
                remedy=f"correct the table of the lookup, {table}",
                code="TRK474",
            ) from None
        except duckdb.Error as error:
            raise SinkError(
                f"connection {self._config.name}: looking up in {table} failed: {type(error).__name__}", code="TRK446"
            ) from None


def _type(kind: str) -> str:
    decimal = _DECIMAL.fullmatch(kind)
    return f"numeric({decimal[1]},{decimal[2]})" if decimal else _TYPES.get(kind, "text")


def _selected(column: Column) -> str:
    name = quote_identifier(column.name)
    return f"l.{name}::VARCHAR AS {name}" if column.type_name == "text" else f"l.{name}"
