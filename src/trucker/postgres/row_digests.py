"""Digests of a table's rows, computed by the server inside a snapshot (`trucker.row_digest`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trucker.pg.connection import PgConnection
from trucker.pg.digest_sql import fingerprint, fingerprint_query, rows_query, sums_query
from trucker.postgres.connect import translated
from trucker.postgres.row_keys import root_of
from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.source.source_table import SourceTable


@translated("comparing rows")
def fingerprint_of(connection: PgConnection, table: SourceTable, names: Sequence[str]) -> str:
    """What digests of these columns depend on."""
    row = connection.execute(fingerprint_query()).fetchone()
    assert row is not None
    return fingerprint(row, [table.schema.column(name).type_name for name in names])


@translated("comparing rows")
def digest_sums(connection: PgConnection, table: SourceTable, columns: DigestedColumns, where: str | None) -> GroupSums:
    rows = connection.execute(sums_query(root_of(table), columns, _condition(where))).fetchall()
    return {group: (count, int(digests)) for group, count, digests in rows}


@translated("comparing rows")
def digested_rows(
    connection: PgConnection,
    table: SourceTable,
    columns: DigestedColumns,
    where: str | None,
    groups: Collection[int],
) -> list[DigestedRow]:
    query = rows_query(root_of(table), columns, groups, _condition(where))
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return [DigestedRow(tuple(key), int(digest)) for *key, digest in copy.rows()]


def _condition(where: str | None) -> str:
    return f" where ({where}\n)" if where else ""
