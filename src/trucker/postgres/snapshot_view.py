"""The tables of a database as an exported snapshot shows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import psycopg

from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.catalog import load_table
from trucker.postgres.catalog_look import look, sighting_at
from trucker.postgres.row_digests import digest_sums, digested_rows, fingerprint_of
from trucker.postgres.row_keys import keyed_chunks
from trucker.postgres.snapshot import plan_chunks
from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.source.base import SnapshotView
from trucker.source.look import Look, Sighting
from trucker.source.snapshot import SnapshotChunk
from trucker.source.source_table import SourceTable
from trucker.table import Key, TableId

CANCEL_SECONDS: Final = 5.0


class PostgresSnapshotView(SnapshotView):
    """`connection` is inside the snapshot, whose consistent point is `lsn`. `managed` says that the publication is
    trucker's own."""

    def __init__(self, connection: PgConnection, publication: str, lsn: Lsn, *, managed: bool) -> None:
        self._connection = connection
        self._publication = publication
        self._lsn = lsn
        self._managed = managed

    def describe(self, table: TableId) -> SourceTable:
        return load_table(self._connection, table, publication=None if self._managed else self._publication)

    def look(self, table: TableId) -> Look:
        table_look = look(self._connection, table, self._lsn)
        assert table_look is not None
        return table_look

    def sighting(self, table: TableId) -> Sighting:
        return sighting_at(self._connection, self._publication, table, self._lsn)

    def chunks(
        self, table: SourceTable, chunk_bytes: int, *, columns: Sequence[str], where: str | None
    ) -> Sequence[SnapshotChunk]:
        return plan_chunks(self._connection, table, chunk_bytes, columns=columns, where=where)

    def keyed_chunks(
        self,
        table: SourceTable,
        names: Sequence[str],
        keys: Sequence[Key],
        *,
        columns: Sequence[str],
        where: str | None,
    ) -> tuple[Sequence[SnapshotChunk], Sequence[Key]]:
        return keyed_chunks(self._connection, table, names, keys, columns, where)

    def fingerprint(self, table: SourceTable, names: Sequence[str]) -> str:
        return fingerprint_of(self._connection, table, names)

    def digest_sums(self, table: SourceTable, columns: DigestedColumns, where: str | None) -> GroupSums:
        return digest_sums(self._connection, table, columns, where)

    def digested_rows(
        self, table: SourceTable, columns: DigestedColumns, where: str | None, groups: Collection[int]
    ) -> Sequence[DigestedRow]:
        return digested_rows(self._connection, table, columns, where, groups)

    def cancel(self) -> None:
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)
