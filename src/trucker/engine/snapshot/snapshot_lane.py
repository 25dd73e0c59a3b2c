"""Brings the table of a lane to the consistent point of a snapshot, and writes rows there that the snapshot shows.

Who calls: the source's runner, in a thread, with a lane of one table that has left the main lane. A temporary slot
gives a snapshot and its consistent point. The lane applies all changes before that point and none after it; then rows
of the snapshot are written by key, and rows that it does not show are deleted. At that position the destination has
these rows as the source has them (I6); the lane goes on from there and joins like any other. Until then an update with
unchanged cells of a row that is not at the destination is left out (`Target.awaits_rows`) where the rows are to come.

What may fail: the source (the snapshot goes with its connection), the destination, a row. What is repeated after a
failure or a crash: what was to be written, at a new snapshot. To write rows twice changes nothing.
"""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from trucker.change import Changes
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.schema.schema_changes import SchemaReading, Schemas
from trucker.engine.snapshot.copier import TASKS_PER_CORE
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.snapshot_task import copy_share, delete_rows
from trucker.engine.spark.jobs import Jobs
from trucker.engine.stream.batch_plan import follow
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.task.partition import copy_shares, room
from trucker.engine.task.payload import CopyBatch, CopyShare, Outcome, collect
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
from trucker.source.snapshot import ExportedSnapshot
from trucker.table import TableId

log = logging.getLogger("trucker.snapshot")

COMMIT_BYTES: Final = 128 << 20
"""One commit has about so many bytes of rows: other tables of the destination wait for it."""

MOST_COMMITS: Final = 16
"""Every commit has a position of its own, the last one the consistent point. That is the end of a WAL record which is
no commit and is longer than this, so that no transaction commits between the first and the last."""


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """What one commit writes: chunks of rows, and `deleted` rows, of which it has the keys."""

    share: CopyShare = ()
    deleted: Changes | None = None


@dataclass(frozen=True, slots=True)
class SnapshotReading:
    """How a snapshot shows the table; `news` where its shape is not the one that was written last."""

    reading: SchemaReading
    news: bool
    sighting: Sighting


