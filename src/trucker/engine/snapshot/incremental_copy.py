"""Copies tables chunk by chunk while the stream goes on, and continues after an interruption where it was.

Who calls: the source's runner, in a thread, for tables whose truck says so, and for those that the destination has with
a cursor. A table is a lane of its own, at a position that the destination stores with the cursor of the copy.

One round: chunks are read, each in a short transaction of its own, and staged. The end of the WAL after that is the
round's watermark. The lane then applies the changes up to the watermark, and its first commit brings the chunks' rows,
before those changes, together with the new cursor. What is in a chunk and in a change is in both of them: changes are
written as whole rows, so that the last one decides, and what the chunk has of later changes comes again with them. A
row that moved from a chunk that is to come to one that was read has changed meanwhile, and is in the stream.

Of trucks with rules or SQL the rows that the changes since the lane's position are about are left out of the chunks
(`chunk_task`): the destination then has no row that is newer than the position.

A transaction that has been applied and that a chunk does not show would be lost. A commit is in the stream before other
sessions see it, while a synchronous standby is waited for; so no chunk is read before everything that was applied is
visible (I6).

When every page has been read, the destination may still have rows that are newer than the lane's position: those of
the last chunks, which the lane passes while it takes any row for possible, and those that were read again because the
stream did not send all their values. The copy is complete when the lane has passed the positions at which these were
read. From then on the lane is like any other.

A copy in one go that was interrupted continues here: its snapshot is the beginning, and the pages that it has read are
in the cursor (`interrupted_copy`).

What may fail: the source, the destination, a row. What is repeated after a failure or a crash: the chunks of one round.

Size: how copies begin and how they go on are told together, because they keep one promise to the stream.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from trucker.changelog.format.log_range import LogRange
from trucker.config.models import CopyConfig
from trucker.engine.destination import task_sinks
from trucker.engine.destination.destination import Destination
from trucker.engine.schema.schema_changes import SchemaReading, Schemas, copied, fit
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.snapshot.chunk_task import copy_untouched
from trucker.engine.snapshot.copier import Need
from trucker.engine.snapshot.copy_cursor import CopyCursor
from trucker.engine.snapshot.copy_pace import CopyPace
from trucker.engine.snapshot.copy_start import readings_at_start
from trucker.engine.snapshot.interrupted_copy import InterruptedCopy
from trucker.engine.snapshot.snapshot_task import copy_share
from trucker.engine.spark.jobs import Jobs
from trucker.engine.stream.batch_plan import assignment_of, follow
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.task.partition import copy_shares, room
from trucker.engine.task.payload import CopyBatch, CopyPart, Outcome, collect
from trucker.engine.task.slow_statements import log_slow
from trucker.engine.task.waiting_rows import finish
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Absent, Lane, StagedChunks
from trucker.engine.truck.life import TablePhase
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import TruckRun, letters_of
from trucker.errors import JobFailed, SourceUnavailable, TruckerError
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.observe.status import CopyProgress
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.base import FinishesCopies
from trucker.sinks.batch import Batch, Phase, Receipt, TableState
from trucker.sinks.target import Target
from trucker.source.base import CopySession, Source
from trucker.source.snapshot import LeafExtent, SnapshotChunk
from trucker.source.source_table import SourceTable
from trucker.table import TableId, TableSchema

log = logging.getLogger("trucker.copy")

HERE_BYTES: Final = 4 << 20
"""So much the driver reads itself: a job takes longer. It reads more while Spark's workers start."""

WAIT_SECONDS: Final = 0.1


