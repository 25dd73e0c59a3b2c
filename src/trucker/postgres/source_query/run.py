"""Runs input.sql, in an executor: rows are sent as arrays, and the result is read by column."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import INSERT, OPERATIONS, Column, Lsn, quote_identifier
from trucker.errors import SourceError
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import translated
from trucker.postgres.snapshot import PIECE_BYTES, chunk_condition, lock_chunk, refuse_rewritten
from trucker.postgres.source_query.arrays import LARGEST, array_literal
from trucker.postgres.source_query.failure import FAILED, failed, too_many
from trucker.postgres.source_query.query import ORDER, InputStatement, PostgresQuery, Variant
from trucker.postgres.source_query.result import stream
from trucker.postgres.source_query.types import TEXT
from trucker.rows import OLD, OPERATION, POSITION, Rows
from trucker.slow_sql import SlowQueries, Timing
from trucker.source.snapshot import SnapshotChunk

SMALLEST_ROW: Final = 24
"""Bytes of the smallest row on its page: a heap tuple's header."""

_NAMES: Final = pa.array([OPERATIONS[op] for op in ORDER])
_CODES: Final = np.array(ORDER, np.uint8)


def run_query(
    connection: PgConnection,
    query: PostgresQuery,
    rows: Rows,
    *,
    rows_max: int,
    slow: SlowQueries | None = None,
) -> Rows:
    """The query's result for these rows: a statement for each run, or for each operation of each run.

    A statement may return at most `rows_max` rows and a GiB. Raises a SourceError with file and line.
    """
    relation = query.relation
    results: list[Rows] = []
    for part in _statements(query, rows):
        op = int(part.op[0])
        variant = query.variants[op]
        running = _Running(variant.source, relation, query.timeout, _watch(slow, query, len(part)))
        with closing(running.batches(connection, _parameters(query, variant, part), rows_max, LARGEST)) as batches:
            results += [_result(query, variant, batch, op, int(part.run[0])) for batch in batches]
    return _joined(query.columns, results)


