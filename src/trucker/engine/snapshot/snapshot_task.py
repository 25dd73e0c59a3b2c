"""The Spark task of a copy: reads chunks of tables inside the shared snapshot and writes them one after the other.

Called by executors; imports no pyspark. A failure of one truck's table never raises: it comes back as a `Failure`, so
that the others count (I8). A task may run twice (a lost executor, a retried task): sinks expect that, chunk by chunk.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from trucker.change import Changes, CopiedRows, RawCopy, TableId, TableSchema, UnreadRows
from trucker.engine.destination import task_sinks
from trucker.engine.stream.stream_task import failing_alone, hand_on, reason_of, write_share
from trucker.engine.task.payload import Copied, CopyBatch, CopyPart, CopyShare, Failure, Outcome, WaitingRows
from trucker.engine.task.slow_statements import noting_slow
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.row_transform import make, make_copy
from trucker.errors import TruckerError
from trucker.failpoint import reach
from trucker.rows import concat_rows
from trucker.sinks.base import FinishesCopies
from trucker.sinks.batch import Receipt
from trucker.source.base import ChunkReader
from trucker.source.snapshot import SnapshotChunk


@noting_slow
def copy_share(batch: CopyBatch, share: CopyShare) -> Outcome:
    """Copy one chunk after the other, each to every target."""
    with closing(batch.source.chunk_reader(batch.snapshot, batch.lsn)) as reader:
        task = _Task(batch, reader)
        for part in share:
            task.copy(part)
    return Outcome(task.receipts, task.failures, task.waiting, copied=task.copied())


@noting_slow
def finish_copy(batch: CopyBatch, assignment: Assignment) -> Outcome:
    """Have the sink do what it has left to do for a table when all chunks of it are there."""
    failures: list[Failure] = []
    reach("worker.finish.before")
    sink = task_sinks.sink_for(batch.sinks[assignment.destination])
    with failing_alone(assignment.target, failures):
        if isinstance(sink, FinishesCopies):
            sink.finish_copy(assignment.target)
    reach("worker.finish.after")
    return Outcome(failures=failures)


@noting_slow
def delete_rows(batch: CopyBatch, part: int, assignment: Assignment, deletes: Changes) -> Outcome:
    """Write deletes of rows that the snapshot does not show, as the stream would bring them."""
    receipts: dict[str, list[Receipt]] = defaultdict(list)
    failures: list[Failure] = []
    waiting: list[WaitingRows] = []
    if assignment.recipe is None:
        write_share(batch, part, assignment, [deletes], receipts, failures)
        return Outcome(receipts, failures)
    truck = assignment.target.truck
    try:
        for each in make([(assignment, [deletes])], batch.source, part):
            hand_on(batch, part, assignment, each.changes, each.rows, receipts, failures, waiting)
    except Exception as error:
        reason = reason_of(error, f"the rules and SQL of truck {truck}")
        failures.append(Failure(truck, reason, assignment.target.source.table))
    return Outcome(receipts, failures, waiting)


class _Task:
    """Copies chunks over one connection to the source; what has come of it."""

    def __init__(self, batch: CopyBatch, reader: ChunkReader) -> None:
        self.receipts: dict[str, list[Receipt]] = defaultdict(list)
        self.failures: list[Failure] = []
        self.waiting: list[WaitingRows] = []
        self._batch = batch
        self._reader = reader
        self._stopped: dict[tuple[str, TableId], TruckerError] = {}
        self._chunks: list[tuple[int, dict[str, int], float, float]] = []

    def copied(self) -> list[Copied]:
        """The chunks that are done by now."""
        now = time.monotonic()
        return [Copied(part, rows, now - began, now - ended) for part, rows, began, ended in self._chunks]

    def copy(self, part: CopyPart) -> None:
        """Read one chunk, once, and write it to every target that has not failed before."""
        table, before, began = part.chunk.schema.table, len(self.failures), time.monotonic()
        assignments = [assignment for assignment in part.assignments if not self._is_stopped(assignment, table)]
        if not assignments:
            return
        try:
            self._write(part, assignments)
        except Exception as error:
            reason = reason_of(error, f"copying {part.chunk.leaf}")
            failed = {failure.truck for failure in self.failures[before:]}
            trucks = {assignment.target.truck for assignment in assignments} - failed
            self.failures += [Failure(truck, reason, table) for truck in sorted(trucks)]
        failed = {failure.truck for failure in self.failures[before:]}
        rows = {
            a.target.truck: self._rows(part.index, a.target.truck) for a in assignments if a.target.truck not in failed
        }
        self._chunks.append((part.index, rows, began, time.monotonic()))
        for failure in self.failures[before:]:
            # It may be one table's alone: the others go on.
            self._stopped[failure.truck, table] = failure.error

    def _rows(self, part: int, truck: str) -> int:
        """The rows of a chunk that were written for a truck, or wait for its Spark SQL."""
        written = (
            r.rows for receipts in self.receipts.values() for r in receipts if r.part == part and r.truck == truck
        )
        waiting = (w.rows.rows for w in self.waiting if w.part == part and w.assignment.target.truck == truck)
        return sum(written) + sum(waiting)

    def _is_stopped(self, assignment: Assignment, table: TableId) -> bool:
        truck = assignment.target.truck
        error = self._stopped.get((truck, table))
        if error is not None:
            self.failures.append(Failure(truck, error, table))
        return error is not None

    def _write(self, part: CopyPart, assignments: Sequence[Assignment]) -> None:
        chunk = part.chunk
        if len(assignments) == 1 and assignments[0].recipe is None:
            unread = _Unread(self._reader, chunk, assignments[0])
            write_share(self._batch, part.index, assignments[0], unread, self.receipts, self.failures)
            return
        pieces: Iterable[CopiedRows] = self._reader.read(chunk)
        if len(assignments) > 1:
            pieces = list(pieces)
        for assignment in assignments:
            if assignment.recipe is not None:
                self._make(part, assignment, pieces)
                continue
            narrowed = (_narrow(piece, assignment) for piece in pieces)
            write_share(self._batch, part.index, assignment, narrowed, self.receipts, self.failures)

    def _make(self, part: CopyPart, assignment: Assignment, pieces: Iterable[CopiedRows]) -> None:
        """Rules and SQL: a chunk's pieces stream through to the sink, and wait together for Spark SQL."""
        batch = self._batch
        assert assignment.recipe is not None
        try:
            transformed = make_copy(batch, part.chunk, assignment, (called(piece, assignment) for piece in pieces))
            if assignment.recipe.spark is None:
                changes = (changes for each in transformed for changes in each.changes)
                write_share(batch, part.index, assignment, changes, self.receipts, self.failures)
                return
            rows = concat_rows([each.rows for each in transformed if each.rows is not None and len(each.rows)])
            hand_on(batch, part.index, assignment, (), rows, self.receipts, self.failures, self.waiting)
        except Exception as error:
            truck, table = assignment.target.truck, assignment.target.source.table
            self.failures.append(Failure(truck, reason_of(error, f"the rules and SQL of truck {truck}"), table))


