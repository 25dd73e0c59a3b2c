"""The micro-batch: from a range of the change log to a commit at every destination.

The one place that decides when a position advances: in `_settle`, after the destination has committed it with the
data (I3).

Who calls. `SourceStream.apply` is called by the main lane's loop (`batch_loop`, under `turn`) and by lanes that catch
up, from their own threads. What may fail: a task's share for one truck, a destination, Spark as a whole; each fails
those trucks alone. What repeats after a crash: any range whose commit is not at the destination; ranges begin at the
stored positions.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from trucker.changelog.format.log_range import LogRange
from trucker.changelog.format.reference import RUN_BYTES
from trucker.changelog.location import LogLocation
from trucker.changelog.reader import LogReader
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.set_aside import leave, set_aside, table_at_fault
from trucker.engine.schema.schema_changes import SchemaReading, Schemas
from trucker.engine.spark.jobs import Jobs
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.arriving_receipts import ArrivingReceipts
from trucker.engine.stream.batch_loop import BatchLoop
from trucker.engine.stream.batch_plan import TableShare, assigned, divide, follow, tell_truncated, to_copy_again
from trucker.engine.stream.batch_runner import BatchRunner, Staging
from trucker.engine.stream.pace import PACE, Pace
from trucker.engine.stream.parallel_commit import DestinationCommit, commit_all
from trucker.engine.stream.prefetch import Prefetch
from trucker.engine.stream.stream_batch import batch_of
from trucker.engine.task.payload import Outcome, collect
from trucker.engine.task.slow_statements import log_slow
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane, note_failure
from trucker.engine.truck.table_failure import BEFORE_COPY, UNTOLD
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import ChangeLogError, ChangeLogUnavailable, EngineError, TruckerError
from trucker.lsn import Lsn
from trucker.pgoutput import parse_relation
from trucker.sinks.batch import Batch, Receipt
from trucker.source.base import Source
from trucker.source.look import Sighting
from trucker.table import TableId

log = logging.getLogger("trucker.query")

PATIENCE_SECONDS = 2.0

Failures = Mapping[str, TruckerError]

MOST_SET_ASIDE = 20
"""So many tables of a truck may fail one after the other in one range; more have a cause that is the truck's."""


