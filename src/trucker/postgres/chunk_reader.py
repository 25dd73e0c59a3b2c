"""Reads chunks of tables for the tasks of a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg

from trucker.adapters.postgres import PostgresConnection
from trucker.change import CopiedRows, RawCopy
from trucker.errors import SourceUnavailable
from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import connect, translated
from trucker.postgres.slot import watermark
from trucker.postgres.snapshot import RawChunk, enter_snapshot, read_chunk
from trucker.source.base import ChunkReader
from trucker.source.snapshot import SnapshotChunk


class PostgresChunkReader(ChunkReader):
    """A connection for one chunk after the other, each read in a transaction of its own, inside the snapshot if one is
    named.

    So that no chunk's table stays locked while the next one is read. A connection that is lost is made anew.
    """

    def __init__(self, config: PostgresConnection, snapshot: str, lsn: Lsn) -> None:
        self._config = config
        self._snapshot = snapshot
        self._lsn = lsn
        self._connection: PgConnection | None = None

    def read(self, chunk: SnapshotChunk) -> Iterator[CopiedRows]:
        """See `read_chunk`. What was read before must have been taken to its end."""
        return read_chunk(self._enter(), chunk, self._lsn)

    def raw(self, chunk: SnapshotChunk, names: Sequence[str], *, binary: bool) -> RawCopy:
        """See `RawChunk`."""
        return RawChunk(self._enter(), chunk, names, binary=binary)

    def watermark(self) -> Lsn:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config, application="trucker copy")
        with translated("reading the end of the WAL"):
            self._connection.execute("rollback")
            return watermark(self._connection)

    def _enter(self) -> PgConnection:
        """A connection that has just entered the snapshot."""
        if self._connection is not None and not self._connection.closed:
            try:
                self._connection.execute("rollback")
                enter_snapshot(self._connection, self._snapshot)
                return self._connection
            except (psycopg.Error, SourceUnavailable):
                self._connection.close()
        self._connection = connect(self._config, application="trucker copy")
        enter_snapshot(self._connection, self._snapshot)
        return self._connection

    def close(self) -> None:
        """Without a COMMIT, which could fail after all has been read: recovery on a standby ends sessions."""
        if self._connection is not None:
            self._connection.close()
