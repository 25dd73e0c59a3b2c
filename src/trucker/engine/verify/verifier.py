"""Compares a table at the source with its table at the destination, both at one position, while the stream goes on.

Who calls: a command, in its thread, with a lane of one table that has left the main lane. `run` brings the table to the
consistent point of a snapshot (`SnapshotLane`), looks at the destination's table there, and lets the lane go on.
`compare` then compares the two, each as it was at that position, however long it takes: sums of digests by groups
first, then the rows of the groups that differ (`trucker.row_digest`).

Where both stores digest rows in the same way, no row travels. Otherwise the source's rows go through the truck's rules
and SQL as in a copy, and the destination digests what it would store.

What may fail: the source, the destination, a row. Nothing is repeated, and nothing was changed: the lane goes on.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa

from trucker.engine.snapshot.copier import chunk_bytes
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.snapshot_lane import COMMIT_BYTES, SnapshotLane, SnapshotPiece
from trucker.engine.stream.batch_plan import assignment_of
from trucker.engine.task.partition import copy_shares
from trucker.engine.task.payload import CopyPart
from trucker.engine.transform.assignment import Assignment
from trucker.engine.verify.row_spool import RowSpool, spool_spec
from trucker.errors import ControlError, DataError, EngineError, TruckerError
from trucker.lsn import Lsn
from trucker.row_digest import (
    DigestedColumns,
    DigestedRow,
    GroupSums,
    RowDifferences,
    added,
    differences,
    differing,
    group_count,
    row_count,
)
from trucker.sinks.batch import Batch
from trucker.sinks.compared_table import ComparedTable, ComparesTables
from trucker.source.base import SnapshotView
from trucker.source.snapshot import ExportedSnapshot, SnapshotChunk
from trucker.source.source_table import SourceTable

log = logging.getLogger("trucker.verify")

T = TypeVar("T")

LISTED_ROWS: Final = 200_000
"""Of differing groups so many rows are looked at, on the side that has more of them."""

TRIES: Final = 3
"""So often a snapshot is taken that the table is brought to."""

MOST_UNSTORABLE: Final = 1_000
"""So many rows may be expected that the destination cannot store: the dead letters of a truck."""

NO_DIGEST: Final = 1 << 64
"""No row that is stored has it."""

_STOP_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class TableDifferences:
    """What a comparison has found at `position`: the rows of both sides, and what differs. Unless it is `complete`,
    there are more differences than those."""

    position: Lsn
    expected_rows: int
    stored_rows: int
    differences: RowDifferences
    complete: bool


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both sides at one position, open."""

    exported: ExportedSnapshot
    view: SnapshotView
    described: SourceTable
    assignment: Assignment
    batch: Batch
    table: ComparedTable


