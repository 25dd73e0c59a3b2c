"""Copies tables as of one commit, with many tasks inside one exported snapshot, while the stream goes on.

Who calls: the source's runner, in a thread, for every table whose destination does not say that it has been copied.
The consistent point is a slot's: the permanent one's own when it was made just now, a temporary one's otherwise.
What was committed before it is in the copy, what comes after it is in the change log, with no gap and no overlap
(I6), because the table was published and captured before.

What may fail: the source (the snapshot is gone with its connection), a destination, one truck. What repeats: the
whole copy of those tables, from a new snapshot; the destination is emptied first and says "copying" until it is
complete.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trucker.engine.destination.destination import Destination
from trucker.engine.schema.schema_changes import SchemaReading, copied, fit
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.snapshot.copy_progress import CopyWatch
from trucker.engine.snapshot.copy_record import CopyPlan, CopyRecord, PlannedChunk, PlannedCopy
from trucker.engine.snapshot.row_steps import steps_digest
from trucker.engine.snapshot.snapshot_task import copy_share, finish_copy
from trucker.engine.spark.jobs import Jobs
from trucker.engine.stream.stream_task import after_spark
from trucker.engine.task.partition import copy_shares, room
from trucker.engine.task.payload import CopyBatch, CopyPart, Outcome
from trucker.engine.task.slow_statements import log_slow
from trucker.engine.task.waiting_rows import finish
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.truck import Truck
from trucker.engine.truck.truck_run import TruckRun, letters_of
from trucker.errors import JobFailed, SourceUnavailable, TruckerError
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.pgoutput import Renames
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.batch import Batch, Phase, Receipt, TableState
from trucker.sinks.ledger import FIRST_COPY
from trucker.sinks.target import Target, TruckTable
from trucker.source.base import Source
from trucker.source.look import Look
from trucker.source.snapshot import ExportedSnapshot, SnapshotChunk
from trucker.source.source_table import SourceTable
from trucker.table import TableId

log = logging.getLogger("trucker.copy")

CHUNK_BYTES = 32 << 20
LEAST_CHUNK_BYTES = 2 << 20
CHUNKS_PER_CORE = 3
MOST_CHUNKS = 10_000
# More tasks than can run at once, so that all end about together; more chunks than tasks, so that a task pays off.
TASKS_PER_CORE = 8
SHARE_CHUNKS = 16
# So much the driver copies itself in less time than Spark's workers take to start.
HERE_BYTES = 8 << 20
HERE_PARTS = 64


@dataclass(frozen=True, slots=True)
class Need:
    """Tables of a truck that must be copied; `whole` when the truck has no position yet. Of those that are `fresh` the
    destination has no rows of an earlier copy; of the `interrupted` ones among them it may have some of a first copy in
    one go that was given up."""

    run: TruckRun
    tables: frozenset[TableId]
    whole: bool
    fresh: frozenset[TableId] = frozenset()
    interrupted: frozenset[TableId] = frozenset()


class Copier:
    """Copies what is needed, however often it takes, and hands each truck on to a lane at the snapshot's LSN."""

    def __init__(
        self,
        jobs: Jobs,
        source: Source,
        destinations: Mapping[str, Destination],
        schema_store: SchemaStore,
        recipes: Recipes,
        *,
        backoff: Backoff,
        tries: int | None,
        spawn: Callable[[Lane], None],
        durable: Callable[[], Lsn],
        take_up: Callable[[Sequence[Need]], None],
        resume: Callable[[Need], bool],
        record: CopyRecord,
        recorded_bytes: int,
        here: bool = False,
    ) -> None:
        """`take_up` has tables published that were made again; `resume` copies them in another way after an
        interruption, or says that it does not. `here` says that the driver may do some of the work itself. `record`
        has what first copies of tables from `recorded_bytes` on are going to read."""
        self.jobs = jobs
        self.source = source
        self.destinations = destinations
        self.schema_store = schema_store
        self.recipes = recipes
        self._backoff = backoff
        self._tries = tries
        self.spawn = spawn
        self._durable = durable
        self._take_up = take_up
        self._resume = resume
        self.record = record
        self.recorded_bytes = recorded_bytes
        self.group = ""
        self.cancelled = False
        self.here = here and jobs.is_local
        self.needs_from: Lsn | None = None
        self.trucks: Mapping[str, frozenset[TableId]] = {}
        """The trucks, with their tables, whose copy is in progress."""

    def run(self, needs: Sequence[Need], first: ExportedSnapshot | None, stop: threading.Event) -> None:
        """Copy all of it. `first` is the permanent slot's own snapshot, good for one try."""
        remaining = list(needs)
        while (remaining := self._wanted(remaining)) and not stop.is_set():
            exported, attempt = first, None
            try:
                # The log must be kept from where the snapshot will be, which is not before what it has now.
                self.needs_from = first.lsn if first else self._durable()
                self._take_up(remaining)
                exported = first or self.source.export(stop)
                attempt = _Attempt(self, remaining, exported)
                rest = attempt.run()
            except TruckerError as error:
                rest = [(need, error) for need in remaining]
            except Stopped:
                return
            finally:
                self.needs_from = first = None
                self.trucks = {}
                if exported is not None:
                    exported.close()
            if stop.is_set():  # what fails then was given up because of it, and begins anew at the next start
                self._give_up(remaining)
                return
            remaining = self._settle(rest)
            begun = attempt.begun if attempt is not None else frozenset[str]()
            remaining = [each for each in remaining if each.run.name not in begun or not self._resume(each)]
            if remaining:
                self._backoff.wait(stop)
        if first is not None:
            first.close()

    def _wanted(self, needs: Sequence[Need]) -> list[Need]:
        """The needs of trucks that go on: no copy of one that is paused is begun."""
        wanted = [need for need in needs if not need.run.has_ended]
        self.trucks = {need.run.name: need.tables for need in wanted}
        return wanted

    def cancel(self) -> None:
        """Give up the copy in hand; it is taken again at the next start. Repeat it until the copy has ended."""
        self.cancelled = True
        if self.group:
            self.jobs.cancel(self.group)

    def _give_up(self, needs: Sequence[Need]) -> None:
        for need in needs:
            need.run.end_progress(need.tables)

    def _settle(self, rest: Sequence[tuple[Need, TruckerError]]) -> list[Need]:
        """What must be tried again."""
        again = []
        for need, error in rest:
            self._give_up([need])
            if need.run.has_ended:
                continue
            destination = self.destinations[need.run.truck.destination]
            if not error.transient and not need.whole and destination.fails_by_table(need.run.truck):
                for table in sorted(need.tables):
                    need.run.set_aside(table, error, need.run.stored, held=False)
                continue
            exhausted = self._tries is not None and self._backoff.tries >= self._tries
            retried = error.transient and not exhausted
            self._note(need, error) if retried else need.run.fail(error)
            names = ", ".join(map(str, sorted(need.tables)))
            log.warning("copy failed", extra={"truck": need.run.name, "tables": names, **error.facts()})
            if retried:
                # Its tables may have been dropped or altered, which may be why it failed.
                self.destinations[need.run.truck.destination].forget_tables(need.run.name)
                again.append(need)
        return again

    def _note(self, need: Need, error: TruckerError) -> None:
        """What is to be tried again: the truck, if it has nothing yet, or tables that its others do not wait for."""
        if need.whole:
            need.run.retry_later(error)
        need.run.retry_tables(need.tables, error, alone=not need.whole)


