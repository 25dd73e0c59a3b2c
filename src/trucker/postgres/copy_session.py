"""A session at the server that copies are read from, for copies without an exported snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from trucker.lsn import Lsn
from trucker.postgres.catalog_session import CatalogSession
from trucker.postgres.connect import connect
from trucker.postgres.row_keys import canonical_keys, check_condition, selected_keys
from trucker.postgres.slot import watermark
from trucker.postgres.snapshot import extents
from trucker.postgres.standby import await_replay, committed_lsn
from trucker.postgres.visibility import await_ended, await_visible, has_synchronous_standbys, running
from trucker.source.base import CopySession
from trucker.source.snapshot import LeafExtent
from trucker.source.source_table import SourceTable
from trucker.table import Key, TableSchema


class PostgresCopySession(CatalogSession, CopySession):
    """Over a connection in autocommit mode."""

    def extents(self, table: SourceTable) -> Sequence[LeafExtent]:
        return extents(self._connection, table)

    def watermark(self) -> Lsn:
        return watermark(self._connection)

    def await_ended(self, stop: threading.Event) -> None:
        replica = self._config.replica
        if replica is None:
            await_ended(self._connection, stop)
            return
        # A standby does not know of transactions that it has yet to replay; tables are published on the primary.
        with closing(connect(self._config, application="trucker copy")) as primary:
            await_ended(primary, stop)
            lsn = committed_lsn(primary)
        await_replay(replica, lsn, stop)

    def running(self) -> frozenset[int]:
        return running(self._connection)

    def has_synchronous_standbys(self) -> bool:
        return has_synchronous_standbys(self._connection)

    def await_visible(self, xids: Iterable[int]) -> None:
        await_visible(self._connection, xids)

    def canonical_keys(self, schema: TableSchema, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        return canonical_keys(self._connection, schema, names, keys)

    def check_condition(self, schema: TableSchema, where: str) -> None:
        check_condition(self._connection, schema, where)

    def selected_keys(self, table: SourceTable, names: Sequence[str], where: str) -> Iterator[Key]:
        return selected_keys(self._connection, table, names, where)
