"""A session at the server that copies are read from, for copies without an exported snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trucker.lsn import Lsn
from trucker.postgres.catalog_session import CatalogSession
from trucker.postgres.row_keys import canonical_keys, check_condition, selected_keys
from trucker.postgres.slot import watermark
from trucker.postgres.snapshot import extents
from trucker.postgres.visibility import await_visible, has_synchronous_standbys, running
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