class _Unread(UnreadRows):
    """A chunk for one target, by the names that the target has for its columns."""

    def __init__(self, reader: ChunkReader, chunk: SnapshotChunk, assignment: Assignment) -> None:
        self.schema = _names(chunk.schema, assignment)
        self._reader = reader
        self._chunk = chunk
        self._assignment = assignment
        self._pieces: Iterator[CopiedRows] | None = None

    def __next__(self) -> Changes | CopiedRows:
        if self._pieces is None:
            self._pieces = self._reader.read(self._chunk)
        return _narrow(next(self._pieces), self._assignment)

    def raw(self, names: Sequence[str], *, binary: bool) -> RawCopy:
        called = dict(zip(self.schema.names, self._chunk.schema.names, strict=True))
        columns = [called[name] for name in names]
        return self._reader.raw(self._chunk, columns, binary=binary)


def _names(schema: TableSchema, assignment: Assignment) -> TableSchema:
    for columns, others in assignment.renames:
        schema = schema.called(dict(zip(columns, others, strict=True)))
    return schema


def called(piece: CopiedRows, assignment: Assignment) -> CopiedRows:
    """A piece by the names that the target has for its columns."""
    for columns, others in assignment.renames:
        piece = piece.called(dict(zip(columns, others, strict=True)))
    return piece


def _narrow(piece: CopiedRows, assignment: Assignment) -> Changes | CopiedRows:
    piece = called(piece, assignment)
    names = assignment.reads.names
    return piece if names == piece.schema.names else piece.to_changes().reshaped(assignment.target.source)
