"""What a copy needs of its source: a snapshot, and the tables as that shows them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Protocol

from trucker.adapters.postgres import PostgresConnection
from trucker.capture.slot_creation import new_snapshot
from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.catalog import SourceTable, load_table
from trucker.postgres.catalog_look import Look, look
from trucker.postgres.connect import connect
from trucker.postgres.slot import ExportedSnapshot
from trucker.postgres.snapshot import SnapshotChunk, enter_snapshot, plan_chunks
from trucker.table import TableId


class SnapshotView(Protocol):
    """The tables of a source as one snapshot shows them."""

    def describe(self, table: TableId) -> SourceTable:
        """Raises where the table cannot be copied."""

    def look(self, table: TableId) -> Look:
        """What the catalogue says of a table that was described."""

    def chunks(
        self, table: SourceTable, chunk_bytes: int, *, columns: Sequence[str], where: str | None
    ) -> Sequence[SnapshotChunk]:
        """The table cut into chunks. Raises `SourceUnavailable` where it was rewritten after the snapshot."""


class SnapshotSource(Protocol):
    """Where snapshots come from."""

    @property
    def reads(self) -> PostgresConnection:
        """Where tasks read the chunks."""

    def export(self, stop: threading.Event) -> ExportedSnapshot:
        """A new snapshot at a consistent point. Raises `Stopped` when told to stop while it waits."""

    def view(self, exported: ExportedSnapshot) -> AbstractContextManager[SnapshotView]:
        """Enter the snapshot."""

    def check(self, exported: ExportedSnapshot) -> None:
        """Raise where the snapshot no longer shows what it did: on a standby, recovery may have removed rows (see
        `ExportedSnapshot`)."""


class PostgresSnapshots:
    """Snapshots of a PostgreSQL source, each exported by a temporary slot; read from its replica where it has one."""

    def __init__(self, connection: PostgresConnection, temporary_slot: str) -> None:
        self._connection = connection
        self._temporary_slot = temporary_slot

    @property
    def reads(self) -> PostgresConnection:
        return self._connection.replica or self._connection

    def export(self, stop: threading.Event) -> ExportedSnapshot:
        return new_snapshot(self._connection, self._temporary_slot, stop)

    @contextmanager
    def view(self, exported: ExportedSnapshot) -> Iterator[SnapshotView]:
        with closing(connect(self.reads, application="trucker snapshot")) as connection:
            enter_snapshot(connection, exported.snapshot)
            yield _View(connection, self._connection.publication, exported.lsn)

    def check(self, exported: ExportedSnapshot) -> None:
        if exported.standby:
            with self.view(exported):
                pass


class _View:
    """`connection` is inside the snapshot."""

    def __init__(self, connection: PgConnection, publication: str | None, lsn: Lsn) -> None:
        self._connection = connection
        self._publication = publication
        self._lsn = lsn

    def describe(self, table: TableId) -> SourceTable:
        return load_table(self._connection, table, publication=self._publication)

    def look(self, table: TableId) -> Look:
        seen = look(self._connection, table, self._lsn)
        assert seen is not None
        return seen

    def chunks(
        self, table: SourceTable, chunk_bytes: int, *, columns: Sequence[str], where: str | None
    ) -> Sequence[SnapshotChunk]:
        return plan_chunks(self._connection, table, chunk_bytes, columns=columns, where=where)