class SourceStream:
    """All trucks of one source. `turn` is held while the main lane applies a batch, and by a lane that joins it."""

    def __init__(
        self,
        name: str,
        jobs: Jobs,
        log_place: LogLocation,
        destinations: Mapping[str, Destination],
        schemas: Schemas,
        recipes: Recipes,
        *,
        source: Source,
        max_bytes: int,
        patience: float,
        part_bytes: int,
        small_bytes: int,
        leave: Callable[[Lane], None],
        copy_again: Callable[[TruckRun, frozenset[TableId]], None],
        merge: Callable[[Lane], None],
        pace: Pace = PACE,
    ) -> None:
        self.name = name
        self.turn = threading.Lock()
        self.main = Lsn(0)
        self.max_bytes = max_bytes
        self.pace = pace
        self._patience = patience
        self._part_bytes = part_bytes
        self.stopping = threading.Event()
        self._members: dict[str, TruckRun] = {}
        self._jobs = jobs
        self._log = log_place
        self._destinations = destinations
        self._schemas = schemas
        self._recipes = recipes
        self._leave = leave
        self._copy_again = copy_again
        self._merge = merge
        self._loop: BatchLoop | None = None
        self._workers_at = math.inf
        self._once = False
        self._until: Lsn | None = None
        self._worth = max(max_bytes // pace.worth_share, small_bytes)
        self._recent: dict[tuple[str, TableId], Assignment] = {}
        self._stager = BatchRunner(
            jobs, destinations, recipes, source=source, part_bytes=part_bytes, small_bytes=small_bytes
        )
        self._ahead = Prefetch(self._stager.start, self._discard)
        self._readers = threading.local()

    @property
    def reader(self) -> LogReader:
        """This thread's reader of the change log."""
        if not hasattr(self._readers, "reader"):
            self._readers.reader = LogReader(self._log)
        reader: LogReader = self._readers.reader
        return reader

    # -- the main lane ------------------------------------------------------------------------------------------

    def start(self, *, once: bool) -> None:
        """Start the loop over batches at `main`; with `once` it takes what is durable now and ends."""
        self._once = once
        self._workers_at = time.monotonic() + self.pace.workers_after_seconds
        self._until = self.reader.durable().commit_lsn if once else None
        self._loop = BatchLoop(
            self.name,
            lambda: self.reader,
            lambda: self.main,
            self.on_batch,
            self._on_turn,
            max_bytes=self.max_bytes,
            until=self._until,
            stopping=self.stopping,
        )

    def stop(self) -> None:
        """Finish the batch in hand, then stop. `turn` must not be held meanwhile: a batch may be about to take it."""
        self.stopping.set()
        self._ahead.close()
        while not self.turn.acquire(timeout=PATIENCE_SECONDS):
            self._jobs.let_go()
        self.turn.release()
        if self._loop is not None:
            self._loop.join()

    @property
    def active(self) -> bool:
        return self._loop is not None and self._loop.active

    def failure(self) -> str | None:
        """Why the loop ended, if it failed; of an error that is not trucker's its kind, as its text may quote rows."""
        error = self._loop.error if self._loop is not None else None
        if error is None or isinstance(error, TruckerError):
            return str(error).splitlines()[0] if error else None
        return type(error).__name__

    def damage(self) -> ChangeLogError | None:
        """What is wrong with the change log, if that is why the loop ended: to start it again would not help."""
        error = self._loop.error if self._loop is not None else None
        return error if isinstance(error, ChangeLogError) and not isinstance(error, ChangeLogUnavailable) else None

    def on_batch(self, batch: LogRange) -> None:
        """Apply a range of the log that begins where the main lane is, or before."""
        with self.turn:
            if self.stopping.is_set() or batch.end <= self.main:
                return
            runs = self._alive()
            failures = self.apply(runs, batch.part(self.main, batch.end))
            self.main = batch.end
            if failures:
                self._drop([run for run in runs if run.name in failures], failures)

    def _on_turn(self) -> None:
        """Have workers ready for the first large batch, once it is likely that the run goes on for a while."""
        if not self._once and time.monotonic() >= self._workers_at:
            self._stager.bring_up_workers()

    def _alive(self) -> list[TruckRun]:
        """The main lane's trucks; one that a lane of its tables has failed is no longer among them."""
        self._members = {name: run for name, run in self._members.items() if not run.has_ended}
        return list(self._members.values())

    def _drop(self, runs: Sequence[TruckRun], failures: Failures) -> None:
        """Take trucks out of the main lane: for good, or to catch up later from where they are.

        Those of one destination stay together, so that what it shows stays whole (I5).
        """
        lanes: dict[tuple[str, Lsn], Lane] = {}
        for run in runs:
            del self._members[run.name]
            if failures[run.name].transient:
                lane_key = (run.truck.destination, run.position)
                lanes.setdefault(lane_key, Lane(run.truck.destination, [], run.position, unsure=True)).runs.append(run)
        for lane in lanes.values():
            self._leave(lane)

    def join(self, lane: Lane) -> bool:
        """Take a lane that has caught up into the main one. Call with `turn` held.

        A member may be ahead of the main lane (its copy is younger): its changes count from its own position on.
        """
        if not self.expects(lane):
            return False
        for run in lane.runs:
            if lane.tables:
                run.follow(lane.tables, lane.position)
            elif run.stream():
                self._members[run.name] = run
        return True

    def expects(self, lane: Lane) -> bool:
        """Whether the lane can join now. Call with `turn` held.

        Tables can only join a truck that is here, and not at a place that it has passed already; never before they are
        copied completely.
        """
        if lane.position < self.main or lane.cursor or any(run.has_ended for run in lane.runs):
            return False
        return not lane.tables or all(run.name in self._members and run.position <= lane.position for run in lane.runs)

    # -- what the stream does not tell ---------------------------------------------------------------------------

    def examine(self, sighting: Sighting, runs: Collection[TruckRun]) -> bool:
        """Have what a look at a table shows followed by its trucks; False while one lags.

        One that copies the table, or catches up apart from the others, lags at any position.
        """
        table, lsn = sighting.table, sighting.lsn
        durable = self.reader.durable()
        with self.turn:
            members, settled = {run.name for run in self._alive()}, True
            for run in runs:
                if table not in run.truck.tables:
                    continue
                if run.has_ended:
                    settled = settled and run.is_over
                    continue
                streams = run.name in members and table in run.floors
                caught_up = durable.seen_lsn >= lsn and run.position >= min(lsn, durable.commit_lsn)
                settled = streams and caught_up and self._examine(run, sighting) and settled
            return settled

    def _examine(self, run: TruckRun, sighting: Sighting) -> bool:
        """Whether the truck has settled what was seen: followed it, begun to copy the table again, or failed."""
        table, destination = sighting.table, self._destinations[run.truck.destination]
        try:
            reading = self._schemas.examine(run.name, run.truck.tables[table], sighting)
            if reading is None or (destination.keeps_changes and not reading.remade):
                return True
            reading = follow(run, reading, self._schemas, destination, self._recipes)
            why = reading.again
            if reading.merge and not why:
                self._begin_merge(run, reading)
                return False  # settled when the merge has been recorded, which the next look shows
            if not why:
                self._schemas.follow(reading)
                self._tell_followed(run, reading)
                return True
        except TruckerError as error:
            return self._fail(run, error.of_table(table))
        trouble = self._begin_copy(run, {table: why})
        return trouble is None or not trouble.transient

    def _begin_merge(self, run: TruckRun, reading: SchemaReading) -> None:
        """Have the rows of attached partitions merged, apart from the main lane. Call with `turn` held."""
        table = reading.target.source.table
        lane = self._detach(run, table)
        if lane is not None:
            facts = {"truck": run.name, "table": str(table), "partitions": ", ".join(map(str, reading.merge))}
            log.warning("partitions were attached with rows: their rows are merged", extra=facts)
            self._merge(lane)

    def detach(self, run: TruckRun, table: TableId) -> Lane | None:
        """Take a table that follows its truck out of the main lane, into a lane of its own that the caller works off.

        None while the truck or the table does not follow the main lane, or the destination does not take that.
        """
        with self.turn:
            streams = run.name in {each.name for each in self._alive()} and table in run.floors
            return self._detach(run, table) if streams else None

    def _detach(self, run: TruckRun, table: TableId) -> Lane | None:
        position, trouble = leave(run, table, self._destinations[run.truck.destination])
        if trouble is None:
            self._schemas.forget(run.name, table)
            return Lane(run.truck.destination, [run], position, frozenset({table}))
        if trouble.transient:  # only the destination knows whether the table left
            run.retry_later(trouble)
            self._drop([run], {run.name: trouble})
        else:
            self._fail(run, trouble)
        return None

    def copy_incomplete(self, run: TruckRun, tables: Mapping[TableId, str]) -> bool:
        """Copy tables again some of whose changes are not in the stream; whether the destination has recorded that.

        False while the truck, or one of the tables, does not follow the main lane, or has failed: call it again later.
        """
        with self.turn:
            if run.name not in {each.name for each in self._alive()} or not tables.keys() <= run.floors.keys():
                return False
            return self._begin_copy(run, tables) is None

    def fail(self, run: TruckRun, error: TruckerError) -> None:
        """Stop a truck for a reason that was found outside of its batches."""
        with self.turn:
            self._fail(run, error)

    def _begin_copy(self, run: TruckRun, tables: Mapping[TableId, str]) -> TruckerError | None:
        """Tell the destination that tables are copied again, and do so; what was in the way. Call with `turn` held."""
        batch = Batch(run.position, run.position, tables={(run.name, table): BEFORE_COPY for table in tables})
        trouble = self._destinations[run.truck.destination].commit(batch, ()).get(run.name)
        if trouble is None:
            self.copy_again(run, tables, None)
        else:
            self._fail(run, trouble)
        return trouble

    def _fail(self, run: TruckRun, trouble: TruckerError) -> bool:
        """Set a table aside, or stop its truck, unless the trouble passes; whether that is settled."""
        failures = {run.name: trouble}
        if trouble.transient:
            return False
        if self._set_aside(run, failures, None, in_stream=False):
            return True
        if failures[run.name].transient:
            return False
        run.give_up(failures[run.name])
        return True

    def _tell_followed(self, run: TruckRun, reading: SchemaReading) -> None:
        table, left_out = reading.target.source.table, reading.known.left_out_names
        log.info("columns of table updated at the destination", extra={"truck": run.name, "table": str(table)})
        if left_out:
            log.warning("columns left out", extra={"truck": run.name, "table": str(table), "columns": left_out})
        run.leave_out(table, left_out)

    # -- one range, for the trucks at its start -----------------------------------------------------------------

    def apply(self, runs: Sequence[TruckRun], batch: LogRange, lane: Lane | None = None) -> Failures:
        """Apply a range for these trucks; what failed, by truck. The others have advanced to its end.

        It is cut where a table changes its shape, so that a truck which cannot take a shape has all before it.
        """
        failures: dict[str, TruckerError] = {}
        try:
            bounds = self._bounds(batch, lane) if runs else []
        except TruckerError as error:
            return self._note(runs, dict.fromkeys((run.name for run in runs), error), lane)
        start = batch.start
        for end, then in pairwise([*bounds, None]):
            remaining = [run for run in runs if run.name not in failures]
            if not remaining or (lane is not None and (failures or lane.over)):
                break
            assert end is not None
            failures |= self._apply_piece(remaining, batch.part(start, end), lane, then)
            start = end
        return failures

    def _bounds(self, batch: LogRange, lane: Lane | None) -> list[Lsn]:
        """Where the pieces of a range end; what has been made ahead is one."""
        bounds = {*self.reader.shape_bounds(batch), batch.end}
        prefetched_end = self._ahead.end if lane is None else None
        if prefetched_end is not None and batch.start < prefetched_end < batch.end:
            bounds.add(prefetched_end)
        return sorted(bounds)

    def _apply_piece(self, runs: Sequence[TruckRun], piece: LogRange, lane: Lane | None, then: Lsn | None) -> Failures:
        """As `apply`, for a piece; what may be due to a change that the stream does not tell is tried once more, and a
        truck of which one table fails goes on without it."""
        failures = dict(self._apply_guarded(runs, piece, lane, then))
        if not failures:
            return failures
        again = [run for run in runs if run.name in failures and failures[run.name].code in UNTOLD]
        for run in again:
            self._schemas.forget(run.name)
            self._destinations[run.truck.destination].forget_tables(run.name)
            del failures[run.name]
        if again:
            failures |= self._apply_guarded(again, piece, lane, then)
        for _ in range(MOST_SET_ASIDE):
            again = [run for run in runs if run.name in failures and self._set_aside(run, failures, lane)]
            if not again or (lane is not None and lane.over):
                break
            failures |= self._apply_guarded(again, piece, lane, then)
        return self._note(runs, failures, lane)

    def _set_aside(
        self, run: TruckRun, failures: dict[str, TruckerError], lane: Lane | None, *, in_stream: bool = True
    ) -> bool:
        """Set aside the table that a truck failed for; whether the truck can go on. If not, `failures` says why."""
        destination = self._destinations[run.truck.destination]
        table = table_at_fault(run, failures[run.name], lane, destination)
        if table is None:
            return False
        trouble = set_aside(run, table, failures.pop(run.name), lane, destination, in_stream=in_stream)
        if trouble is not None:
            failures[run.name] = trouble
            return False
        self._schemas.forget(run.name, table)
        return True

    def _apply_guarded(
        self, runs: Sequence[TruckRun], piece: LogRange, lane: Lane | None, then: Lsn | None
    ) -> Failures:
        try:
            return self._apply(runs, piece, lane, then)
        except TruckerError as error:
            reason = error
        except Exception as error:
            # What has been committed only the destinations know: these trucks stop, and the next start asks there.
            log.exception("batch failed unexpectedly", extra={"source": self.name})
            reason = EngineError(
                f"applying changes of {self.name} failed unexpectedly: {type(error).__name__}",
                remedy="read the log, then restart: the trucks continue from their stored positions",
                code="TRK599",
            )
        return dict.fromkeys((run.name for run in runs), reason)

    def _apply(self, runs: Sequence[TruckRun], piece: LogRange, lane: Lane | None, then: Lsn | None) -> Failures:
        blocks = piece.references(min(RUN_BYTES, self._part_bytes))
        failures: dict[str, TruckerError] = {}
        shares = divide(
            runs, lane, blocks, piece.start, self.reader, self._schemas, self._destinations, self._recipes, failures
        )
        again = to_copy_again(shares, lane)
        assignments = assigned(shares, again, lane, piece.end)
        staged = lane.staged if lane is not None else None
        if not assignments and not failures and not again and not lane and not self._persist_due(runs):
            return self._settle(runs, {}, {}, piece, lane, persisted=False)
        batches = {
            name: batch_of(self.name, name, runs, assignments, piece.start, piece.end, lane, again)
            for name in {run.truck.destination for run in runs}
        }
        first = staged.parts if staged else 0
        staging = (
            self._stager.plan(self.reader, blocks, assignments, batches, piece.end, first) if assignments else None
        )
        prefetched = self._ahead.take(staging) if lane is None else None
        arriving = prefetched if prefetched is not None else self._run(staging)
        if staged and lane is not None:
            chunks = Outcome({lane.destination: staged.receipts})
            arriving = OutcomeStream.done([chunks, *arriving])
        if logged := arriving.is_done:  # ahead of what the destinations log
            log_slow(arriving)
        if lane is None and staging and not failures and not again and not any(share.news for share in shares):
            self._look_ahead(staging, arriving, then)
        commits = [
            DestinationCommit(self._destinations[name], *self._to_commit(name, batch, arriving, failures))
            for name, batch in batches.items()
        ]
        failures |= commit_all(commits, self._patience)
        outcomes = list(arriving)
        log_slow(() if logged else outcomes)
        receipts, failed = collect(outcomes)
        failures |= failed
        if lane is None:
            self._ahead.passed(piece.end) if not failures else self._recent.clear()
            self._stager.learn(staging, outcomes) if staging else None
        committed = [share for share in shares if share.run.name not in failures]
        self._written(committed)
        truncated = frozenset[TableId]().union(*[outcome.truncated for outcome in outcomes])
        if truncated:
            tell_truncated(committed, truncated, self.reader, blocks, self._schemas)
        done = self._settle(runs, failures, _rows(receipts), piece, lane)
        if lane is not None:
            lane.reselected |= any(outcome.reselected for outcome in outcomes)
            if staged and not failures:
                lane.cursor, lane.staged, lane.brought = staged.cursor, None, staged.name
        for run in runs if again else ():
            if run.name in again and run.name not in failures:
                self.copy_again(run, again[run.name], lane)
        return done

    def _run(self, staging: Staging | None) -> OutcomeStream[Outcome]:
        return self._stager.run(staging) if staging else OutcomeStream.done(())

    def _written(self, shares: Sequence[TableShare]) -> None:
        """The destinations have the shapes now, with rows of them."""
        news: dict[tuple[str, TableId], tuple[bytes, SchemaReading]] = {}
        for share in shares:
            run, reading = share.run, share.reading
            table = reading.target.source.table
            left_out = reading.known.left_out_names
            if share.news and left_out:
                log.warning("columns left out", extra={"truck": run.name, "table": str(table), "columns": left_out})
            run.leave_out(table, left_out)
            if share.news and not reading.again:
                news[run.name, table] = share.message, reading
        self._schemas.settle(news)

    def copy_again(self, run: TruckRun, tables: Mapping[TableId, str], lane: Lane | None) -> None:
        """Have tables copied that the destination says are to be copied; a lane of them is over."""
        run.copy_again(tables)
        self._schemas.forget(run.name)
        if lane is not None and lane.tables:
            lane.runs, lane.over = [], True
        self._copy_again(run, frozenset(tables))

    def _settle(
        self,
        runs: Sequence[TruckRun],
        failures: Failures,
        rows: Mapping[str, int],
        piece: LogRange,
        lane: Lane | None,
        *,
        persisted: bool = True,
    ) -> Failures:
        """Advance those that committed."""
        end, committed = piece.end, piece.commit_time or 0
        for run in runs:
            if run.name in failures:
                continue
            if lane is not None and not lane.tables:
                run.catch_up()
            reached = end if lane is None or not lane.tables else None
            run.applied(reached, rows.get(run.name, 0), persisted=persisted, committed=committed)
        if lane is not None and not failures:
            lane.position = max(lane.position, end)
        return failures

    def _note(self, runs: Sequence[TruckRun], failures: Failures, lane: Lane | None) -> Failures:
        """Note why trucks did not advance."""
        for run in runs:
            error = failures.get(run.name)
            if error is None or (error.transient and self.stopping.is_set()):  # given up because of the stop
                continue
            note_failure(run, error, lane)
            log.debug("batch not applied", extra={"truck": run.name, **error.facts()})
        return failures

    def _to_commit(
        self, destination: str, batch: Batch, arriving: OutcomeStream[Outcome], failures: Failures
    ) -> tuple[Batch, Sequence[Receipt]]:
        """What goes to one destination, without the trucks that have failed already."""
        receipts = ArrivingReceipts(destination, batch.trucks, arriving)
        if not failures and not arriving.is_done:
            return batch, receipts
        settled, failed = receipts.settled()
        if not failures and not failed:
            return batch, receipts if len(arriving) > 1 else settled
        left_out = failures.keys() | failed.keys()
        return batch.without(left_out), [receipt for receipt in settled if receipt.truck not in left_out]

    def _persist_due(self, runs: Sequence[TruckRun]) -> bool:
        """A range without a change for any truck is committed now and then, not every time."""
        due = time.monotonic() - self.pace.quiet_commit_seconds
        return any(self._destinations[run.truck.destination].committed_at < due for run in runs)

    # -- ahead of its turn ----------------------------------------------------------------------------------------

    def _look_ahead(self, staging: Staging, arriving: OutcomeStream[Outcome], then: Lsn | None) -> None:
        """Have the next range staged when this one is, as far as it can be guessed: `then` is where it ends, if that is
        known. Small batches are followed by small ones, which are quicker without."""
        if staging.bytes <= self._stager.small_bytes:
            return
        for assignment in staging.batch.assignments:
            self._recent[assignment.target.truck, assignment.target.source.table] = assignment
        self._ahead.begin(arriving, partial(self._guess, staging, arriving, then))

    def _guess(self, before: Staging, arriving: OutcomeStream[Outcome], then: Lsn | None) -> Staging | None:
        """What comes after: the same targets, as far as the range has changes of their tables."""
        reader, start = self.reader, before.end
        self._stager.learn(before, list(arriving))  # as it will be learnt again, before the range has its turn
        following = reader.range(start, then) if then else reader.next_range(start, self.max_bytes, self._until)
        if self.stopping.is_set() or following.bytes < self._worth:
            return None
        end = next(iter(reader.shape_bounds(following)), following.end)
        blocks = following.part(start, end).references(min(RUN_BYTES, self._part_bytes))
        tables = {parse_relation(message).table for message in reader.relations(blocks)}
        assignments = [
            replace(each, after=max(each.after, start))
            for (_, table), each in self._recent.items()
            if table in tables and each.after < end
        ]
        batches = {name: replace(batch, start=start, end=end) for name, batch in before.batch.batches.items()}
        staging = self._stager.plan(reader, blocks, assignments, batches, end)
        return staging if assignments and not staging.with_spark_sql else None

    def _discard(self, batches: Mapping[str, Batch]) -> None:
        for name, batch in batches.items():
            self._destinations[name].discard(batch)


def _rows(receipts: Mapping[str, Sequence[Receipt]]) -> Mapping[str, int]:
    """How many rows were staged for each truck."""
    rows: dict[str, int] = defaultdict(int)
    for staged in receipts.values():
        for receipt in staged:
            rows[receipt.truck] += receipt.rows
    return rows