class Verifier(SnapshotLane):
    """Compares the table of one lane."""

    doing: ClassVar[str] = "verification"

    def __init__(self, *lane: Any, **settings: Any) -> None:
        super().__init__(*lane, **settings)
        self._closing = ExitStack()
        self._sides: _Sides | None = None
        self._snapshots = 0
        self.failure: TruckerError | None = None

    # -- getting to one position --------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> bool:
        """Have both sides at one position; whether the lane goes on, in a thread of its own."""
        try:
            if super().run(stop):
                return True
        except Exception as error:  # the table must not stay out of the stream
            log.exception("verification failed unexpectedly", extra=self._facts)
            self.failure = EngineError(f"comparing {self._table} failed: {type(error).__name__}", remedy="read the log")
        if self.failure is None or self.lane.over or stop.is_set():
            return False
        self._spawn(self.lane)
        return True

    @contextmanager
    def _exporting(self, stop: threading.Event) -> Iterator[ExportedSnapshot]:
        """The snapshot lasts until `close` where both sides have been opened in it."""
        self._snapshots += 1
        with ExitStack() as stack:
            yield stack.enter_context(self._source.export(stop))
            if self._sides is not None:
                self._closing.push(stack.pop_all())

    def _work(self, exported: ExportedSnapshot) -> bool:
        with ExitStack() as stack:
            view = stack.enter_context(self._source.view(exported))
            seen = self._see(view)
            if seen is None:
                return True
            described = view.describe(self._table)
            assignment = assignment_of(self._run, seen.reading, exported.lsn, self._destination, self._recipes)
            with self._destination.using() as sink:
                assert isinstance(sink, ComparesTables)
                table = sink.compare(assignment.target, group_count(described.bytes))
            stack.callback(table.close)
            self._follow(seen)
            batch = self._batch(assignment, exported.lsn)
            self._sides = _Sides(exported, view, described, assignment, batch, table)
            self._closing.push(stack.pop_all())
        return True

    def _note(self, error: TruckerError) -> bool:
        """A failure concerns the command alone, and not the truck."""
        if error.transient and self._snapshots < TRIES:
            return True
        self.failure = error
        return False

    # -- comparing ----------------------------------------------------------------------------------------------------

    def compare(self, stop: threading.Event) -> TableDifferences:
        """Compare both sides as they were at one position. Raises where that was not reached, or one is lost."""
        if self.failure is not None:
            raise self.failure
        if self._sides is None:
            raise ControlError(
                f"table {self._table} does not follow truck {self._run.name} any more",
                remedy="run `trucker status`, and verify it when the truck streams",
                code="TRK642",
            )
        rows = self._rows(self._sides)
        with ThreadPoolExecutor(2, "verify") as pool:
            expected, stored = self._both(pool, stop, rows.sums, self._sides.table.sums, rows.apart)
            groups = differing(expected, stored)
            chosen = _chosen(groups, expected, stored)
            rows_expected, rows_stored = self._both(
                pool,
                stop,
                lambda: rows.rows(chosen),
                lambda: list(self._sides.table.rows(chosen)) if self._sides and chosen else [],
                rows.apart,
            )
        self._source.verify(self._sides.exported)
        keyed = bool(self._sides.table.columns.key)
        return TableDifferences(
            self._sides.exported.lsn,
            row_count(expected) + len(rows.unstorable),
            row_count(stored),
            differences(rows_expected, rows_stored, keyed=keyed),
            len(chosen) == len(groups),
        )

    def close(self) -> None:
        """Let go of both sides."""
        with suppress(TruckerError):
            self._closing.close()

    def _rows(self, sides: _Sides) -> _ServerRows | _SpooledRows:
        assignment, table = sides.assignment, sides.table
        if assignment.recipe is None and table.fingerprint:
            columns = self._source_columns(sides)
            if sides.view.fingerprint(sides.described, columns.columns) == table.fingerprint:
                where = self._run.truck.tables[self._table].where
                return _ServerRows(sides.view, sides.described, columns, where)
        return _SpooledRows(table, lambda: self._expected(sides))

    def _source_columns(self, sides: _Sides) -> DigestedColumns:
        """What the compared columns are called at the source."""
        schema, columns = sides.described.schema, sides.table.columns
        for names, others in sides.assignment.renames:
            schema = schema.called(dict(zip(names, others, strict=True)))
        called = dict(zip(schema.names, sides.described.schema.names, strict=True))
        return replace(
            columns,
            columns=tuple(called[name] for name in columns.columns),
            key=tuple(called[name] for name in columns.key),
        )

    def _both(
        self,
        pool: ThreadPoolExecutor,
        stop: threading.Event,
        first: Callable[[], T],
        second: Callable[[], T],
        apart: bool,
    ) -> tuple[T, T]:
        """Both results, computed at once where they are computed `apart` from each other."""
        futures: list[Future[T]] = []
        for work in (first, second):
            futures.append(pool.submit(work))
            if not apart:
                self._await(futures, stop)
        self._await(futures, stop)
        return futures[0].result(), futures[1].result()

    def _await(self, futures: Sequence[Future[T]], stop: threading.Event) -> None:
        """Wait for all. When one fails, or the run stops, the others are made to fail as well."""
        failed: Future[T] | None = None
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, _STOP_SECONDS, FIRST_COMPLETED)
            failed = failed or next((future for future in done if future.exception() is not None), None)
            if waiting and (failed is not None or stop.is_set()):
                self._cancel_queries()
        if stop.is_set():
            raise ControlError("the instance is stopping", remedy="start it again: `trucker run`", code="TRK616")
        if failed is not None:
            failed.result()

    def _cancel_queries(self) -> None:
        self.cancel()
        if self._sides is not None:
            self._sides.view.cancel()
            self._sides.table.cancel()

    # -- rows that go through the truck's steps -----------------------------------------------------------------------

    def _expected(self, sides: _Sides) -> Iterator[pa.RecordBatch]:
        """The rows that the truck would write, in pieces."""
        exported, assignment = sides.exported, sides.assignment
        spec = spool_spec(self._destination.spec)
        spool = RowSpool(spec.connection, spec.workspace)
        parts = [CopyPart(index, chunk, [assignment]) for index, chunk in enumerate(self._chunks(sides))]
        pieces = -(-sum(part.chunk.bytes for part in parts) // COMMIT_BYTES)
        try:
            with CopyWatch(parts, {}) as watch:
                for share in copy_shares(parts, max(1, pieces)):
                    piece = SnapshotPiece(share)
                    receipts = self._stage(exported, sides.batch, assignment, piece, watch, spec)
                    yield from spool.staged(receipts)
                    shutil.rmtree(spec.workspace.folder, ignore_errors=True)
        finally:
            shutil.rmtree(spec.workspace.folder, ignore_errors=True)

    def _chunks(self, sides: _Sides) -> Sequence[SnapshotChunk]:
        """What is to be read, as a copy would read it."""
        table, described = self._run.truck.tables[self._table], sides.described
        key = self._key_names(sides.view.sighting(self._table))
        columns = [name for name in described.schema.names if name in key or table.chooses(name)]
        size = chunk_bytes(described.bytes, self._jobs.cores)
        return sides.view.chunks(described, size, columns=columns, where=table.where)


@dataclass(frozen=True, slots=True)
class _ServerRows:
    """Expected rows that the source digests itself."""

    view: SnapshotView
    described: SourceTable
    columns: DigestedColumns
    where: str | None
    unstorable: ClassVar[Sequence[DigestedRow]] = ()
    apart: ClassVar[bool] = True

    def sums(self) -> GroupSums:
        return self.view.digest_sums(self.described, self.columns, self.where)

    def rows(self, groups: Sequence[int]) -> Sequence[DigestedRow]:
        return self.view.digested_rows(self.described, self.columns, self.where, groups) if groups else []


@dataclass(frozen=True, slots=True)
class _SpooledRows:
    """Expected rows that the destination digests; it does one thing at a time."""

    table: ComparedTable
    expected: Callable[[], Iterable[pa.RecordBatch]]
    unstorable: list[DigestedRow] = field(default_factory=list)
    apart: ClassVar[bool] = False

    def sums(self) -> GroupSums:
        return added(self._digested(self.table.sums_of, self.unstorable))

    def rows(self, groups: Sequence[int]) -> Sequence[DigestedRow]:
        if not groups:
            return self.unstorable
        unstorable: list[DigestedRow] = []
        batches = self._digested(lambda rows: list(self.table.rows_of(rows, groups)), unstorable)
        return [*(row for rows in batches for row in rows), *unstorable]

    def _digested(self, digest: Callable[[pa.RecordBatch], T], unstorable: list[DigestedRow]) -> Iterator[T]:
        for rows in self.expected():
            yield from self._halved(rows, digest, unstorable)

    def _halved(
        self, rows: pa.RecordBatch, digest: Callable[[pa.RecordBatch], T], unstorable: list[DigestedRow]
    ) -> Iterator[T]:
        """Digests of all rows but those that the destination cannot store, which are found by halving."""
        try:
            yield digest(rows)
        except DataError:
            if len(unstorable) >= MOST_UNSTORABLE:
                raise
            if len(rows) > 1:
                half = len(rows) // 2
                yield from self._halved(rows.slice(0, half), digest, unstorable)
                yield from self._halved(rows.slice(half), digest, unstorable)
                return
            key = tuple(rows.column(name)[0].as_py() for name in self.table.columns.key)
            unstorable.append(DigestedRow(key, NO_DIGEST))


def _chosen(groups: Sequence[int], expected: GroupSums, stored: GroupSums) -> Sequence[int]:
    """Of the groups that differ those whose rows are looked at."""
    looked_at = 0
    for count, group in enumerate(groups):
        looked_at += max(expected.get(group, (0, 0))[0], stored.get(group, (0, 0))[0])
        if count and looked_at > LISTED_ROWS:
            return groups[:count]
    return groups