class IncrementalCopier:
    """Copies the tables of needs and lanes one after the other, however often it takes."""

    def __init__(
        self,
        jobs: Jobs,
        source: Source,
        stream: SourceStream,
        destinations: Mapping[str, Destination],
        schemas: Schemas,
        schema_store: SchemaStore,
        recipes: Recipes,
        limits: CopyConfig,
        *,
        small_bytes: int,
        backoff: Callable[[], Backoff],
        tries: int | None,
        spawn: Callable[[Lane], None],
        hold: Callable[[Lane], None],
        release: Callable[[Lane], None],
        take_up: Callable[[Sequence[Need]], None],
    ) -> None:
        """`spawn` lets a lane go on by itself; between `hold` and `release` the change log is kept for it. `take_up`
        has tables published that were made again. The driver itself reads up to `small_bytes`."""
        self.jobs = jobs
        self.source = source
        self.stream = stream
        self.destinations = destinations
        self.schemas = schemas
        self.schema_store = schema_store
        self.recipes = recipes
        self.limits = limits
        self.here_bytes = min(small_bytes, HERE_BYTES) if jobs.is_local else 0
        self.backoff = backoff
        self.tries = tries
        self.spawn = spawn
        self.hold = hold
        self.release = release
        self._take_up = take_up
        self.group = f"copy-{uuid.uuid4().hex[:12]}"
        # Until copies have begun none of the log goes: a commit of an earlier attempt, of the process before this one
        # too, may count yet, and what it says is where the copy goes on.
        self.needs_from: Lsn | None = stream.reader.oldest()
        self._beginning: Need | None = None
        self._lanes: list[Lane] = []

    @property
    def trucks(self) -> Mapping[str, frozenset[TableId]]:
        """The tables that it works on, or will, by truck."""
        tables: dict[str, frozenset[TableId]] = {}
        if (need := self._beginning) is not None:
            tables[need.run.name] = need.tables
        for lane in list(self._lanes):
            (truck,) = lane.trucks
            tables[truck] = tables.get(truck, frozenset()) | (lane.tables or frozenset())
        return tables

    def begin(self, need: Need, stop: threading.Event, *, copied: bool = True) -> None:
        """Have the destination ready for the copies of a truck's tables. The log is held for them from now on.

        Where they are not to be `copied`, they go on with the changes from now on instead (`copy: none`)."""
        backoff = self.backoff()
        while need.tables and not stop.is_set() and not need.run.has_ended:
            self._beginning = need
            try:
                self._lanes += self._begun(need, stop, copied=copied)
                return
            except Stopped:
                return
            except TruckerError as error:
                need = self._settle(need, error, backoff, stop)
            finally:
                self._beginning = None

    def go_on(self, need: Need, find: Callable[[], InterruptedCopy | None], stop: threading.Event) -> Need:
        """Have copies in one go that were interrupted continue by chunks; what is left to be copied in another way.

        `find` looks what can be continued of the need's tables: anew after a failure, since the destination may have
        lost some of it. A table that has been set aside meanwhile is not continued, nor left."""
        backoff = self.backoff()
        while need.tables and not stop.is_set() and not need.run.has_ended:
            interrupted = find()
            tables = need.tables & interrupted.tables if interrupted is not None else frozenset()
            if interrupted is None or not tables:
                return need
            part = self._beginning = replace(need, tables=tables)
            try:
                self._lanes += self._continued(part, interrupted.only(tables))
                return replace(need, tables=need.tables - tables, whole=False)
            except TruckerError as error:
                if error.transient:
                    self._settle(part, error, backoff, stop)
                else:
                    need = self._settle(need, error, backoff, stop)
            finally:
                self._beginning = None
        return replace(need, tables=frozenset())

    def resume(self, lanes: Sequence[Lane], stop: threading.Event) -> None:
        """Continue copies that were begun before."""
        self._lanes += lanes
        for lane in lanes:
            lane.runs[0].begin_copy(lane.tables or (), whole=False)
        self.run(stop)

    def run(self, stop: threading.Event) -> None:
        """Copy the tables whose copies have begun, one after the other, and let their lanes go on. No more begin."""
        self.needs_from = None  # lanes keep the log from now on
        while self._lanes:
            if not stop.is_set():
                _TableCopy(self, self._lanes[0]).run(stop)
            del self._lanes[0]

    def cancel(self) -> None:
        """Give up the job in hand. Repeat it until the copy has ended."""
        self.jobs.cancel(self.group)

    # -- how copies begin ---------------------------------------------------------------------------------------------

    def _begun(self, need: Need, stop: threading.Event, *, copied: bool) -> list[Lane]:
        run = need.run
        self._take_up([need])
        readings, start = readings_at_start(self.source, self.schema_store, need, stop)
        self.await_logged(start, stop)
        targets = []
        for table, reading in readings.items():
            try:
                readings[table], target = self._fitted(run, reading, start, copied=copied)
            except TruckerError as error:
                raise error.of_table(table) from None
            targets.append(target)
        # Before the copy counts: what is stored of an earlier one says nothing of the rows to come.
        self.schema_store.put({(run.name, table): reading.known for table, reading in readings.items()})
        run.begin_copy(need.tables, whole=need.whole)
        reach("copy.begin.before")
        commit = self._commit_begin if copied else self._commit_uncopied
        commit(need, targets, start)
        reach("copy.begin.after")
        run.relieve(need.tables)
        if not copied:
            self._go_on(need, start)
            return []
        return self._lanes_from(need, start, dict.fromkeys(readings, CopyCursor()))

    def _lanes_from(self, need: Need, start: Lsn, cursors: Mapping[TableId, CopyCursor]) -> list[Lane]:
        """A lane for each table at its cursor, and one for the truck, where it begins."""
        run = need.run
        if need.whole:
            run.take_up(start, {}, ())
            self.spawn(Lane(run.truck.destination, [run], start))
        lanes = [
            Lane(run.truck.destination, [run], start, frozenset({table}), cursor=str(cursor))
            for table, cursor in sorted(cursors.items())
        ]
        for lane in lanes:
            self.hold(lane)
        return lanes

    def _continued(self, need: Need, interrupted: InterruptedCopy) -> list[Lane]:
        """The destination stores how far the copies have got, and from when on their tables have lanes."""
        run, start = need.run, interrupted.start
        destination = self.destinations[run.truck.destination]
        targets = [self._target_then(run, table, start) for table in sorted(interrupted.tables)]
        sink = task_sinks.sink_for(destination.spec)
        if isinstance(sink, FinishesCopies):
            for target in targets:
                sink.finish_copy(target)  # not in the commit: it may take long
        run.begin_copy(need.tables, whole=need.whole)
        reach("copy.begin.before")
        tables = {
            (run.name, table): TableState(Phase.CATCHING_UP, start, str(cursor))
            for table, cursor in interrupted.cursors.items()
        }
        positions = {run.name: start} if need.whole else {}
        batch = Batch(start, start, positions, tables, tuple(targets), staged_as=f"copy-{uuid.uuid4().hex[:12]}")
        if (trouble := destination.commit(batch, ()).get(run.name)) is not None:
            raise trouble
        reach("copy.begin.after")
        run.relieve(need.tables)
        names = ", ".join(map(str, sorted(need.tables)))
        log.info("interrupted copy continues", extra={"truck": run.name, "tables": names, "lsn": str(start)})
        return self._lanes_from(need, start, interrupted.cursors)

    def _target_then(self, run: TruckRun, table: TableId, start: Lsn) -> Target:
        """The target of a copy as it was when the copy began."""
        written = self.schema_store.get(run.name, table)
        assert written is not None
        columns = tuple(seen.column for seen in written.look.columns)
        reading = copied(run.name, run.truck.tables[table], TableSchema(table, columns), written.look, None)
        try:
            return self._fitted(run, reading, start, copied=True)[1]
        except TruckerError as error:
            raise error.of_table(table) from None

    def _fitted(
        self, run: TruckRun, reading: SchemaReading, start: Lsn, *, copied: bool
    ) -> tuple[SchemaReading, Target]:
        """The reading, and the target that it is for, with the destination prepared."""
        destination = self.destinations[run.truck.destination]
        if not copied:  # the rows there stay
            reading = replace(reading, target=replace(reading.target, stale=False))
        if run.truck.config is not None:
            return reading, assignment_of(run, reading, start, destination, self.recipes).target
        reading = fit(reading, destination.prepare)
        return reading, reading.target

    def _go_on(self, need: Need, start: Lsn) -> None:
        """Let tables that are not copied go on from the position that the destination has for them."""
        run = need.run
        log.info(
            "changes are applied from here on", extra={"truck": run.name, "tables": len(need.tables), "lsn": start}
        )
        if need.whole:
            run.take_up(start, dict.fromkeys(need.tables, start), ())
        else:
            run.end_copy(need.tables, start, 0, whole=False)
        self.spawn(Lane(run.truck.destination, [run], start, None if need.whole else need.tables))

    def _commit_begin(self, need: Need, targets: Sequence[Target], start: Lsn) -> None:
        """The tables are emptied where they have rows of an unfinished copy, and refused where these are others'."""
        run, destination = need.run, self.destinations[need.run.truck.destination]
        name = f"copy-{uuid.uuid4().hex[:12]}"
        cursor = TableState(Phase.CATCHING_UP, start, str(CopyCursor()))
        positions = {run.name: start} if need.whole else {}
        for moved, state in (({}, TableState(Phase.COPYING, start)), (positions, cursor)):
            tables = {target.truck_table: state for target in targets}
            batch = Batch(start, start, moved, tables, tuple(targets), name, dead_letters=letters_of([run]))
            if (trouble := destination.commit(batch, ()).get(run.name)) is not None:
                raise trouble

    def _commit_uncopied(self, need: Need, targets: Sequence[Target], start: Lsn) -> None:
        """Rows that are there stay, whoever wrote them."""
        run, destination = need.run, self.destinations[need.run.truck.destination]
        state = TableState(Phase.STREAMING if need.whole else Phase.CATCHING_UP, start)
        tables = {target.truck_table: state for target in targets}
        positions = {run.name: start} if need.whole else {}
        name = f"start-{uuid.uuid4().hex[:12]}"
        batch = Batch(start, start, positions, tables, tuple(targets), staged_as=name)
        if (trouble := destination.commit(batch, ()).get(run.name)) is not None:
            raise trouble

    def _settle(self, need: Need, error: TruckerError, backoff: Backoff, stop: threading.Event) -> Need:
        """Note why copies have not begun; what is still to begin."""
        run, destination = need.run, self.destinations[need.run.truck.destination]
        log.warning("copy failed", extra={"truck": run.name, **error.facts()})
        exhausted = self.tries is not None and backoff.tries >= self.tries
        if error.transient and not exhausted:
            if need.whole:
                run.retry_later(error)
            run.retry_tables(need.tables, error, alone=not need.whole)
            destination.forget_tables(run.name)
            backoff.wait(stop)
            return need
        if not error.transient and error.table in need.tables and destination.fails_by_table(run.truck):
            if need.whole and len(need.tables) == 1:
                run.fail(error)
                return need
            run.set_aside(error.table, error, run.stored, held=False)
            return replace(need, tables=need.tables - {error.table})
        run.fail(error)
        return need

    def await_logged(self, goal: Lsn, stop: threading.Event) -> None:
        """Wait until everything up to a position is in the change log."""
        while self.stream.reader.durable().seen_lsn < goal:
            if stop.wait(WAIT_SECONDS / 10):
                raise Stopped


