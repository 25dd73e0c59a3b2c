"""PostgreSQL as a source (`trucker.source.base`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from trucker.adapters.postgres import PostgresConnection
from trucker.config.models import TruckConfig
from trucker.errors import SourceError
from trucker.finding import Finding
from trucker.lsn import Lsn
from trucker.postgres.catalog import to_full
from trucker.postgres.catalog_session import CatalogSession
from trucker.postgres.chunk_reader import PostgresChunkReader
from trucker.postgres.connect import connect, explain, parameters
from trucker.postgres.copy_session import PostgresCopySession
from trucker.postgres.preflight import Needed, check_source
from trucker.postgres.publication import drop_publication
from trucker.postgres.query_session import PostgresQuerySession
from trucker.postgres.slot import drop_slot, object_name
from trucker.postgres.slot_creation import new_slot, new_snapshot
from trucker.postgres.snapshot import enter_snapshot
from trucker.postgres.snapshot_view import PostgresSnapshotView
from trucker.postgres.source_query import check_input, check_old_values
from trucker.source.base import Source, StreamParameters
from trucker.source.publication import PublishedTable
from trucker.source.snapshot import ExportedSnapshot
from trucker.source.source_table import SourceTable
from trucker.table import TableSchema


@dataclass(frozen=True, slots=True)
class PostgresSource(Source):
    """A database, by a connection's settings; slot and copies are on its standby where one is named."""

    connection: PostgresConnection
    unique_id: str

    @property
    def name(self) -> str:
        return self.connection.name

    @property
    def publication(self) -> str:
        return self.connection.publication or self._own_name

    @property
    def slot(self) -> str:
        return self.connection.slot or self._own_name

    @property
    def _own_name(self) -> str:
        return object_name(self.unique_id, self.name)

    @property
    def manages_publication(self) -> bool:
        return self.connection.publication is None

    @property
    def resnapshots(self) -> bool:
        return self.connection.on_slot_loss == "resnapshot"

    @property
    def _reads(self) -> PostgresConnection:
        """Where the slot is and copies are taken."""
        return self.connection.replica or self.connection

    # -- sessions -------------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, purpose: str) -> Iterator[CatalogSession]:
        with closing(connect(self.connection, application=f"trucker {purpose}")) as connection:
            yield CatalogSession(connection, self.connection, self.publication, self.slot, reads=False)

    @contextmanager
    def reading_session(self, purpose: str) -> Iterator[CatalogSession]:
        with closing(connect(self._reads, application=f"trucker {purpose}")) as connection:
            yield CatalogSession(connection, self.connection, self.publication, self.slot, reads=True)

    def query_session(self, snapshot: str | None = None) -> PostgresQuerySession:
        return PostgresQuerySession(self._reads, snapshot)

    # -- slot and publication -------------------------------------------------------------------------------------

    def create_slot(self, stop: threading.Event) -> ExportedSnapshot:
        return new_slot(self.connection, self.slot, stop, temporary=False, failover=True)

    def drop_slot(self) -> None:
        with connect(self._reads, application="trucker setup") as connection:
            drop_slot(connection, self.slot)

    def objects(self) -> list[str]:
        objects = []
        if self.connection.slot is None:
            standby = " and of its standby" if self.connection.replica else ""
            objects.append(f"replication slot {self.slot} of {self.name}{standby}")
        if self.manages_publication:
            objects.append(f"publication {self.publication} of {self.name}")
        return objects

    def drop_objects(self) -> None:
        own_slot = self.connection.slot is None
        if self.connection.replica is not None and own_slot:
            with connect(self.connection.replica, application="trucker reset") as standby:
                drop_slot(standby, self.slot)
        with connect(self.connection, application="trucker reset") as primary:
            if own_slot:  # with a standby too: the project may have been run without it before
                drop_slot(primary, self.slot)
            if self.manages_publication:
                drop_publication(primary, self.publication)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def export(self, stop: threading.Event) -> ExportedSnapshot:
        """By a temporary slot."""
        return new_snapshot(self.connection, object_name(self.unique_id, f"{self.name} copy"), stop)

    @contextmanager
    def view(self, exported: ExportedSnapshot) -> Iterator[PostgresSnapshotView]:
        with closing(connect(self._reads, application="trucker snapshot")) as connection:
            enter_snapshot(connection, exported.snapshot)
            yield PostgresSnapshotView(connection, self.publication, exported.lsn, managed=self.manages_publication)

    def verify(self, exported: ExportedSnapshot) -> None:
        """On a standby recovery may have removed rows that were to be read."""
        if exported.standby:
            with self.view(exported):
                pass

    @contextmanager
    def copy_session(self) -> Iterator[PostgresCopySession]:
        with closing(connect(self._reads, application="trucker copy")) as connection:
            yield PostgresCopySession(connection, self.connection, self.publication, self.slot, reads=True)

    def chunk_reader(self, snapshot: str, lsn: Lsn) -> PostgresChunkReader:
        return PostgresChunkReader(self._reads, snapshot, lsn)

    # -- the stream -----------------------------------------------------------------------------------------------

    def stream_parameters(self) -> StreamParameters:
        primary, reads = self.connection.refreshed(), self._reads.refreshed()
        application = f"trucker capture {self.slot}"
        return StreamParameters(
            reads.conninfo(**parameters(reads, application)),
            primary.conninfo(**parameters(primary, application)) if self.connection.replica else None,
            reads.timeouts.connect,
        )

    @property
    def silence(self) -> float:
        return self._reads.timeouts.silence

    def explain(self, reason: str) -> SourceError:
        return explain(self._reads, reason)

    # -- checks ---------------------------------------------------------------------------------------------------

    def check(self, tables: Sequence[PublishedTable], *, instance: str = "") -> list[Finding]:
        return check_source(self.connection, Needed(self.publication, self.slot, tables), instance=instance)

    def check_input(self, truck: TruckConfig, tables: Sequence[TableSchema]) -> list[Finding]:
        return check_input(self._reads, truck, tables)

    def check_old_values(self, truck: TruckConfig, table: SourceTable, origin: Mapping[str, str]) -> Iterator[Finding]:
        return check_old_values(truck, [table], origin)

    def whole_rows_remedy(self, table: SourceTable) -> str:
        return to_full(table)