class _Attempt:
    """One try at copying, at one snapshot.

    A table that somebody truncates or rewrites meanwhile is left for the next one, alone: the others need not wait
    for a quiet moment of it. One that fails for good is set aside, where its truck has others that go on.
    """

    def __init__(self, copier: Copier, needs: Sequence[Need], exported: ExportedSnapshot) -> None:
        self._copier = copier
        self._needs = {need.run.name: need for need in needs}
        self._exported = exported
        fresh = all(need.tables <= need.fresh for need in needs)
        self._name = f"{FIRST_COPY if fresh else 'copy-'}{uuid.uuid4().hex[:12]}"
        self.begun: frozenset[str] = frozenset()
        """The trucks whose destination has stored that the copy has begun."""
        self._failures: dict[str, TruckerError] = {}
        self._postponed: dict[tuple[str, TableId], TruckerError] = {}
        self._failed: dict[tuple[str, TableId], TruckerError] = {}
        self._looks: dict[TableId, Look] = {}
        self._sizes: dict[TableId, int] = {}
        self._recipes: dict[tuple[str, TableId], Recipe] = {}
        self._renames: dict[tuple[str, TableId], Renames] = {}
        self._watch: CopyWatch | None = None

    def run(self) -> list[tuple[Need, TruckerError]]:
        """Copy; what is left to be copied, and why."""
        tables, chunks = self._look()
        targets = self._prepare(tables)
        reach("copy.begin.before")
        self._commit(targets, Phase.COPYING, {})
        reach("copy.begin.after")
        self._record(targets, chunks)
        self.begun = frozenset(self._needs.keys() - self._failures.keys())
        receipts = self._copy(targets, self._parts(targets, chunks))
        self._copier.source.verify(self._exported)
        reach("copy.end.before")
        self._commit(targets, None, receipts)
        reach("copy.end.after")
        self._copier.record.remove([self._name])
        return [rest for need in self._needs.values() if (rest := self._hand_on(need, receipts))]

    def _record(
        self, targets: Mapping[str, Sequence[Target]], chunks: Mapping[TableId, Sequence[SnapshotChunk]]
    ) -> None:
        """Record what is going to be read, where it is worth being continued after an interruption. What was read from
        a standby counts only when it has been verified at the end."""
        least = self._copier.recorded_bytes
        if (
            self._exported.standby
            or not self._name.startswith(FIRST_COPY)
            or max(self._sizes.values(), default=0) < least
        ):
            return
        planned: dict[TruckTable, list[PlannedChunk]] = defaultdict(list)
        for part in self._parts(targets, chunks):
            chunk = part.chunk
            file = self._looks[chunk.schema.table].files.get(chunk.oid, 0)
            for assignment in part.assignments:
                on_spark = assignment.recipe is not None and assignment.recipe.spark is not None
                number = after_spark(part.index) if on_spark else part.index
                pages = PlannedChunk(number, chunk.oid, file, chunk.first, chunk.last)
                planned[assignment.target.truck_table].append(pages)
        copies = {}
        for (name, table), each in planned.items():
            truck, size = self._needs[name].run.truck, self._sizes[table]
            if size >= least and truck.continues(table):
                wanted = truck.tables[table]
                steps = steps_digest(truck.config)
                copies[name, table] = PlannedCopy(wanted.output, wanted.where, size, tuple(each), steps)
        self._copier.record.put(self._name, CopyPlan(self._exported.lsn, copies))

    def _hand_on(self, need: Need, receipts: Mapping[str, Sequence[Receipt]]) -> tuple[Need, TruckerError] | None:
        """Let what has been copied catch up; what has not been is given back."""
        run, lsn = need.run, self._exported.lsn
        if run.name in self._failures:
            return need, self._failures[run.name]
        postponed = frozenset(table for truck, table in self._postponed if truck == run.name)
        failed = {table: error for (truck, table), error in self._failed.items() if truck == run.name}
        postponed, done = postponed - failed.keys(), need.tables - postponed - failed.keys()
        if need.whole and failed.keys() == need.tables:
            return need, failed[min(failed)]
        for table, error in sorted(failed.items()):
            run.set_aside(table, error, lsn, held=False)
        if done:
            rows = sum(r.rows for written in receipts.values() for r in written if r.truck == run.name)
            run.end_copy(done, lsn, rows, whole=need.whole)
            for table in sorted(done):
                self._tell_end(run, table)
            self._copier.spawn(Lane(run.truck.destination, [run], lsn, None if need.whole else done))
        if not postponed:
            return None
        rest = replace(need, tables=postponed, whole=need.whole and not done)
        return rest, self._postponed[run.name, min(postponed)]

    def _tell_start(self, need: Need) -> None:
        tables = [table for table in sorted(need.tables) if (need.run.name, table) not in self._postponed]
        facts = {"table": str(tables[0])} if len(tables) == 1 else {"tables": len(tables)}
        size = sum(self._sizes.get(table, 0) for table in tables)
        log.info("copy started", extra={"truck": need.run.name, **facts, "bytes": size, "lsn": str(self._exported.lsn)})

    def _tell_end(self, run: TruckRun, table: TableId) -> None:
        facts: dict[str, object] = {"truck": run.name, "table": str(table), "destination": run.truck.destination}
        if self._watch is not None:
            copied = self._watch.progress((run.name, table))
            facts |= {"rows": copied.rows, "seconds": copied.seconds}
            facts |= {"rows_per_second": copied.rows_per_second} if copied.rows_per_second is not None else {}
        log.info("table copied", extra=facts)

    def _alive(self) -> list[Need]:
        return [need for name, need in self._needs.items() if name not in self._failures]

    def _look(self) -> tuple[Mapping[TableId, SourceTable], Mapping[TableId, Sequence[SnapshotChunk]]]:
        """The tables as they are in the snapshot, cut into chunks."""
        wanted = sorted({table for need in self._needs.values() for table in need.tables})
        with self._copier.source.view(self._exported) as view:
            tables = {}
            for table in wanted:
                try:
                    tables[table] = view.describe(table)
                except TruckerError as error:
                    if error.transient:
                        raise
                    self._fail(table, error)
                    continue
                self._looks[table] = view.look(table)
            size = chunk_bytes(sum(table.bytes for table in tables.values()), self._copier.jobs.cores)
            chunks = {}
            for name, source in tables.items():
                readers = [need.run.truck.tables[name] for need in self._needs.values() if name in need.tables]
                names = {number: called for called, number in self._looks[name].numbers.items()}
                keys = {called for reader in readers for called in reader.key_by(names)}
                columns = [c for c in source.schema.names if c in keys or any(r.chooses(c) for r in readers)]
                try:
                    chunks[name] = view.chunks(source, size, columns=columns, where=readers[0].where)
                    self._sizes[name] = sum(chunk.bytes for chunk in chunks[name])
                except SourceUnavailable as error:
                    self._leave(name, error)
        return tables, chunks

    def _fail(self, table: TableId, error: TruckerError) -> None:
        """A table cannot be copied to anywhere."""
        for need in self._needs.values():
            if table in need.tables:
                self._fail_share(need.run.truck, table, error)

    def _fail_share(self, truck: Truck, table: TableId | None, error: TruckerError) -> bool:
        """A table cannot be copied for a truck: it fails alone, or the truck does; whether it is the table."""
        if table is not None and self._copier.destinations[truck.destination].fails_by_table(truck):
            self._failed[truck.name, table] = error
            return True
        if truck.name not in self._failures or self._failures[truck.name].transient:
            self._failures[truck.name] = error
        return False

    def _leave(self, table: TableId, error: TruckerError) -> None:
        self._postponed |= {(name, table): error for name, need in self._needs.items() if table in need.tables}

    def _prepare(self, tables: Mapping[TableId, SourceTable]) -> dict[str, list[Target]]:
        """Every destination's targets, their tables made where missing."""
        targets: dict[str, list[Target]] = defaultdict(list)
        for need in self._needs.values():
            truck = need.run.truck
            if truck.name in self._failures:
                continue
            fitted: dict[TableId, tuple[SchemaReading, Target]] = {}
            for table in sorted(need.tables & tables.keys()):
                try:
                    fitted[table] = self._fitted(truck, self._reading(truck, table, tables[table]))
                except TruckerError as error:
                    if error.transient or not self._fail_share(truck, table, error):
                        self._failures[truck.name] = error
                        break
            if truck.name in self._failures:
                continue
            # Before the copy counts: what is stored of an earlier one says nothing of the rows to come.
            self._copier.schema_store.put(
                {(truck.name, table): reading.known for table, (reading, _) in fitted.items()}
            )
            self._renames |= {(truck.name, table): reading.renames for table, (reading, _) in fitted.items()}
            targets[truck.destination] += [target for _, target in fitted.values()]
        return targets

    def _reading(self, truck: Truck, table: TableId, source: SourceTable) -> SchemaReading:
        before = self._copier.schema_store.get(truck.name, table)
        return copied(truck.name, truck.tables[table], source.schema, self._looks[table], before)

    def _fitted(self, truck: Truck, reading: SchemaReading) -> tuple[SchemaReading, Target]:
        """The reading and the target it is for, the destination prepared."""
        destination = self._copier.destinations[truck.destination]
        transformed = self._copier.recipes.of(truck, reading.target)
        if transformed is None:
            fitted = fit(reading, destination.prepare)
            return fitted, fitted.target
        target, recipe = transformed
        left_out = destination.prepare(target)
        self._recipes[truck.name, target.source.table] = recipe
        source = target.source.only([name for name in target.source.names if name not in left_out])
        return reading, replace(target, source=source)

    def _commit(
        self,
        targets: Mapping[str, Sequence[Target]],
        phase: Phase | None,
        receipts: Mapping[str, Sequence[Receipt]],
    ) -> None:
        """Say at every destination that its tables are being copied, or (`phase` None) that they have been."""
        for name, destination_targets in targets.items():
            # Without the tables that failed it is tried again: the others of their trucks go on.
            while any(self._commit_at(name, destination_targets, phase, receipts.get(name, ()))):
                pass

    def _commit_at(
        self, destination: str, targets: Sequence[Target], phase: Phase | None, receipts: Sequence[Receipt]
    ) -> list[bool]:
        """Commit at one destination; for each truck that did not, whether one of its tables alone is to blame."""
        wanted = [t for t in targets if self._is_going_on(t) and (phase or self._is_done(t))]
        truck_tables = {(target.truck, target.source.table) for target in wanted}
        batch = self._batch(wanted, self._exported.lsn, phase)
        taken = [r for r in receipts if r.truck_table in truck_tables and r.truck not in self._failures]
        at = self._copier.destinations[destination]
        if phase:
            at.expect_copies(
                {
                    truck_table: self._sizes[truck_table[1]]
                    for truck_table in truck_tables
                    if truck_table[1] in self._sizes
                }
            )
        failures = at.commit(batch.without(self._failures), taken)
        return [
            self._fail_share(self._needs[truck].run.truck, None if error.transient else error.table, error)
            for truck, error in failures.items()
        ]

    def _is_done(self, target: Target) -> bool:
        return (target.truck, target.source.table) not in self._postponed

    def _is_going_on(self, target: Target) -> bool:
        return target.truck not in self._failures and (target.truck, target.source.table) not in self._failed

    def _batch(self, targets: Sequence[Target], lsn: Lsn, phase: Phase | None) -> Batch:
        tables = {}
        positions = {}
        for target in targets:
            whole = self._needs[target.truck].whole
            done = Phase.STREAMING if whole else Phase.CATCHING_UP
            tables[target.truck, target.source.table] = TableState(phase or done, lsn)
            if whole and phase is None:
                positions[target.truck] = lsn
        letters = letters_of([need.run for need in self._needs.values()])
        return Batch(lsn, lsn, positions, tables, tuple(targets), self._name, dead_letters=letters)

    def _parts(
        self, targets: Mapping[str, Sequence[Target]], chunks: Mapping[TableId, Sequence[SnapshotChunk]]
    ) -> list[CopyPart]:
        readers: dict[TableId, list[Assignment]] = defaultdict(list)
        for name, destination_targets in targets.items():
            for target in destination_targets:
                if self._is_going_on(target) and self._is_done(target):
                    truck_table = (target.truck, target.source.table)
                    renames, recipe = self._renames[truck_table], self._recipes.get(truck_table)
                    assignment = Assignment(name, target, self._exported.lsn, renames, recipe=recipe)
                    readers[target.source.table].append(assignment)
        pairs = [(chunk, assignments) for table, assignments in readers.items() for chunk in chunks[table]]
        return [CopyPart(index, chunk, assignments) for index, (chunk, assignments) in enumerate(pairs)]

    def _shared(self, targets: Mapping[str, Sequence[Target]], parts: Sequence[CopyPart]) -> CopyBatch:
        """What every part needs to know, the parts' own aside."""
        exported, destinations = self._exported, self._copier.destinations
        return CopyBatch(
            self._copier.source,
            exported.snapshot,
            exported.lsn,
            {
                name: self._batch(destination_targets, exported.lsn, None).for_parts()
                for name, destination_targets in targets.items()
            },
            {name: destinations[name].spec for name in targets},
            room(len(parts), max(len(part.assignments) for part in parts)),
            self._copier.recipes.folder,
        )

    def _copy(
        self, targets: Mapping[str, Sequence[Target]], parts: Sequence[CopyPart]
    ) -> Mapping[str, Sequence[Receipt]]:
        receipts: dict[str, list[Receipt]] = defaultdict(list)
        for need in self._alive():
            begun = {t for t in need.tables if (need.run.name, t) not in self._postponed.keys() | self._failed.keys()}
            if begun:
                need.run.begin_copy(begun, whole=need.whole)
        if not parts:
            return receipts
        copier = self._copier
        copier.group = self._name
        shared = self._shared(targets, parts)
        for need in self._alive():
            self._tell_start(need)
        with CopyWatch(parts, {name: need.run for name, need in self._needs.items()}) as watch:
            self._watch = watch
            outcomes = self._copy_here(shared, parts, watch)
            remaining = parts[len(outcomes) :]
            if remaining and copier.cancelled:
                raise JobFailed("the copy was cancelled")
            if remaining:
                shares = copy_shares(remaining, max(TASKS_PER_CORE * copier.jobs.cores, len(remaining) // SHARE_CHUNKS))
                work = partial(copy_share, shared)
                outcomes += copier.jobs.run(work, shares, group=self._name, reporting=watch.reporting)
            watch.count(copied for outcome in outcomes for copied in outcome.copied)
            log_slow(outcomes)
            outcomes = finish(copier.recipes, outcomes, shared)
            for outcome in outcomes:
                for destination, written in outcome.receipts.items():
                    receipts[destination] += written
            self._note(outcomes)
            self._finish(shared, parts, receipts)
        return receipts

    def _copy_here(self, shared: CopyBatch, parts: Sequence[CopyPart], watch: CopyWatch) -> list[Outcome]:
        """Copy small tables here, and of others the first chunks, for as long as Spark's workers are not up."""
        copier, outcomes = self._copier, list[Outcome]()
        if not copier.here:
            return outcomes
        small = len(parts) <= HERE_PARTS and sum(part.chunk.bytes for part in parts) <= HERE_BYTES
        up = None if small else copier.jobs.bring_up_workers()
        for part in parts:
            if copier.cancelled or (up is not None and up.is_set()):
                break
            outcomes.append(copy_share(shared, (part,)))
            watch.count(outcomes[-1].copied)
        return outcomes

    def _finish(self, shared: CopyBatch, parts: Sequence[CopyPart], receipts: Mapping[str, Sequence[Receipt]]) -> None:
        """What sinks want done for tables that have been copied, outside of any commit: a task for each."""
        destinations = self._copier.destinations
        unfinished = {
            (name, *truck_table)
            for name, written in receipts.items()
            for truck_table in destinations[name].unfinished(written)
        }
        due = {
            truck_table: assignment
            for assignment in (assignment for part in parts for assignment in part.assignments)
            if (truck_table := (assignment.destination, assignment.target.truck, assignment.target.source.table))
            in unfinished
            and self._is_going_on(assignment.target)
            and self._is_done(assignment.target)
        }
        if due:
            self._note(self._copier.jobs.run(partial(finish_copy, shared), list(due.values()), group=self._name))

    def _note(self, outcomes: Sequence[Outcome]) -> None:
        """A passing failure leaves the table for later, any other ends it, or the truck."""
        for failure in (failure for outcome in outcomes for failure in outcome.failures):
            if failure.error.transient and failure.table is not None:
                self._postponed[failure.truck, failure.table] = failure.error
            else:
                table = None if failure.error.transient else failure.table
                self._fail_share(self._needs[failure.truck].run.truck, table, failure.error)


def chunk_bytes(total: int, cores: int) -> int:
    """How large chunks are to be: small enough for all cores to have some, until the last one is done."""
    shared = min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, total // (cores * CHUNKS_PER_CORE)))
    return max(shared, total // MOST_CHUNKS)
