"""Copying tables as of one moment: cut into ranges of pages, each read with COPY by any free task.

All readers import the snapshot that came with the slot (`slot.create_slot`). A range is `[first, last)` in pages of
one table or partition; the last one of each is open, so that nothing depends on how exact the size was. Sizes come
from the files, never from statistics: a table that was never analysed is cut like any other.

A snapshot does not protect from a table being rewritten (ALTER TABLE … TYPE, TRUNCATE, VACUUM FULL): the rows it
should show are then gone or elsewhere. Planner and readers therefore compare the table's file with the one it
had in the snapshot, under a lock, and ask for a new snapshot where it is another one.
"""

from __future__ import annotations

import io
import select
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import psycopg
from psycopg import errors, pq

from trucker.change import CopiedRows, Lsn, RawCopy, TableId, quote_identifier
from trucker.errors import SourceError, SourceUnavailable
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import query_error, translated
from trucker.source.snapshot import LeafExtent, SnapshotChunk
from trucker.source.source_table import SourceTable

PIECE_BYTES = 4 * 1024 * 1024
RAW_BYTES = 256 * 1024

# pg_class is read as of the snapshot, pg_relation_filenode() as of now.
_SIZES = """
    select c.oid, n.nspname, c.relname, pg_relation_filenode(c.oid) is not distinct from c.relfilenode as untouched,
           pg_relation_size(c.oid) as main, pg_table_size(c.oid) as total, current_setting('block_size')::int as block,
           coalesce(a.amname = 'heap', false) as heap, coalesce(pg_relation_filenode(c.oid), 0)::bigint as file
      from unnest(%s::oid[]) with ordinality as leaf(oid, ordinality)
      join pg_class c on c.oid = leaf.oid
      join pg_namespace n on n.oid = c.relnamespace
      left join pg_am a on a.oid = c.relam
     order by leaf.ordinality"""

# PostgreSQL's own catalogues have no file by name.
_REWRITTEN = b"""
    select n.nspname, c.relname
      from pg_catalog.pg_locks l
      join pg_catalog.pg_class c on c.oid = l.relation
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where l.locktype = 'relation' and l.pid = pg_catalog.pg_backend_pid() and c.relkind in ('r', 'm')
       and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
       and c.relfilenode <> 0 and pg_catalog.pg_relation_filenode(c.oid) is distinct from c.relfilenode
     limit 1"""


@translated("importing the snapshot")
def enter_snapshot(connection: PgConnection, snapshot: str) -> None:
    """Begin a read-only transaction on an autocommit connection that sees exactly what the snapshot shows; with an
    empty name, what is visible at its first statement."""
    connection.execute("begin isolation level repeatable read read only")
    if not snapshot:
        return
    try:
        connection.execute(f"set transaction snapshot '{snapshot}'".encode())
    except (errors.UndefinedObject, errors.InvalidParameterValue, errors.ObjectNotInPrerequisiteState) as error:
        connection.execute("rollback")
        raise SourceUnavailable(
            f"the exported snapshot {snapshot} no longer exists: {error.diag.message_primary}",
            remedy="none needed: the connection that exported it was closed, and the copy restarts with a new snapshot",
        ) from None


