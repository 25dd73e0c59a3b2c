"""Merges the rows of attached partitions by key into a destination table whose other rows stay (`partitions: keep`).

Who calls: the source's runner, in a thread, with a lane of one table that has left the main lane. A temporary slot
gives a snapshot and its consistent point. The lane applies all changes before that point and none after it; then the
rows that the attached partitions have in the snapshot are written as inserts, which replace rows of the same key. At
that position the destination has the rows of these partitions as the source has them (I6); the lane goes on from there
and joins like any other. Until then an update with unchanged cells of a row that is not at the destination is left out
(`Target.awaits_rows`): the merge brings the row as a whole.

What may fail: the source (the snapshot goes with its connection), the destination, a row. What is repeated after a
failure or a crash: the merge, at a new snapshot. It counts as done when what is known of the table has the partitions,
which is stored after the last commit; to merge rows twice changes nothing.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from trucker.engine.destination.destination import Destination
from trucker.engine.schema.schema_changes import SchemaReading, Schemas
from trucker.engine.snapshot.copier import TASKS_PER_CORE, chunk_bytes
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.snapshot_task import copy_share
from trucker.engine.spark.jobs import Jobs
from trucker.engine.stream.batch_plan import assignment_of, follow
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.task.partition import copy_shares, room
from trucker.engine.task.payload import CopyBatch, CopyPart, CopyShare, Outcome, collect
from trucker.engine.task.slow_statements import log_slow
from trucker.engine.task.waiting_rows import finish
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import letters_of
from trucker.errors import SourceUnavailable, TruckerError
from trucker.lsn import Lsn
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.batch import Batch, Phase, Receipt, TableState
from trucker.source.base import SnapshotView, Source
from trucker.source.look import Sighting
from trucker.source.snapshot import ExportedSnapshot, SnapshotChunk
from trucker.table import TableId

log = logging.getLogger("trucker.merge")

COMMIT_BYTES: Final = 128 << 20
"""One commit has about so many bytes of the partitions: other tables of the destination wait for it."""

MOST_COMMITS: Final = 16
"""Every commit of a merge has a position of its own, the last one the consistent point. That is the end of a WAL record
which is no commit and is longer than this, so that no transaction commits between the first and the last."""


class Merger:
    """Merges what the table of one lane needs, however often it takes, and lets the lane go on."""

    needs_from: None = None
    """The lane's own position keeps the change log."""

    def __init__(
        self,
        lane: Lane,
        stream: SourceStream,
        destination: Destination,
        schemas: Schemas,
        recipes: Recipes,
        jobs: Jobs,
        source: Source,
        *,
        small_bytes: int,
        backoff: Backoff,
        tries: int | None,
        spawn: Callable[[Lane], None],
    ) -> None:
        """The driver itself reads and stages up to `small_bytes`."""
        assert lane.tables is not None
        (self._run,), (self._table,) = lane.runs, lane.tables
        self._lane = lane
        self._stream = stream
        self._destination = destination
        self._schemas = schemas
        self._recipes = recipes
        self._jobs = jobs
        self._source = source
        self._small_bytes = small_bytes
        self._backoff = backoff
        self._tries = tries
        self._spawn = spawn
        self._group = f"merge-{uuid.uuid4().hex[:12]}"
        self.trucks: Mapping[str, frozenset[TableId]] = {self._run.name: lane.tables}

    @property
    def _facts(self) -> dict[str, object]:
        return {"truck": self._run.name, "table": str(self._table)}

    def run(self, stop: threading.Event) -> bool:
        """Merge; whether the lane goes on, in a thread of its own."""
        while not stop.is_set():
            try:
                with self._source.export(stop) as exported:
                    if not self._approach(exported, stop):
                        return False
                    self._merge(exported)
            except Stopped:
                return False
            except TruckerError as error:
                if stop.is_set() or not self._note(error):
                    return False
                self._backoff.wait(stop)
                continue
            if not self._lane.over:
                self._spawn(self._lane)
            return not self._lane.over
        return False

    def cancel(self) -> None:
        """Give up the job in hand. Repeat it until the merge has ended."""
        self._jobs.cancel(self._group)

    def _note(self, error: TruckerError) -> bool:
        """Note a failure; whether the merge is to be tried again.

        A table that is set aside keeps its position: to copy it would take away the rows that are kept.
        """
        run, lane = self._run, self._lane
        exhausted = self._tries is not None and self._backoff.tries >= self._tries
        with self._stream.turn:
            if run.has_ended:
                return False
            if error.transient and not exhausted:
                run.retry_tables([self._table], error)
                lane.unsure = True
                log.warning("merge failed", extra={**self._facts, **error.facts()})
                return True
            if not error.transient and self._destination.fails_by_table(run.truck):
                run.set_aside(self._table, error, lane.position, held=True, again=False)
                lane.runs, lane.over = [], True
            else:
                run.give_up(error)
        return False

    def _approach(self, exported: ExportedSnapshot, stop: threading.Event) -> bool:
        """Have all changes before the snapshot applied; False where the lane has ended meanwhile."""
        goal = Lsn(exported.lsn - MOST_COMMITS)
        runner = LaneRunner(
            self._lane,
            self._stream,
            self._destination,
            backoff=self._backoff,
            tries=self._tries,
            spawn=self._spawn,
            goal=goal,
        )
        if not runner.run(stop) or runner.arrived:
            return False
        if self._lane.position > goal:
            raise SourceUnavailable(
                f"{self._table} is at {self._lane.position}, beyond the snapshot at {exported.lsn}",
                remedy="a new snapshot is taken",
            )
        return True

    def _merge(self, exported: ExportedSnapshot) -> None:
        """Merge the partitions that the snapshot shows as attached, and record it; the lane has applied all before."""
        with self._source.view(exported) as view:
            sighting = view.sighting(self._table)
            reading = self._schemas.examine(self._run.name, self._run.truck.tables[self._table], sighting)
            if reading is None:
                return
            reading = follow(self._run, reading, self._schemas, self._destination, self._recipes)
            if reading.again:
                self._copy_again(reading.again)
                return
            chunks = self._chunks(view, sighting, reading) if reading.merge else []
        assignment = assignment_of(self._run, reading, exported.lsn, self._destination, self._recipes)
        parts = [CopyPart(index, chunk, [assignment]) for index, chunk in enumerate(chunks)]
        with CopyWatch(parts, {self._run.name: self._run}) as watch:
            try:
                self._write(exported, assignment, parts, watch)
            finally:
                self._run.end_progress([self._table])
        self._schemas.follow(reading)
        done = watch.progress((self._run.name, self._table))
        facts = {"partitions": ", ".join(map(str, reading.merge)), "rows": done.rows, "seconds": done.seconds}
        log.info("rows of attached partitions are merged", extra={**self._facts, **facts})

    def _copy_again(self, why: str) -> None:
        """Have the whole table copied: it has changed in another way as well. The lane is over then."""
        truck_table, position = (self._run.name, self._table), self._lane.position
        batch = Batch(position, position, tables={truck_table: BEFORE_COPY}, builds_on={truck_table: position})
        trouble = self._destination.commit(batch, ()).get(self._run.name)
        if trouble is not None:
            raise trouble
        self._stream.copy_again(self._run, {self._table: why}, self._lane)

    def _chunks(self, view: SnapshotView, sighting: Sighting, reading: SchemaReading) -> Sequence[SnapshotChunk]:
        """What is to be read of the attached partitions, as a copy would read it."""
        assert sighting.look is not None
        table = self._run.truck.tables[self._table]
        described = view.describe(self._table)
        leaves = tuple(leaf for leaf in described.leaves if leaf.table in reading.merge)
        key = table.key_by({number: name for name, number in sighting.look.numbers.items()})
        columns = [name for name in described.schema.names if name in key or table.chooses(name)]
        size = chunk_bytes(described.bytes, self._jobs.cores)
        return view.chunks(replace(described, leaves=leaves), size, columns=columns, where=table.where)

    def _write(
        self, exported: ExportedSnapshot, assignment: Assignment, parts: Sequence[CopyPart], watch: CopyWatch
    ) -> None:
        """Commit the rows in as many pieces as bound what one commit does."""
        total = sum(part.chunk.bytes for part in parts)
        pieces = copy_shares(parts, min(MOST_COMMITS, 1 + total // COMMIT_BYTES)) if parts else []
        for number, piece in enumerate(pieces, 1):
            end = Lsn(exported.lsn - len(pieces) + number)
            batch = self._batch(assignment, end)
            try:
                receipts = self._stage(exported, batch, assignment, piece, watch)
                self._commit(exported, batch, receipts)
            except TruckerError:
                self._destination.discard(batch)
                raise
            self._lane.position = end
            self._run.applied(None, sum(receipt.rows for receipt in receipts), persisted=False)

    def _batch(self, assignment: Assignment, end: Lsn) -> Batch:
        truck_table, start = (self._run.name, self._table), self._lane.position
        return Batch(
            start,
            end,
            tables={truck_table: TableState(Phase.CATCHING_UP, end)},
            targets=(assignment.target,),
            builds_on={truck_table: start},
            dead_letters=letters_of([self._run]),
            source=self._stream.name,
        )

    def _stage(
        self,
        exported: ExportedSnapshot,
        batch: Batch,
        assignment: Assignment,
        piece: CopyShare,
        watch: CopyWatch,
    ) -> list[Receipt]:
        destination, name = self._destination, assignment.destination
        shared = CopyBatch(
            self._source,
            exported.snapshot,
            exported.lsn,
            {name: batch.for_parts()},
            {name: destination.spec},
            room(len(piece), 1),
            self._recipes.folder,
        )
        outcomes = self._read(partial(copy_share, shared), piece, watch)
        log_slow(outcomes)
        outcomes = finish(self._recipes, outcomes, shared)
        receipts, failures = collect(outcomes)
        for error in failures.values():
            raise error
        return receipts.get(name, [])

    def _read(self, work: Callable[[CopyShare], Outcome], piece: CopyShare, watch: CopyWatch) -> list[Outcome]:
        if sum(part.chunk.bytes for part in piece) <= self._small_bytes:
            outcomes = [work((part,)) for part in piece]
        else:
            shares = copy_shares(piece, TASKS_PER_CORE * self._jobs.cores)
            outcomes = self._jobs.run(work, shares, group=self._group, reporting=watch.reporting)
        watch.count(copied for outcome in outcomes for copied in outcome.copied)
        return outcomes

    def _commit(self, exported: ExportedSnapshot, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._source.verify(exported)
        trouble = self._destination.commit(batch, receipts).get(self._run.name)
        if trouble is not None:
            raise trouble
