"""A session at the source for the SQL of trucks: input.sql, and values that were not sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from trucker.adapters.postgres import PostgresConnection
from trucker.change import Changes
from trucker.config.sql.sql_files import SqlFile
from trucker.lsn import Lsn
from trucker.postgres.connect import connect
from trucker.postgres.snapshot import enter_snapshot
from trucker.postgres.source_query import PostgresQuery, prepare_query, query_chunk, reselect, run_query
from trucker.postgres.visibility import await_visible
from trucker.rows import Rows
from trucker.slow_sql import SlowQueries
from trucker.source.base import QuerySession, SourceQuery
from trucker.source.snapshot import SnapshotChunk
from trucker.table import TableSchema


class PostgresQuerySession(QuerySession):
    """Connects with the role's own search path, read-only; inside a snapshot, where one is named."""

    def __init__(self, config: PostgresConnection, snapshot: str | None = None) -> None:
        self._connection = connect(config, application="trucker input", own_sql=True)
        if snapshot is not None:
            try:
                enter_snapshot(self._connection, snapshot)
            except BaseException:
                self._connection.close()
                raise

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def prepare(self, file: SqlFile, table: TableSchema, *, positions: bool) -> PostgresQuery:
        return prepare_query(self._connection, file, table, positions=positions)

    def run(self, query: SourceQuery, rows: Rows, *, rows_max: int, slow: SlowQueries | None = None) -> Rows:
        assert isinstance(query, PostgresQuery)
        return run_query(self._connection, query, rows, rows_max=rows_max, slow=slow)

    def run_chunk(
        self, query: SourceQuery, chunk: SnapshotChunk, *, rows_max: int, lsn: Lsn, slow: SlowQueries | None = None
    ) -> Iterator[Rows]:
        assert isinstance(query, PostgresQuery)
        return query_chunk(self._connection, query, chunk, rows_max=rows_max, lsn=lsn, slow=slow)

    def reselect(self, changes: Changes, *, only: Collection[str] | None = None) -> Changes:
        return reselect(self._connection, changes, only=only)

    def await_visible(self, xids: Iterable[int]) -> None:
        await_visible(self._connection, xids)

    def close(self) -> None:
        self._connection.close()