class _TableCopy:
    """The copy of the one table of a lane, from its cursor on."""

    def __init__(self, copier: IncrementalCopier, lane: Lane) -> None:
        assert lane.tables is not None
        (self._run,), (self._table,) = lane.runs, lane.tables
        self._copier = copier
        self._lane = lane
        self._backoff = copier.backoff()
        self._pace = CopyPace(copier.limits, copier.jobs.cores)
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._chunks = 0
        self._rows = 0
        self._total = 0

    @property
    def _facts(self) -> dict[str, object]:
        return {"truck": self._run.name, "table": str(self._table)}

    @property
    def _makes_rows(self) -> bool:
        """Whether rules or SQL make the rows."""
        return self._run.truck.config is not None

    @property
    def _ended(self) -> bool:
        return self._lane.over or self._run.has_ended

    def run(self, stop: threading.Event) -> None:
        """Copy the table, however often it takes, and let its lane go on; or leave it for the next start."""
        self._stop = stop
        lane, copier = self._lane, self._copier
        log.info("copy started", extra={**self._facts, "lsn": str(lane.position), "cursor": lane.cursor})
        lane.working.set()
        try:
            while not stop.is_set() and not self._ended:
                try:
                    with copier.source.copy_session() as session:
                        if self._copy(session, stop):
                            self._hand_on()
                            return
                except Stopped:
                    return
                except TruckerError as error:
                    if stop.is_set() or self._ended or not self._note(error):
                        return
                    self._backoff.wait(stop)
        finally:
            self._run.end_progress([self._table])
            lane.working.clear()
            if lane.over:
                copier.release(lane)

    def _hand_on(self) -> None:
        lane = self._lane
        lane.cursor, lane.absent = "", Absent.NONE
        self._run.end_copy({self._table}, lane.position, 0, whole=False)
        seconds = round(time.monotonic() - self._began, 3)
        facts = {"destination": lane.destination, "rows": self._rows, "seconds": seconds}
        log.info("table copied", extra={**self._facts, **facts})
        self._copier.spawn(lane)
        self._copier.release(lane)

    def _note(self, error: TruckerError) -> bool:
        """Note a failure; whether the copy goes on after it."""
        run, lane, copier = self._run, self._lane, self._copier
        log.warning("copy failed", extra={**self._facts, **error.facts()})
        exhausted = copier.tries is not None and self._backoff.tries >= copier.tries
        lane.unsure, lane.staged = True, None
        if error.transient and not exhausted:
            copier.destinations[lane.destination].forget_tables(run.name, self._table)
            run.retry_tables([self._table], error)
            return True
        if not error.transient and copier.destinations[lane.destination].fails_by_table(run.truck):
            self._give_up(error)
        else:
            run.fail(error)
        return False

    def _give_up(self, error: TruckerError) -> None:
        """Have the table copied from its beginning when it is tried again."""
        run, lane = self._run, self._lane
        batch = Batch(lane.position, lane.position, tables={(run.name, self._table): BEFORE_COPY})
        trouble = self._copier.destinations[lane.destination].commit(batch, ()).get(run.name)
        if trouble is not None:
            run.fail(error)
            return
        run.set_aside(self._table, error, lane.position, held=False)
        lane.runs, lane.over = [], True

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _copy(self, session: CopySession, stop: threading.Event) -> bool:
        """Copy what remains; False where the lane has ended, or is to stop."""
        self._await_applied(session)
        self._recover()
        self._lane.absent = Absent.ANY
        if self._makes_rows and not self._advance(session, session.watermark(), stop):
            return False  # what has happened since the lane's position is compared with each chunk
        while self._has_chunks_to_read:
            if stop.is_set() or not self._round(session, stop):
                return False
        return self._is_complete or self._catch_up(session, stop)

    @property
    def _is_complete(self) -> bool:
        """The destination has no cursor of the copy: it is complete, by a commit whose answer was lost."""
        return not self._lane.cursor

    @property
    def _has_chunks_to_read(self) -> bool:
        return not self._is_complete and CopyCursor.parse(self._lane.cursor).goal is None

    def _recover(self) -> None:
        """The copy goes on after a failure, of its own or of the lane's."""
        if self._run.life.tables[self._table] is TablePhase.RETRYING:
            self._run.begin_copy({self._table}, whole=False)
            self._run.relieve({self._table})

    def _await_applied(self, session: CopySession) -> None:
        """Wait until the session sees all that has been applied by now, in earlier processes too.

        What the log has no more can only be invisible where commits wait for standbys: it is any running transaction.
        """
        xids = self._copier.stream.reader.retained_transactions(self._lane.position)
        if session.has_synchronous_standbys():
            xids |= session.running()
        session.await_visible(xids)

    def _round(self, session: CopySession, stop: threading.Event) -> bool:
        """One round; False where the lane has ended."""
        reading = self._look(session, stop)
        if reading is None:
            return False
        source = session.load_table(self._table)
        extents = session.extents(source)
        planned = self._plan(source, extents)
        if not planned:
            # Whoever committed the last chunks may have died before the lane had passed what they show.
            goal = session.watermark()
            if not self._advance(session, goal, stop):
                return False
            self._lane.cursor = str(CopyCursor(goal=goal))
            return True
        began = time.monotonic()
        chunks, cursor = [chunk for chunk, _ in planned], planned[-1][1]
        staged, outcomes = self._stage(reading, chunks, cursor)
        try:
            watermark = session.watermark()
            reach("copy.chunk.before")
            self._lane.staged = staged
            if not self._advance(session, watermark, stop):
                return False
        finally:
            if self._lane.brought != staged.name:  # no commit with them is known to have counted
                self._discard(staged.name)
        reach("copy.chunk.after")
        if self._lane.cursor != staged.cursor:  # the commit failed, and the lane went on without the chunks
            return True
        self._count(chunks, outcomes, cursor.remaining_bytes(extents))
        self._pace.rest(sum(receipt.rows for receipt in staged.receipts), time.monotonic() - began, stop)
        return True

    def _look(self, session: CopySession, stop: threading.Event) -> SchemaReading | None:
        """The table as it is, followed by the destination; None where it must be copied in another way."""
        copier, run, lane = self._copier, self._run, self._lane
        destination, table = copier.destinations[lane.destination], run.truck.tables[self._table]
        while True:
            count = copier.schema_store.changes(self._table)
            (sighting,) = session.sightings([self._table])
            reading, news = copier.schemas.see(run.name, table, sighting)
            if reading is None:
                raise SourceUnavailable(f"table {self._table} was dropped", remedy="none needed: trucker looks again")
            if not news:
                break
            # What was written in the former shape comes first.
            if lane.position < sighting.lsn and not self._advance(session, session.watermark(), stop):
                return None
            # A later look would be at a later position again. This one counts, unless the stream has told more.
            if copier.schema_store.changes(self._table) == count:
                reading = self._follow(reading, destination)
                break
        return None if lane.over else reading

    def _follow(self, reading: SchemaReading, destination: Destination) -> SchemaReading:
        copier, run = self._copier, self._run
        reading = follow(run, reading, copier.schemas, destination, copier.recipes)
        why = reading.again or ("partitions were attached with rows" if reading.merge else "")
        if why:
            self._copy_again(why)
        else:
            copier.schemas.follow(reading)
        return reading

    def _copy_again(self, why: str) -> None:
        """Have the table copied from its beginning; the lane is over then."""
        run, lane = self._run, self._lane
        truck_table = (run.name, self._table)
        batch = Batch(
            lane.position, lane.position, tables={truck_table: BEFORE_COPY}, builds_on={truck_table: lane.position}
        )
        trouble = self._copier.destinations[lane.destination].commit(batch, ()).get(run.name)
        if trouble is not None:
            raise trouble
        run.end_copy({self._table}, lane.position, 0, whole=False)
        self._copier.stream.copy_again(run, {self._table: why}, lane)

    def _plan(self, source: SourceTable, extents: Sequence[LeafExtent]) -> list[tuple[SnapshotChunk, CopyCursor]]:
        """The chunks of the next round, each with the cursor behind it."""
        table = self._run.truck.tables[self._table]
        columns = [name for name in source.schema.names if name in source.schema.key or table.chooses(name)]
        schema, pace = source.schema.only(columns), self._pace
        cursor = CopyCursor.parse(self._lane.cursor)
        self._total = self._total or max(1, cursor.remaining_bytes(extents))
        return list(islice(cursor.chunks(extents, schema, table.where, pace.chunk_bytes), pace.chunks))

    def _stage(
        self, reading: SchemaReading, chunks: Sequence[SnapshotChunk], cursor: CopyCursor
    ) -> tuple[StagedChunks, Sequence[Outcome]]:
        copier, lane, run = self._copier, self._lane, self._run
        destination = copier.destinations[lane.destination]
        assignment = assignment_of(run, reading, lane.position, destination, copier.recipes)
        parts = [CopyPart(index, chunk, [assignment]) for index, chunk in enumerate(chunks)]
        batch = Batch(
            lane.position,
            lane.position,
            targets=(assignment.target,),
            dead_letters=letters_of([run]),
            source=copier.stream.name,
            staged_as=f"chunks-{uuid.uuid4().hex[:12]}",
        )
        shared = CopyBatch(
            copier.source,
            "",
            lane.position,
            {destination.name: batch.for_parts()},
            {destination.name: destination.spec},
            room(len(parts), 1),
            copier.recipes.folder,
            copier.stream.reader if self._makes_rows else None,
        )
        try:
            outcomes = self._read(shared, parts)
            receipts, failures = collect(outcomes)
            for error in failures.values():
                raise error
        except TruckerError:
            destination.discard(batch)
            raise
        rows: list[Receipt] = receipts.get(destination.name, [])
        return StagedChunks(batch.name, assignment.target, rows, len(parts), str(cursor)), outcomes

    def _discard(self, name: str) -> None:
        batch = Batch(self._lane.position, self._lane.position, staged_as=name)
        self._copier.destinations[self._lane.destination].discard(batch)

    def _read(self, shared: CopyBatch, parts: Sequence[CopyPart]) -> list[Outcome]:
        copier = self._copier
        work = here = partial(copy_share, shared)
        if self._makes_rows:
            work, here = partial(copy_untouched, shared), partial(copy_untouched, shared, await_logged=self._await)
        small = sum(part.chunk.bytes for part in parts) <= copier.here_bytes
        if small or (copier.here_bytes and not copier.jobs.bring_up_workers().is_set()):
            outcomes = [here(tuple(parts))]
        else:
            outcomes = copier.jobs.run(work, copy_shares(parts, self._pace.readers), group=copier.group)
        log_slow(outcomes)
        return finish(copier.recipes, outcomes, shared)

    def _await(self, goal: Lsn) -> None:
        """As `await_logged`, within a task here."""
        try:
            self._copier.await_logged(goal, self._stop)
        except Stopped:
            raise JobFailed("the copy is to stop") from None

    # -- the stream -----------------------------------------------------------------------------------------------

    def _advance(self, session: CopySession, goal: Lsn, stop: threading.Event) -> bool:
        """Apply what is committed up to `goal`, with the chunks that are staged; False where the lane has ended."""
        lane, copier = self._lane, self._copier
        copier.await_logged(goal, stop)
        reader = copier.stream.reader
        xids = reader.transactions(reader.blocks(min(lane.position, goal), goal))
        runner = LaneRunner(
            lane,
            copier.stream,
            copier.destinations[lane.destination],
            backoff=self._backoff,
            tries=copier.tries,
            spawn=copier.spawn,
            goal=goal,
        )
        if not runner.run(stop) or runner.arrived or self._ended:
            return False
        self._recover()
        if lane.staged is not None:  # nothing was committed at the source meanwhile
            failures = copier.stream.apply(lane.runs, LogRange(lane.position, max(goal, lane.position), ()), lane)
            for error in failures.values():
                lane.unsure = True
                raise error
        session.await_visible(xids)
        return not self._ended

    def _catch_up(self, session: CopySession, stop: threading.Event) -> bool:
        """Pass the position of the newest row that the destination may have."""
        lane = self._lane
        lane.absent = Absent.MOVED
        while True:
            goal, lane.reselected = session.watermark(), False
            lane.cursor = str(CopyCursor(goal=goal))
            if not self._advance(session, goal, stop):
                return False
            if self._is_complete:
                return True
            if not lane.reselected:
                self._complete()
                return True

    def _complete(self) -> None:
        """Store that the table is copied: the next change of it may be long in coming."""
        lane, truck_table = self._lane, (self._run.name, self._table)
        state = TableState(Phase.CATCHING_UP, lane.position)
        batch = Batch(lane.position, lane.position, tables={truck_table: state}, builds_on={truck_table: lane.position})
        trouble = self._copier.destinations[lane.destination].commit(batch, ()).get(self._run.name)
        if trouble is not None:
            raise trouble

    # -- progress -----------------------------------------------------------------------------------------------------

    def _count(self, chunks: Sequence[SnapshotChunk], outcomes: Sequence[Outcome], remaining: int) -> None:
        copied_chunks = [each for outcome in outcomes for each in outcome.copied]
        rows = sum(sum(each.rows.values()) for each in copied_chunks)
        longest = max((each.began_ago - each.ended_ago for each in copied_chunks), default=0.0)
        read = sum(chunk.bytes for chunk in chunks)
        waited = self._copier.destinations[self._lane.destination].longest_wait()
        self._pace.learn(longest, rows, read, waited)
        self._chunks += len(chunks)
        self._rows += rows
        self._total = max(self._total, remaining)
        to_come = -(-remaining // self._pace.chunk_bytes)
        progress = CopyProgress(
            str(self._table),
            self._chunks,
            self._chunks + to_come,
            self._rows,
            self._total - remaining,
            self._total,
            round(time.monotonic() - self._began, 3),
        )
        self._run.show_progress({self._table: progress})
