"""A session at a server of the source, for its catalogue, its publication and its slot."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError
from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.catalog import identity_problem, is_refused_by_server, list_tables, load_table, source_types
from trucker.postgres.catalog_look import altered_by, digests, ended, has_older_rows, has_rows, look, sightings
from trucker.postgres.connect import connect
from trucker.postgres.membership import memberships
from trucker.postgres.publication import ensure_publication, publish_again, unserved
from trucker.postgres.slot import current_lsn, find_slot, identify
from trucker.postgres.slot_creation import await_slot
from trucker.source.base import SourceSession, TypeKey
from trucker.source.look import Look, Sighting
from trucker.source.publication import Membership, PublishedTable
from trucker.source.slot import SlotInfo, SystemIdentity
from trucker.source.source_table import SourceTable, SourceType
from trucker.table import TableId


class CatalogSession(SourceSession):
    """Over an open connection in autocommit mode to a server of the source that `config` describes.

    `reads` says that it is the server where the slot is and copies are read.
    """

    def __init__(
        self, connection: PgConnection, config: PostgresConnection, publication: str, slot: str, *, reads: bool
    ) -> None:
        self._connection = connection
        self._config = config
        self._publication = publication
        self._slot = slot
        self._reads = reads

    @property
    def _managed(self) -> bool:
        return self._config.publication is None

    # -- tables ---------------------------------------------------------------------------------------------------

    def identify(self) -> SystemIdentity:
        return identify(self._connection)

    def current_lsn(self) -> Lsn:
        return current_lsn(self._connection)

    def list_tables(self) -> list[TableId]:
        return list_tables(self._connection)

    def load_table(self, table: TableId) -> SourceTable:
        return load_table(self._connection, table, publication=self._config.publication)

    def types(self, types: Iterable[TypeKey]) -> Mapping[TypeKey, SourceType]:
        return source_types(self._connection, types)

    def look(self, table: TableId) -> Look | None:
        return look(self._connection, table)

    def sightings(self, tables: Iterable[TableId]) -> list[Sighting]:
        return sightings(self._connection, self._publication, tables)

    def digests(self, tables: Iterable[TableId]) -> Mapping[TableId, tuple[int, str]]:
        return digests(self._connection, tables)

    def horizon(self) -> int:
        return ended(self._connection)

    def has_rows(self, leaf: TableId) -> bool:
        return has_rows(self._connection, leaf)

    def has_older_rows(self, leaf: TableId, horizon: int) -> bool:
        return has_older_rows(self._connection, leaf, horizon)

    def altered_by(self, leaf: TableId) -> int:
        return altered_by(self._connection, leaf)

    # -- the publication ------------------------------------------------------------------------------------------

    def memberships(self, tables: Iterable[TableId]) -> dict[TableId, Membership]:
        return memberships(self._connection, self._publication, tables)

    def ensure_publication(self, tables: Sequence[PublishedTable], *, dry: bool = False) -> frozenset[TableId]:
        return ensure_publication(self._connection, self._publication, tables, managed=self._managed, dry=dry)

    def publish_again(self, table: PublishedTable) -> None:
        publish_again(self._connection, self._publication, table, managed=self._managed)

    def shortfalls(self, tables: Iterable[PublishedTable]) -> dict[TableId, SourceError]:
        problems = {}
        for wanted in tables:
            source = self.load_table(wanted.table)
            shortfalls = unserved(self._connection, self._publication, [wanted], {wanted.table: source})
            if shortfalls:
                problems[wanted.table] = shortfalls[0]
        return problems

    def identity_problem(self, table: TableId) -> tuple[SourceError | None, bool]:
        try:
            source = self.load_table(table)
        except SourceError as error:
            if error.transient:
                raise
            return error, False
        return identity_problem(source), is_refused_by_server(source)

    # -- the slot -------------------------------------------------------------------------------------------------

    def find_slot(self) -> SlotInfo | None:
        with self._beside_slot() as connection:
            return find_slot(connection, self._slot)

    def await_slot(self, stop: threading.Event) -> SlotInfo | None:
        with self._beside_slot() as connection:
            return await_slot(connection, self._slot, self._config.name, stop)

    @contextmanager
    def _beside_slot(self) -> Iterator[PgConnection]:
        """A connection to the server that has the slot: the standby, where one is named."""
        if self._reads or self._config.replica is None:
            yield self._connection
            return
        with closing(connect(self._config.replica, application="trucker setup")) as standby:
            yield standby