@translated("planning the copy")
def plan_chunks(
    connection: PgConnection,
    table: SourceTable,
    chunk_bytes: int,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> list[SnapshotChunk]:
    """Cut a table into chunks of about `chunk_bytes`, TOAST included; `connection` must be inside the snapshot.

    An empty table is one chunk, an empty partition none. `columns` and `where` limit what is read.
    """
    schema = table.schema if columns is None else table.schema.only(columns)
    rows = connection.execute(_SIZES.encode(), [[leaf.oid for leaf in table.leaves]]).fetchall()
    if len(rows) != len(table.leaves):
        raise _changed(table.table)
    chunks: list[SnapshotChunk] = []
    for oid, namespace, name, untouched, main, total, block, heap, _ in rows:
        leaf = TableId(namespace, name)
        if not untouched:
            raise _changed(leaf)
        if table.partitioned and main == 0:
            continue
        bounds = _bounds(main // block, total, chunk_bytes) if heap else [0, None]
        share = total // (len(bounds) - 1)
        chunks += [SnapshotChunk(schema, leaf, oid, first or 0, last, where, share) for first, last in pairwise(bounds)]
    return chunks


@translated("reading the size of a table")
def extents(connection: PgConnection, table: SourceTable) -> list[LeafExtent]:
    """The leaves that exist, by their oids."""
    rows = connection.execute(_SIZES.encode(), [[leaf.oid for leaf in table.leaves]]).fetchall()
    return [
        LeafExtent(TableId(namespace, name), oid, file, main // block, total, heap)
        for oid, namespace, name, _, main, total, block, heap, file in sorted(rows)
    ]


def _bounds(pages: int, total: int, chunk_bytes: int) -> list[int | None]:
    """Page numbers at which to cut, the first 0 and the last open. TOAST is taken to be spread evenly."""
    count = max(1, min(pages, -(-total // max(chunk_bytes, 1))))
    return [*(pages * i // count for i in range(count)), None]


def read_chunk(connection: PgConnection, chunk: SnapshotChunk, lsn: Lsn) -> Iterator[CopiedRows]:
    """A chunk's rows in pieces of a few MiB; `connection` must be inside the snapshot (`enter_snapshot`).

    The iteration must be taken to its end: one that is left early closes the connection.
    """
    options = "format csv, force_quote *, encoding 'UTF8'"
    for data, rows in _Copying(connection, chunk, chunk.schema.names, options).blocks(PIECE_BYTES):
        yield CopiedRows(chunk.schema, data, rows, lsn)


class RawChunk(RawCopy):
    """A chunk's rows as COPY writes them, of some of its columns; `connection` must be inside the snapshot.

    Binary values of text are in UTF-8 as well: that is what every connection of trucker's has as its encoding.
    One that is not taken to its end must be closed, and the connection is closed with it.
    """

    def __init__(self, connection: PgConnection, chunk: SnapshotChunk, names: Sequence[str], *, binary: bool) -> None:
        options = "format binary" if binary else "format text, encoding 'UTF8'"
        self._copying = _Copying(connection, chunk, names, options)
        self._blocks = (data for data, _ in self._copying.blocks(RAW_BYTES))

    def __next__(self) -> bytes:
        try:
            return next(self._blocks)
        except StopIteration:
            self.rows = self._copying.copied
            raise

    def close(self) -> None:
        self._blocks.close()


def lock_chunk(connection: PgConnection, chunk: SnapshotChunk) -> None:
    """Keep the table from being rewritten while it is read, and make sure that it was not before."""
    # Behind an ALTER TABLE that itself waits for another reader of this snapshot, `lock_timeout` ends the wait.
    connection.execute(f"lock table only {chunk.leaf.quoted} in access share mode".encode())
    row = connection.execute(_SIZES.encode(), [[chunk.oid]]).fetchone()
    if row is None or not row[3] or chunk.file not in (0, row[8]):
        raise _changed(chunk.leaf)


def refuse_rewritten(connection: PgConnection) -> None:
    """Ask for a new snapshot where a table that this transaction has read was rewritten before it was locked."""
    row = connection.execute(_REWRITTEN).fetchone()
    if row is not None:
        raise _changed(TableId(*row))


def chunk_condition(chunk: SnapshotChunk) -> str:
    """The chunk's pages and its `where`, as a clause on the leaf."""
    conditions = []
    if chunk.first > 0:
        conditions.append(f"ctid >= '({chunk.first},0)'::tid")
    if chunk.last is not None:
        conditions.append(f"ctid < '({chunk.last},0)'::tid")
    if chunk.where:
        conditions.append(f"({chunk.where}\n)")
    return f" where {' and '.join(conditions)}" if conditions else ""


class _Copying:
    """One COPY of a chunk. `copied` is how many rows the server says there were, at the end."""

    def __init__(self, connection: PgConnection, chunk: SnapshotChunk, names: Sequence[str], options: str) -> None:
        self.copied: int | None = None
        self._connection = connection
        self._chunk = chunk
        columns = ", ".join(map(quote_identifier, names))
        query = f"select {columns} from only {chunk.leaf.quoted}{chunk_condition(chunk)}"
        self._statement = f"copy ({query}) to stdout ({options})".encode()

    def blocks(self, size: int) -> Generator[tuple[bytes, int]]:
        """What COPY writes in blocks of about `size` bytes, cut between rows, each with its number of messages."""
        try:
            lock_chunk(self._connection, self._chunk)
            self._connection.pgconn.send_query(self._statement)
            yield from self._read(self._connection.pgconn, size)
        except GeneratorExit:
            self._connection.close()
            raise
        except psycopg.Error as error:
            # Until the last result is taken the connection could not even roll back.
            with suppress(psycopg.Error):
                _drain(self._connection.pgconn)
            raise _read_error(self._chunk, error) from None

    def _read(self, connection: pq.abc.PGconn, size: int) -> Iterator[tuple[bytes, int]]:
        """Cut COPY's output between messages.

        Every message is one whole row (in binary a header and an end, too), so rows are counted and cut by message,
        whatever the values hold. This loop runs once per row: it does nothing that it need not, and is the reason for
        using libpq's functions directly.
        """
        _expect(_result(connection), pq.ExecStatus.COPY_OUT)
        buffer, rows = io.BytesIO(), 0
        get, write, filled = connection.get_copy_data, buffer.write, 0
        while True:
            length, data = get(1)
            if length > 0:
                write(data)
                rows += 1
                filled += length
                if filled >= size:
                    yield buffer.getvalue(), rows
                    buffer, rows, filled = io.BytesIO(), 0, 0
                    write = buffer.write
            elif length == 0:
                _await_input(connection)
            else:
                break
        self.copied = _expect(_result(connection), pq.ExecStatus.COMMAND_OK).command_tuples
        _drain(connection)
        if rows:
            yield buffer.getvalue(), rows


def _await_input(connection: pq.abc.PGconn) -> None:
    poller = select.poll()
    poller.register(connection.socket, select.POLLIN)
    poller.poll()
    connection.consume_input()


def _result(connection: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """The next result, waiting for it without holding up other threads."""
    while connection.flush():
        select.select([], [connection.socket], [])
    while connection.is_busy():
        _await_input(connection)
    return connection.get_result()


def _drain(connection: pq.abc.PGconn) -> None:
    while _result(connection) is not None:
        pass


def _expect(result: pq.abc.PGresult | None, status: pq.ExecStatus) -> pq.abc.PGresult:
    if result is None:
        raise psycopg.OperationalError("the server ended COPY without a result")
    if result.status != status:
        raise errors.error_from_result(result)
    return result


def _changed(leaf: TableId) -> SourceUnavailable:
    return SourceUnavailable(
        f"table {leaf} was rewritten, truncated or dropped after the snapshot was taken",
        remedy="none needed: the copy restarts with a new snapshot",
    )


def _read_error(chunk: SnapshotChunk, error: psycopg.Error) -> SourceError:
    place = f"copying table {chunk.leaf}"
    reason = error.diag.message_primary or ""
    match error:
        case errors.UndefinedColumn() | errors.UndefinedTable():
            return SourceUnavailable(
                f"{place}: {reason}", remedy="none needed: the table was altered, and the copy restarts"
            )
        case errors.InsufficientPrivilege() if "row-level security" in reason:
            remedy = "run: ALTER ROLE <role> BYPASSRLS, or make the role the owner of the table"
            return SourceError(f"{place}: {reason}", remedy=remedy, code="TRK220")
        case errors.InsufficientPrivilege():
            remedy = f"run: GRANT SELECT ON {chunk.leaf.quoted} TO <role>"
            return SourceError(f"{place}: {reason}", remedy=remedy, code="TRK220")
    return query_error(place, error)