def query_chunk(
    connection: PgConnection,
    query: PostgresQuery,
    chunk: SnapshotChunk,
    *,
    rows_max: int,
    lsn: Lsn | None = None,
    slow: SlowQueries | None = None,
) -> Iterator[Rows]:
    """The query's result for a chunk of a snapshot, in pieces of a few MiB; `connection` must be inside the snapshot.

    The chunk's rows are inserts. `lsn` is their commit_lsn; their commit time and xid are unknown. A chunk may return
    `rows_max` rows, or as many as its pages can hold. A joined table that was rewritten after the snapshot was taken is
    a transient error, as for the chunk itself.
    """
    with translated(f"copying table {chunk.leaf}"):
        lock_chunk(connection, chunk)
    variant = query.variants[INSERT]
    most = max(rows_max, chunk.bytes // SMALLEST_ROW)
    relation = _chunk_relation(query, chunk, lsn)
    running = _Running(variant.source, relation, query.timeout, _watch(slow, query, 0))
    with closing(running.batches(connection, (), most)) as batches:
        for pieces in _pieces(batches):
            yield _joined(query.columns, [_result(query, variant, batch, INSERT, 0) for batch in pieces])
    with translated(f"copying table {chunk.leaf}"):
        refuse_rewritten(connection)


def _parameters(query: PostgresQuery, variant: Variant, rows: Rows) -> list[bytes | None]:
    if not variant.source.uses_rows:
        return []
    present = set(rows.names)
    parameters = [
        array_literal(rows.cells.column(input_column.name), input_column.delimiter, plain=input_column.plain)
        if input_column.name in present
        else None
        for input_column in query.sent[:-1]
    ]
    operations = _NAMES.take(pa.array(np.select([rows.op == op for op in ORDER], range(len(ORDER)))))
    parameters.append(array_literal(operations, plain=True))
    if sum(len(one) for one in parameters if one) > LARGEST:
        raise SourceError(
            f"{query.file.label}: the rows for one statement are larger than PostgreSQL accepts",
            remedy="lower `batch.part_bytes` in trucker.yml",
            code=FAILED,
        )
    return parameters


def _statements(query: PostgresQuery, rows: Rows) -> Iterator[Rows]:
    """The rows of each statement, in order: by run, and by operation where each has its own statement."""
    cuts = [0, *(np.flatnonzero(np.diff(rows.run)) + 1), len(rows)]
    for first, last in pairwise(cuts):
        if first == last:
            continue
        run = Rows(rows.columns, rows.cells.slice(first, last - first), rows.op[first:last], rows.run[first:last])
        if not query.by_operation or (run.op == run.op[0]).all():
            yield run
            continue
        for op in ORDER:
            if (of_operation := run.op == op).any():
                yield run.take(of_operation)


def _chunk_relation(query: PostgresQuery, chunk: SnapshotChunk, lsn: Lsn | None) -> str:
    """The chunk's rows with the types that changed rows have. The condition is inside, with the table's own names."""
    positions = {column.name for column in POSITION}
    columns = []
    for input_column in query.given[:-1]:
        name = quote_identifier(input_column.name)
        if input_column.name == "commit_lsn" and input_column.name not in chunk.schema.names and lsn is not None:
            columns.append(f"'{lsn}'::pg_catalog.pg_lsn as {name}")
        elif input_column.name.startswith(OLD) or (
            input_column.name in positions and input_column.name not in chunk.schema.names
        ):
            columns.append(input_column.null)
        else:
            columns.append(f"{name}::{input_column.type} as {name}")
    columns.append(f"'{OPERATIONS[INSERT]}'::{TEXT} as {quote_identifier(OPERATION)}")
    return f"(select {', '.join(columns)} from only {chunk.leaf.quoted}{chunk_condition(chunk)}) as r"


@dataclass(frozen=True, slots=True)
class _Running:
    """One execution of a statement, with what its error message needs."""

    source: InputStatement
    relation: str
    timeout: float | None
    watch: AbstractContextManager[Timing | None]

    def batches(
        self, connection: PgConnection, parameters: Sequence[bytes | None], rows_max: int, bytes_max: int | None = None
    ) -> Generator[pa.RecordBatch]:
        began = time.monotonic()
        try:
            text = self.source.text(self.relation)
            with self.watch as timing, closing(stream(connection, text, parameters)) as batches:
                yield from self._counted(batches, timing, rows_max, bytes_max)
        except psycopg.Error as error:
            took = time.monotonic() - began
            raise failed(error, *self.source.whole(self.relation), timeout=self.timeout, took=took) from None

    def _counted(
        self, batches: Iterator[pa.RecordBatch], timing: Timing | None, most: int, bytes_max: int | None
    ) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        for batch in batches:
            rows += batch.num_rows
            size += batch.nbytes
            if timing is not None:
                timing.given = rows
            if rows > most:
                raise too_many(self.source.sql, f"{most} rows")
            if bytes_max is not None and size > bytes_max:
                raise too_many(self.source.sql, f"{bytes_max >> 20} MiB")
            yield batch


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups of batches, each as large as a piece of a copy."""
    piece: list[pa.RecordBatch] = []
    for batch in batches:
        piece.append(batch)
        if sum(each.nbytes for each in piece) >= PIECE_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def _watch(slow: SlowQueries | None, query: PostgresQuery, rows: int) -> AbstractContextManager[Timing | None]:
    return slow.watch(query.file.label, rows) if slow is not None else nullcontext()


def _result(query: PostgresQuery, variant: Variant, batch: pa.RecordBatch, op: int, run: int) -> Rows:
    """A piece of a result: the query's columns by name, NULL where this operation's statement does not have one."""
    places = {name: place for place, name in enumerate(variant.fields)}
    count = batch.num_rows
    cells = [
        batch.column(places[column.name]) if column.name in places else pa.nulls(count, pa.string())
        for column in query.columns
    ]
    operations = np.full(count, op, np.uint8)
    if variant.operation >= 0:
        operations = _operations(query, batch.column(variant.operation))
    return Rows(query.columns, _batch(query.columns, cells, count), operations, np.full(count, run, np.int64))


def _batch(columns: Sequence[Column], cells: Sequence[pa.Array], count: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(list(cells), names=[column.name for column in columns])
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def _operations(query: PostgresQuery, names: pa.Array) -> npt.NDArray[np.uint8]:
    indices = pc.index_in(names, _NAMES)
    if indices.null_count:
        raise SourceError(
            f"{query.file.label}: column operation of the result has a value other than insert, update and delete",
            remedy="return r.operation or one of the three values; without this column the rows keep their operation",
            code=FAILED,
        )
    codes: npt.NDArray[np.uint8] = _CODES[indices.to_numpy(zero_copy_only=False)]
    return codes


def _joined(columns: tuple[Column, ...], parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = [pa.array([], pa.string()) for _ in columns]
        return Rows(columns, _batch(columns, empty, 0), np.zeros(0, np.uint8), np.zeros(0, np.int64))
    cells = [pa.concat_arrays([part.cells.column(place) for part in parts]) for place in range(len(columns))]
    op, run = np.concatenate([part.op for part in parts]), np.concatenate([part.run for part in parts])
    return Rows(columns, _batch(columns, cells, len(op)), op, run)