class SnapshotLane(ABC):
    """Has the table of one lane at consistent points, however often it takes, and lets the lane go on."""

    needs_from: None = None
    """The lane's own position keeps the change log."""

    doing: ClassVar[str]
    """What it is called in the log."""

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
        self.lane = lane
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
        self._group = f"{self.doing}-{uuid.uuid4().hex[:12]}"
        self.trucks: Mapping[str, frozenset[TableId]] = {self._run.name: lane.tables}

    @abstractmethod
    def _work(self, exported: ExportedSnapshot) -> bool:
        """Do what is to be done at the snapshot, all changes before it having been applied; whether that was all."""

    def _exporting(self, stop: threading.Event) -> AbstractContextManager[ExportedSnapshot]:
        """A new snapshot, for as long as there is work in it."""
        return self._source.export(stop)

    @property
    def _facts(self) -> dict[str, object]:
        return {"truck": self._run.name, "table": str(self._table)}

    def run(self, stop: threading.Event) -> bool:
        """Do all of it; whether the lane goes on, in a thread of its own."""
        while not stop.is_set():
            try:
                with self._exporting(stop) as exported:
                    if not self._approach(exported, stop):
                        return False
                    complete = self._work(exported)
            except Stopped:
                return False
            except TruckerError as error:
                if stop.is_set() or not self._note(error):
                    return False
                self._backoff.wait(stop)
                continue
            if complete and not self.lane.over:
                self._spawn(self.lane)
            if complete or self.lane.over:
                return not self.lane.over
        return False

    def cancel(self) -> None:
        """Give up the job in hand. Repeat it until the work has ended."""
        self._jobs.cancel(self._group)

    def _note(self, error: TruckerError) -> bool:
        """Note a failure; whether it is to be tried again.

        A table that is set aside keeps its position: to copy it would take away rows that are kept.
        """
        run, lane = self._run, self.lane
        exhausted = self._tries is not None and self._backoff.tries >= self._tries
        with self._stream.turn:
            if run.has_ended:
                return False
            if error.transient and not exhausted:
                run.retry_tables([self._table], error)
                lane.unsure = True
                log.warning(f"{self.doing} failed", extra={**self._facts, **error.facts()})
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
        if self._stream.reader.durable().seen_lsn < goal:
            with self._source.copy_session() as session:
                session.watermark()  # the stream of an idle source says only now and then how far it is
        runner = LaneRunner(
            self.lane,
            self._stream,
            self._destination,
            backoff=self._backoff,
            tries=self._tries,
            spawn=self._spawn,
            goal=goal,
        )
        if not runner.run(stop) or runner.arrived:
            return False
        if self.lane.position > goal:
            raise SourceUnavailable(
                f"{self._table} is at {self.lane.position}, beyond the snapshot at {exported.lsn}",
                remedy="a new snapshot is taken",
            )
        return True

    # -- the table's shape --------------------------------------------------------------------------------------------

    def _see(self, view: SnapshotView) -> SnapshotReading | None:
        """How the snapshot shows the table, the destination being ready for it; None where it must be copied again,
        which has begun then."""
        sighting = view.sighting(self._table)
        reading, news = self._schemas.see(self._run.name, self._run.truck.tables[self._table], sighting)
        if reading is None:
            raise SourceUnavailable(f"table {self._table} was dropped", remedy="none needed: trucker looks again")
        if news:
            reading = follow(self._run, reading, self._schemas, self._destination, self._recipes)
        if reading.again:
            self._copy_again(reading.again)
            return None
        return SnapshotReading(reading, news, sighting)

    def _follow(self, seen: SnapshotReading) -> None:
        """Record the shape. Partitions that are still to be merged are seen by the next look at the table."""
        if seen.news and not seen.reading.merge:
            self._schemas.follow(seen.reading)

    def _key_names(self, sighting: Sighting) -> tuple[str, ...]:
        """What the columns of the truck's key are called in the snapshot."""
        assert sighting.look is not None
        table = self._run.truck.tables[self._table]
        return table.key_by({number: name for name, number in sighting.look.numbers.items()})

    def _copy_again(self, why: str) -> None:
        """Have the whole table copied: it has changed in another way as well. The lane is over then."""
        truck_table, position = (self._run.name, self._table), self.lane.position
        batch = Batch(position, position, tables={truck_table: BEFORE_COPY}, builds_on={truck_table: position})
        trouble = self._destination.commit(batch, ()).get(self._run.name)
        if trouble is not None:
            raise trouble
        self._stream.copy_again(self._run, {self._table: why}, self.lane)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(
        self, exported: ExportedSnapshot, assignment: Assignment, pieces: Sequence[SnapshotPiece], watch: CopyWatch
    ) -> None:
        """Commit pieces, each as a whole; there are at most MOST_COMMITS."""
        for number, piece in enumerate(pieces, 1):
            end = Lsn(exported.lsn - len(pieces) + number)
            batch = self._batch(assignment, end)
            try:
                receipts = self._stage(exported, batch, assignment, piece, watch)
                self._commit(exported, batch, receipts)
            except TruckerError:
                self._destination.discard(batch)
                raise
            self.lane.position = end
            self._run.applied(None, sum(receipt.rows for receipt in receipts), persisted=False)

    def _batch(self, assignment: Assignment, end: Lsn) -> Batch:
        truck_table, start = (self._run.name, self._table), self.lane.position
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
        piece: SnapshotPiece,
        watch: CopyWatch,
        spec: SinkSpec | None = None,
    ) -> list[Receipt]:
        """Have the piece staged; with a `spec`, by that sink in place of the destination's."""
        name = assignment.destination
        shared = CopyBatch(
            self._source,
            exported.snapshot,
            exported.lsn,
            {name: batch.for_parts()},
            {name: spec or self._destination.spec},
            room(len(piece.share) + 1, 1),
            self._recipes.folder,
        )
        outcomes = self._read(partial(copy_share, shared), piece.share, watch) if piece.share else []
        if piece.deleted is not None:
            outcomes.append(delete_rows(shared, 1 + len(piece.share), assignment, piece.deleted))
        log_slow(outcomes)
        outcomes = finish(self._recipes, outcomes, shared)
        receipts, failures = collect(outcomes)
        for error in failures.values():
            raise error
        return receipts.get(name, [])

    def _read(self, work: Callable[[CopyShare], Outcome], share: CopyShare, watch: CopyWatch) -> list[Outcome]:
        if sum(part.chunk.bytes for part in share) <= self._small_bytes:
            outcomes = [work((part,)) for part in share]
        else:
            shares = copy_shares(share, TASKS_PER_CORE * self._jobs.cores)
            outcomes = self._jobs.run(work, shares, group=self._group, reporting=watch.reporting)
        watch.count(copied for outcome in outcomes for copied in outcome.copied)
        return outcomes

    def _commit(self, exported: ExportedSnapshot, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._source.verify(exported)
        trouble = self._destination.commit(batch, receipts).get(self._run.name)
        if trouble is not None:
            raise trouble
