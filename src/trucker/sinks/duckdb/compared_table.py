"""A table as one transaction sees the file; DuckDB digests its rows, and expected ones in the types of its columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager

import duckdb
import pyarrow as pa

from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.sinks.compared_table import ComparedTable
from trucker.sinks.duckdb.apply import VALUES, refusal
from trucker.sinks.duckdb.session import Session, run
from trucker.sinks.duckdb.table import table_of
from trucker.sinks.duckdb.types import from_text, to_text
from trucker.sinks.target import Target
from trucker.table import quote_identifier


class DuckDBComparedTable(ComparedTable):
    """See `ComparedTable`. `explaining` turns DuckDB's errors into trucker's."""

    def __init__(
        self, session: Session, target: Target, groups: int, explaining: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._target = target
        self._explaining = explaining
        with ExitStack() as stack, explaining():
            self._connection = stack.enter_context(session.reading())
            self._table = table_of(self._connection, target)
            names = tuple(name for name in target.source.names if name in self._table.types)
            self.columns = DigestedColumns(names, tuple(name for name in target.source.key if name in names), groups)
            # A transaction sees the file as it is at its first look at it.
            run(self._connection, f"SELECT 1 FROM {self._table.sql} LIMIT 1")
            # An expected row that is refused aborts the transaction it is in.
            self._expecting = stack.enter_context(closing(self._connection.cursor()))
            self._closing = stack.pop_all()

    def sums(self) -> GroupSums:
        with self._explaining():
            return self._sums(self._connection, self._table.sql)

    def rows(self, groups: Collection[int]) -> Iterator[DigestedRow]:
        with self._explaining():
            yield from self._rows(self._connection, self._table.sql, groups)

    def sums_of(self, expected: pa.RecordBatch) -> GroupSums:
        with self._explaining(), self._expected(expected):
            return self._sums(self._expecting, self._typed())

    def rows_of(self, expected: pa.RecordBatch, groups: Collection[int]) -> Iterator[DigestedRow]:
        with self._explaining(), self._expected(expected):
            yield from self._rows(self._expecting, self._typed(), groups)

    def cancel(self) -> None:
        self._connection.interrupt()
        self._expecting.interrupt()

    def close(self) -> None:
        with self._explaining():
            self._closing.close()

    def _sums(self, connection: duckdb.DuckDBPyConnection, relation: str) -> GroupSums:
        digests = f"sum({_digest(self.columns.columns)}::HUGEINT)"
        query = f"SELECT {self._group()}, count(*), {digests} FROM {relation} GROUP BY 1"
        return {group: (count, int(digests)) for group, count, digests in run(connection, query)}

    def _rows(
        self, connection: duckdb.DuckDBPyConnection, relation: str, groups: Collection[int]
    ) -> Iterator[DigestedRow]:
        cells = "".join(f"{self._text(name)}, " for name in self.columns.key)
        chosen = f"{self._group()} IN ({', '.join(map(str, sorted(groups)))})"
        query = f"SELECT {cells}{_digest(self.columns.columns)} FROM {relation} WHERE {chosen}"
        for *key, digest in run(connection, query):
            yield DigestedRow(tuple(key), digest)

    @contextmanager
    def _expected(self, rows: pa.RecordBatch) -> Iterator[None]:
        """SQL finds the rows under the name `expected`."""
        self._expecting.register("expected", pa.Table.from_batches([rows]))
        try:
            yield
        except VALUES as error:
            raise refusal(error, self._target) from None
        finally:
            self._expecting.unregister("expected")

    def _typed(self) -> str:
        """Expected rows as the table would hold them."""
        cells = ", ".join(
            f"{from_text(name, self._table.types[column], self._target.unfit_of(column))} AS {name}"
            for column, name in zip(self.columns.columns, map(quote_identifier, self.columns.columns), strict=True)
        )
        return f"(SELECT {cells} FROM expected)"

    def _text(self, column: str) -> str:
        name = quote_identifier(column)
        return to_text(name, self._table.types[column]) or f"CAST({name} AS VARCHAR)"

    def _group(self) -> str:
        return f"({_digest(self.columns.grouped_by)} & {self.columns.groups - 1})::INTEGER"


def _digest(columns: Sequence[str]) -> str:
    return f"hash({', '.join(map(quote_identifier, columns))})"
