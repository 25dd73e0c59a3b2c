"""A table as one snapshot of the destination shows it; the server digests its rows, and expected ones.

Expected rows go into a temporary table that has the types of the table's columns, so that they are digested as they
would be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import psycopg
import pyarrow as pa

from trucker.adapters.postgres import PostgresConnection
from trucker.change import Changes, as_changes
from trucker.errors import SinkError
from trucker.pg.digest_sql import fingerprint, fingerprint_query, rows_query, sums_query
from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.sinks.compared_table import ComparedTable
from trucker.sinks.copy_text import copy_text
from trucker.sinks.postgres.ddl.tables import describe, no_table
from trucker.sinks.postgres.failure import explain
from trucker.sinks.postgres.session import session
from trucker.sinks.postgres.stage.text_stage import copy_in
from trucker.sinks.postgres.stage.unfit_values import unfit_values
from trucker.sinks.target import Target
from trucker.sinks.unfit_values import fitting
from trucker.table import quote_identifier

_EXPECTED: Final = "pg_temp.trucker_expected"


class PostgresComparedTable(ComparedTable):
    """See `ComparedTable`. Holds a connection, in a transaction that sees the database as it was at the beginning."""

    def __init__(self, config: PostgresConnection, target: Target, groups: int) -> None:
        self._where = f"connection {config.name}, comparing table {target.table}"
        self._target = target
        self._expects = False
        with ExitStack() as stack, self._explaining():
            self._session = stack.enter_context(session(config))
            stack.callback(self._roll_back)
            self._session.connection.execute(b"begin isolation level repeatable read")
            table = describe(self._session, target.table)
            if table is None:
                raise no_table(target)
            self._table = table
            names = tuple(name for name in target.source.names if name in table.columns and table.writable(name))
            self.columns = DigestedColumns(names, tuple(name for name in target.source.key if name in names), groups)
            row = self._session.connection.execute(fingerprint_query()).fetchone()
            assert row is not None
            self.fingerprint = "" if target.unfit else fingerprint(row, [table.columns[n].bare_type for n in names])
            self._closing = stack.pop_all()

    def sums(self) -> GroupSums:
        return self._sums(self._target.table.quoted)

    def rows(self, groups: Collection[int]) -> Iterator[DigestedRow]:
        return self._rows(self._target.table.quoted, groups)

    def sums_of(self, expected: pa.RecordBatch) -> GroupSums:
        self._expect(expected)
        return self._sums(_EXPECTED)

    def rows_of(self, expected: pa.RecordBatch, groups: Collection[int]) -> Iterator[DigestedRow]:
        self._expect(expected)
        return self._rows(_EXPECTED, groups)

    def cancel(self) -> None:
        with suppress(psycopg.Error):
            self._session.connection.cancel_safe(timeout=5.0)

    def close(self) -> None:
        self._closing.close()

    def _sums(self, relation: str) -> GroupSums:
        with self._explaining():
            rows = self._session.connection.execute(sums_query(relation, self.columns)).fetchall()
        return {group: (count, int(digests)) for group, count, digests in rows}

    def _rows(self, relation: str, groups: Collection[int]) -> Iterator[DigestedRow]:
        query = rows_query(relation, self.columns, groups)
        with self._explaining(), self._session.connection.cursor() as cursor, cursor.copy(query) as copy:
            for *key, digest in copy.rows():
                yield DigestedRow(tuple(key), int(digest))

    def _expect(self, expected: pa.RecordBatch) -> None:
        """Have the temporary table hold these rows, and no others."""
        names = self.columns.columns
        rows = Changes.inserts(self._target.source, expected.select(self._target.source.names))
        with self._explaining():
            columns = ", ".join(map(quote_identifier, names))
            if self._expects:
                self._session.run(f"truncate {_EXPECTED}")
            else:
                like = f"select {columns} from {self._target.table.quoted} with no data"
                self._session.run(f"create temporary table trucker_expected on commit drop as {like}")
                self._expects = True
            with self._session.connection.transaction():  # a savepoint: a row that is refused ends nothing else
                for changes in as_changes(fitting(self._target, iter([rows]), self._find_unfit)):
                    cells = [changes.new.column(name) for name in names]
                    copy_in(self._session, f"{_EXPECTED} ({columns})", copy_text(cells, len(changes)))

    def _find_unfit(self, name: str, texts: pa.Array) -> pa.Array:
        return unfit_values(self._session, self._table, name, texts)

    def _roll_back(self) -> None:
        with suppress(psycopg.Error):
            self._session.connection.execute(b"rollback")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            reason: SinkError = explain(error, self._where, table=self._target.table)
            raise reason from None
