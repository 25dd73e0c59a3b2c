"""The Spark task of a round of an incremental copy for trucks with rules or SQL.

Chunks are read, each in a transaction of its own. Then the task waits until the change log has all that they may show,
and leaves out the rows that the stream brings (`untouched_rows`). The others go the way of changes, as inserts.

Called by executors, and by the driver for small rounds; imports no pyspark. A failure never raises: it comes back as a
`Failure`. A task may run twice: sinks expect that. Memory is that of the share's rows, which are a part of a round.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from trucker.change import Changes
from trucker.changelog.reader import LogReader
from trucker.engine.snapshot.snapshot_task import called
from trucker.engine.snapshot.untouched_rows import untouched
from trucker.engine.stream.stream_task import hand_on, reason_of
from trucker.engine.task.payload import Copied, CopyBatch, CopyPart, CopyShare, Failure, Outcome, WaitingRows
from trucker.engine.task.slow_statements import noting_slow
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.row_transform import make, recipe_of
from trucker.engine.transform.sql_rows import last_by_key
from trucker.errors import SourceUnavailable
from trucker.lsn import Lsn
from trucker.rows import concat_rows
from trucker.sinks.batch import Receipt
from trucker.source.base import ChunkReader

LOGGED_SECONDS: Final = 60.0
"""So long a task waits for the change log."""

STEP_SECONDS: Final = 0.01

RUN_ROWS: Final = 50_000
"""At most so many rows go to SQL at once."""

AwaitLogged = Callable[[Lsn], None]
"""Waits until the change log has everything up to a position."""


@noting_slow
def copy_untouched(batch: CopyBatch, share: CopyShare, await_logged: AwaitLogged | None = None) -> Outcome:
    """Copy the chunks of one table for one truck, without the rows that the stream brings."""
    assert batch.log is not None
    writer, (assignment,) = _ChunkWriter(batch), share[0].assignments
    truck, table, began = assignment.target.truck, assignment.target.source.table, time.monotonic()
    try:
        with closing(batch.source.chunk_reader(batch.snapshot, batch.lsn)) as reader:
            chunks = [_rows(reader, part, assignment) for part in share]
            end = reader.watermark()
        (await_logged or partial(_await_logged, batch.log))(end)
        rows = untouched(chunks, assignment, batch.log, batch.lsn, end)
        del chunks
        read = time.monotonic()
        for part, part_rows in zip(share, rows, strict=True):
            writer.write(part.index, assignment, part_rows)
    except Exception as error:
        reason = reason_of(error, f"copying {table} with the rules and SQL of truck {truck}")
        return Outcome(failures=[*writer.failures, Failure(truck, reason.of_table(table), table)])
    now = time.monotonic()
    seconds = (read - began) / len(share)
    copied = [
        Copied(p.index, {truck: len(r)}, now - read + seconds, now - read) for p, r in zip(share, rows, strict=True)
    ]
    return Outcome(writer.receipts, writer.failures, writer.waiting, copied=copied)


def _rows(reader: ChunkReader, part: CopyPart, assignment: Assignment) -> Changes:
    """A chunk's rows as inserts, by the names that the target has for its columns."""
    reads = recipe_of(assignment).reads
    pieces = [called(piece, assignment).to_changes().reshaped(reads) for piece in reader.read(part.chunk)]
    if pieces:
        return Changes.concat(pieces)
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(reads.names), names=list(reads.names))
    return Changes.inserts(reads, empty)


def _await_logged(log: LogReader, goal: Lsn) -> None:
    deadline = time.monotonic() + LOGGED_SECONDS
    while log.durable().seen_lsn < goal:
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"chunks of a copy were read, but the change log has not reached {goal} after {LOGGED_SECONDS:g} s",
                remedy="none needed: the chunks are read again; `trucker status` says whether the source is heard",
                code="TRK266",
            )
        time.sleep(STEP_SECONDS)


class _ChunkWriter:
    """Writes the rows of chunks; what has come of it."""

    def __init__(self, batch: CopyBatch) -> None:
        self.receipts: dict[str, list[Receipt]] = defaultdict(list)
        self.failures: list[Failure] = []
        self.waiting: list[WaitingRows] = []
        self._batch = batch

    def write(self, part: int, assignment: Assignment, rows: Changes) -> None:
        """The rows of a chunk after rules and SQL, as one part."""
        runs = [rows.take(np.arange(at, min(at + RUN_ROWS, len(rows)))) for at in range(0, len(rows), RUN_ROWS)]
        transformed = [each for run in runs for each in make([(assignment, [run])], self._batch.source, part)]
        changes = [change for each in transformed for change in each.changes if len(change)]
        for_spark = concat_rows([each.rows for each in transformed if each.rows is not None and len(each.rows)])
        if changes or for_spark is not None:
            outcome = self.receipts, self.failures, self.waiting
            hand_on(self._batch, part, assignment, _one_by_key(changes), for_spark, *outcome)


def _one_by_key(changes: Sequence[Changes]) -> Sequence[Changes]:
    """Rules and SQL may give rows of several runs one key."""
    return [last_by_key(Changes.concat(changes))] if len(changes) > 1 else changes
