"""Runs one source of a project: its slot, capture, the loop over batches, copies and lanes.

Order matters and is all here: the publication, then the slot (a slot that must decode changes older than its
publication fails for good), then capture, then copies; a truck streams when its destination says it has been
copied.

Size: it is the one place that has the parts of a source at hand and calls them in order; what they do is elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trucker.capture.supervisor import CaptureSpec, CaptureSupervisor, Hearing
from trucker.changelog.format.durable import Durable
from trucker.changelog.identity import SourceIdentity, check_against_server, check_source, log_exists
from trucker.changelog.location import location_of, truth_of
from trucker.changelog.log_creation import create_log
from trucker.changelog.log_hold import log_free
from trucker.changelog.open_storage import open_storage
from trucker.changelog.reader import LogReader
from trucker.changelog.retention import prune
from trucker.config.models import ProjectConfig
from trucker.control.answers import Verification
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.destination_record import DestinationRecord, destinations_file
from trucker.engine.destination.record_keeper import RecordKeeper
from trucker.engine.destination.table_watch import TableWatch
from trucker.engine.project.absent_destinations import AbsentDestinations
from trucker.engine.project.catalog_watch import CatalogWatch
from trucker.engine.project.continuity import StreamHistory, copied_tables, needed_from, refuse_gap, refuse_pruned
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.engine.project.publication_start import PublicationStart, rekeyed_tables
from trucker.engine.project.publication_watch import PublicationWatch
from trucker.engine.project.recreated_tables import take_up, tell_gone
from trucker.engine.project.slot_loss import begin_anew, is_lost
from trucker.engine.project.source_threads import SourceThreads, SourceWork, Watching
from trucker.engine.project.table_arrivals import TableArrivals
from trucker.engine.refresh.refresh_queue import RefreshQueue
from trucker.engine.refresh.refresh_record import RefreshRecord
from trucker.engine.schema.partitions import probe_leaf
from trucker.engine.schema.schema_changes import CatalogDescription, Schemas
from trucker.engine.schema.written_schema import SchemaStore, shapes_file
from trucker.engine.snapshot.copier import Copier, Need
from trucker.engine.snapshot.copy_record import CopyRecord
from trucker.engine.snapshot.incremental_copy import IncrementalCopier
from trucker.engine.snapshot.interrupted_copy import CONTINUED_BYTES, InterruptedCopy, interrupted_copy
from trucker.engine.snapshot.partition_merge import Merger
from trucker.engine.snapshot.snapshot_lane import SnapshotLane
from trucker.engine.spark.jobs import Jobs, SparkJobs
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.pace import PACE, Pace
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane, note_failure
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.table_failure import Retry, RetryWaits
from trucker.engine.truck.truck_run import Listener, TruckRun
from trucker.engine.verify.table_verification import verify_table
from trucker.errors import ChangeLogUnavailable, ControlError, TruckerError
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.process.backoff import Backoff
from trucker.sinks.batch import Phase, TableState, TruckState
from trucker.sinks.target import TruckTable
from trucker.source.base import SourceTables
from trucker.source.slot import SlotInfo
from trucker.source.snapshot import ExportedSnapshot
from trucker.table import Column, TableId

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.source")

AtSnapshot = TypeVar("AtSnapshot", bound=SnapshotLane)

ONCE_TRIES = 6
ONCE_LOOKS = 3
STOP_SECONDS = 60.0
TURN_SECONDS = 0.5
SLOT_LOOK_SECONDS = 0.1


class SourceRun:
    """One source of a running project."""

    def __init__(
        self,
        config: ProjectConfig,
        resolved: ResolvedSource,
        destinations: Mapping[str, Destination],
        *,
        once: bool,
        stop: threading.Event,
        anew: bool = False,
        paused: Collection[str] = (),
        listeners: Sequence[Listener] = (),
        refreshes: RefreshRecord | None = None,
        work: SourceWork | None = None,
        stopping: threading.Event | None = None,
        capture: CaptureSupervisor | None = None,
    ) -> None:
        """`stop` ends it, as `stop()` does; with `anew` all that is there of the source is forgotten at the start.
        Trucks that are `paused` apply nothing. `listeners` hear of all that happens to its trucks. `work` does what
        goes on beside it, by default threads; `stopping` is the event that ends all of it. `capture` is one that runs
        already: `start_capture` is not called then."""
        self.name = resolved.name
        self.resolved = resolved
        self.log = location_of(config, self.name)
        self._storage = open_storage(self.log)
        waits = RetryWaits(config.retry.failed_first, config.retry.failed_longest)
        self.runs = {
            truck.name: TruckRun(truck, waits=waits, retry=None if once else Retry(waits), listeners=listeners)
            for truck in resolved.trucks
        }
        self.source_lsn = Lsn(0)
        self._config = config
        self.destinations = destinations
        self._once = once
        self._anew = anew
        self._paused = frozenset(paused)
        self._refreshes = refreshes or RefreshRecord(config.state_folder)
        self._project_stop = stop
        self._stop = stopping or threading.Event()
        self._work = work or SourceThreads(self.name, self._stop)
        self.fatal: Exception | None = None
        self.lost: TruckerError | None = None
        self.unstarted: TruckerError | None = None
        """Why it could not be started; it is tried again."""
        self.arrivals: frozenset[TableId] = frozenset()
        """Tables that match a pattern of a truck, and did not when the source was started."""
        self._lanes: list[Lane] = []
        # Trucks' tables that were not published as needed until this start: not all their changes are in the log.
        self._incomplete: frozenset[TruckTable] = frozenset()
        self._first: ExportedSnapshot | None = None
        self._capture = capture
        self._copiers: list[Copier | IncrementalCopier | SnapshotLane] = []
        self._jobs: Jobs | None = None
        self.schema_store = SchemaStore(shapes_file(config, self.name))
        self.record = PublicationRecord(record_file(config, self.name))
        self.noted = DestinationRecord(destinations_file(config, self.name))
        self._keeper = RecordKeeper(self.noted, self.runs)
        self.absent = AbsentDestinations(self.noted, self.runs, destinations)
        self._away = self.absent.reasons
        self._copy_record = CopyRecord(config.state_folder / "copies" / self.name)
        self._schemas = Schemas(self._describe, self.schema_store, partial(probe_leaf, resolved.source))
        self._recipes = Recipes(
            resolved.source,
            {name: destination.keeps_changes for name, destination in destinations.items()},
            config.slow_query_threshold_ms,
            config.state_folder / "rows" / self.name,
        )
        self._stream: SourceStream | None = None

    def check_sql(self, spark: Spark) -> None:
        """Compile what every truck does with its tables; raises for the first that is wrong."""
        self._recipes.start(spark, self._config)
        for truck in self.resolved.trucks:
            for name, table in truck.tables.items():
                self._recipes.of(truck, table.target(truck.name, self.resolved.tables[name].schema))

    # -- before Spark -------------------------------------------------------------------------------------------

    def start_capture(
        self, states: Mapping[str, TruckState], away: Mapping[str, TruckerError] | None = None
    ) -> Mapping[str, TruckState]:
        """Publication, slot, log, capture; the states as they are then.

        Refuses what would skip changes (I11) before it touches anything. `away` are destinations that do not answer:
        of their trucks the record tells what is needed, until they do (`resume`).
        """
        resolved = self.resolved
        self._away.update({name: error for name, error in (away or {}).items() if self.absent.runs_to(name)})
        stored_states = {**self.noted.states(self._away), **states}
        threading.Thread(target=self._follow_project, name=f"stop {self.name}", daemon=True).start()
        with resolved.source.session("setup") as session:
            slot = session.await_slot(self._stop)
            self.source_lsn = session.current_lsn()
            system = session.identify()
            identity = SourceIdentity(system.system_identifier, system.database, resolved.slot, resolved.publication)
            if self._begins_anew(slot, identity):
                for error in self._away.values():  # every destination must answer before anything is dropped
                    raise error
                states = stored_states = begin_anew(resolved, self.log, self.destinations, states)
                slot = None
            history = StreamHistory(self.name, self.log, identity, slot, session.current_lsn)
            begin = refuse_gap(history, self._needed(stored_states))
            marked = self.absent.tell_marked(states)
            rekeyed = rekeyed_tables(resolved, self.runs.values(), self.schema_store, self.destinations)
            start = PublicationStart(resolved, list(self.runs.values()), self.absent.tell, self.record)
            self._incomplete = start.publish(session, stored_states, rekeyed) | marked
            if slot is None:
                reach("setup.slot.before")
                self._first = resolved.source.create_slot(self._stop)
                begin = self._first.lsn
                reach("setup.slot.after")
        reach("setup.log.before")
        create_log(self.log, identity, begin)
        reach("setup.log.after")
        self._capture = CaptureSupervisor(
            CaptureSpec(
                resolved.source,
                self.log,
                identity,
                heartbeat=self._config.heartbeat,
                segment_bytes=self._config.log.segment_bytes,
                put_every=self._config.log.put_every,
            )
        )
        self._capture.start()
        return states

    def _follow_project(self) -> None:
        """The project's end is the source's; the source's own, when its slot is lost, is not the project's."""
        while not self._stop.is_set():
            if self._project_stop.wait(SLOT_LOOK_SECONDS):
                self._stop.set()

    def _begins_anew(self, slot: SlotInfo | None, identity: SourceIdentity) -> bool:
        """Whether the slot is lost and that is no reason to stop. Only a log tells that this is the server as it was:
        not another one, and not one restored to an earlier state (I11)."""
        if not self.resolved.source.resnapshots or not log_exists(self.log):
            return False
        check_source(self.log, identity)
        check_against_server(LogReader(truth_of(self.log)).durable(), self.source_lsn)
        return self._anew or slot is None or slot.lost

    def _needed(self, states: Mapping[str, TruckState]) -> Mapping[str, Lsn]:
        """From where on each truck needs the log."""
        trucks = [run.truck for run in self.runs.values()]
        return needed_from(trucks, states, self._incomplete)

    def _copied(self, run: TruckRun, states: Mapping[str, TruckState]) -> Mapping[TableId, TableState]:
        """The truck's tables that need not be copied (again)."""
        return copied_tables(run.truck, states.get(run.name), self._incomplete)

    # -- with Spark ---------------------------------------------------------------------------------------------

    def start_stream(
        self,
        spark: Spark,
        states: Mapping[str, TruckState],
        *,
        jobs: Jobs | None = None,
        pace: Pace = PACE,
    ) -> None:
        """Start the copies that are due, the lanes of trucks that lag and the loop over batches. `jobs` are Spark's,
        unless others are given."""
        assert self._capture is not None
        if self._once:
            self._capture.wait_seen(self.source_lsn, self._stop)
        if self._stop.is_set():
            return
        self._jobs = jobs = jobs or SparkJobs(spark)
        self._recipes.start(spark, self._config)
        stream = self._stream = SourceStream(
            self.name,
            jobs,
            self.log,
            self.destinations,
            self._schemas,
            self._recipes,
            source=self.resolved.source,
            max_bytes=self._config.batch.max_bytes,
            patience=self._config.batch.patience,
            part_bytes=self._config.batch.part_bytes,
            small_bytes=self._config.batch.small_bytes,
            leave=self._spawn,
            copy_again=self._copy_again,
            merge=self._merge,
            pace=pace,
        )
        refuse_pruned(stream.reader, self._needed(states))
        for name in self._paused & self.runs.keys():
            self.runs[name].pause()
        waiting = {run.name for run in self.absent.wait()}
        needs, lanes = self._divide(states, [run for run in self.runs.values() if run.name not in waiting])
        if not waiting and not any(need.interrupted for need in needs):
            self._copy_record.clear()
        self._table_watch(stream).look()
        whole = [lane.position for lane in lanes if not lane.tables]
        # Never where the log is not yet: a copy may be younger, and who lags has not caught up by getting there.
        captured = stream.reader.durable().commit_lsn
        stream.main = min(max(whole, default=captured), captured)
        for lane in lanes:
            with stream.turn:
                joined = not lane.tables and stream.join(lane)
            if not joined and not lane.cursor:
                self._spawn(lane)
        self._resume_copies([lane for lane in lanes if lane.cursor])
        self._start_copies(needs)
        self._keeper.write(self._lanes, self._away)
        queue = RefreshQueue(self._refreshes, self, stream)
        if self._once:
            self._work.start(f"once {self.name}", partial(self._stream_once, queue))
        else:
            watches: dict[str, Watching] = {
                "refreshes": queue,
                "shapes": self._shape_watch(stream),
                "tables": self._table_watch(stream),
                "published": self._publication_watch(stream),
            }
            self._work.follow(stream, watches)

    def _publication_watch(self, stream: SourceStream) -> PublicationWatch:
        return PublicationWatch(self.resolved, self.runs.values(), stream, self.record)

    def _shape_watch(self, stream: SourceStream) -> CatalogWatch:
        arrivals = TableArrivals(self._config.trucks, self.resolved)

        def look(session: SourceTables) -> None:
            self.arrivals = arrivals.look(session)

        return CatalogWatch(self.resolved.source, self.runs.values(), stream, self.schema_store, look)

    def _table_watch(self, stream: SourceStream) -> TableWatch:
        return TableWatch(self.destinations, self.runs, self.schema_store, self.resolved.source, stream.fail)

    def _stream_once(self, refreshes: RefreshQueue) -> None:
        """What is there by now, when everybody who lagged has caught up; then what the stream does not tell, and rows
        that are to be refreshed."""
        assert self._stream is not None
        assert self._capture is not None
        me = threading.current_thread()
        while not self._stop.is_set():
            others = [thread for thread in self._work.alive() if thread is not me]
            if not others and self._away:
                self._stop.wait(SLOT_LOOK_SECONDS)
            elif not others:
                self._table_watch(self._stream).look()  # at those that have caught up, too
                watch = self._shape_watch(self._stream)
                for _ in range(ONCE_LOOKS):
                    if watch.once(self._capture, self._stop):
                        break
                if not self._stop.is_set():
                    self._publication_watch(self._stream).look()
                refreshes.drain(self._stop)
                return
            else:
                others[0].join(0.1)

    def _divide(self, states: Mapping[str, TruckState], runs: Sequence[TruckRun]) -> tuple[list[Need], list[Lane]]:
        """What must be copied, and who goes on from where. The destinations decide."""
        needs: list[Need] = []
        trucks: dict[tuple[str, Lsn], Lane] = {}
        tables: list[Lane] = []
        for run in runs:
            destination = run.truck.destination
            copied = self._copied(run, states)
            if run.phase is TruckPhase.FAILED:  # its share of the log is kept all the same
                run.keep_from(states[run.name].lsn)
                continue
            if run.has_ended:  # paused: so is that of a table that is behind its truck
                run.keep_from(self._needed(states).get(run.name, run.stored))
                continue
            if copied:
                lsn = states[run.name].lsn
                following = {name: table.lsn for name, table in copied.items() if table.phase is Phase.STREAMING}
                partly = {name for name, table in copied.items() if table.cursor}
                run.take_up(lsn, following, copied.keys() - following.keys() - partly)
                lane = trucks.setdefault((destination, lsn), Lane(destination, [], lsn))
                lane.runs.append(run)
            for position in {table.lsn for table in copied.values() if table.phase is Phase.CATCHING_UP}:
                behind = frozenset(
                    name for name, table in copied.items() if table == TableState(Phase.CATCHING_UP, position)
                )
                if behind:
                    tables.append(Lane(destination, [run], position, behind))
            tables += [
                Lane(destination, [run], table.lsn, frozenset({name}), cursor=table.cursor)
                for name, table in sorted(copied.items())
                if table.cursor
            ]
            due = frozenset(run.truck.tables) - copied.keys()
            tell_gone(run.truck, states.get(run.name))
            if due:
                stored = states[run.name].tables if run.name in states else {}
                unfinished = frozenset(name for name in due & stored.keys() if stored[name].unfinished)
                needs.append(Need(run, due, not copied, (due - stored.keys()) | unfinished, unfinished))
        return needs, [*trucks.values(), *tables]

    # -- destinations that do not answer at the start -------------------------------------------------------------

    def resume(self, destination: str, states: Mapping[str, TruckState]) -> None:
        """The destination answers: its trucks go on from what it stores. Others have begun meanwhile."""
        if destination not in self._away or self._stream is None or self._stop.is_set():
            return
        runs, to_copy = self.absent.resume(destination, states, self._incomplete, self._stream.reader)
        self._incomplete |= to_copy
        needs, lanes = self._divide(states, runs)
        for run in runs:
            run.catch_up()
        self._go_on(lanes)
        self._start_copies(needs)
        del self._away[destination]

    def _go_on(self, lanes: Sequence[Lane]) -> None:
        """Let lanes catch up, and copies that were interrupted continue."""
        for lane in lanes:
            if not lane.cursor:
                self._spawn(lane)
        self._resume_copies([lane for lane in lanes if lane.cursor])

    def _start_copies(self, needs: Sequence[Need]) -> None:
        """Copy tables for the first time, or take them up without, as their trucks say."""
        self._begin(needs, {need.run.name: self._by_chunks(need) for need in needs})

    def _begin(self, needs: Sequence[Need], by_chunks: Mapping[str, frozenset[TableId]]) -> None:
        """Have tables copied: these by chunks, others in one go, and none of those that are not copied. What there is
        of copies that were interrupted is continued."""
        uncopied = {need.run.name: self._uncopied(need) for need in needs}
        interrupted = {need.run.name: copy for need in needs if (copy := self._interrupted(need)) is not None}
        begun = [
            need
            for need in needs
            if by_chunks.get(need.run.name) or uncopied[need.run.name] or need.run.name in interrupted
        ]
        self._start_copy([need for need in needs if need not in begun])
        if not begun:
            return
        copier = self._incremental_copier()

        def work() -> None:
            for need in begun:
                rest = need
                if need.run.name in interrupted:
                    rest = copier.go_on(need, partial(self._interrupted, need), self._stop)
                    if rest.tables != need.tables and not need.run.stored:  # it has failed, or is to stop
                        continue
                for chosen, copied in ((uncopied[need.run.name], False), (by_chunks.get(need.run.name), True)):
                    tables = rest.tables & (chosen or frozenset())
                    if tables and not self._stop.is_set():
                        copier.begin(replace(rest, tables=tables), self._stop, copied=copied)
                        rest = replace(rest, tables=rest.tables - tables, whole=False)
                        if not need.run.stored:  # it has failed, or is to stop
                            break
                if rest.tables and need.run.stored and not self._stop.is_set():
                    self._start_copy([rest])
            if not self._stop.is_set():  # what has not begun by now does not need them
                self._copy_record.remove(copy.attempt for copy in interrupted.values())
            copier.run(self._stop)

        self._run_copier(copier, begun, work)

    def _by_chunks(self, need: Need) -> frozenset[TableId]:
        """The tables that are copied incrementally."""
        truck = need.run.truck
        if self.destinations[truck.destination].keeps_changes:
            return frozenset()
        large = {n for n in need.tables if self.resolved.tables[n].bytes >= self._config.copy_.auto_bytes}
        return frozenset(
            name
            for name in need.tables
            if truck.copies_by_chunks(name, large=name in large, interrupted=name in need.interrupted)
        )

    def _resume_by_chunks(self, need: Need) -> bool:
        """Have the large ones among tables whose first copy in one go was interrupted continued, or copied, by chunks,
        and the others after them; False where there are none."""
        need = replace(need, interrupted=need.tables & need.fresh)
        by_chunks = self._by_chunks(need)
        if self._stop.is_set() or not (by_chunks or self._interrupted(need)):
            return False
        self._begin([need], {need.run.name: by_chunks})
        return True

    def _interrupted(self, need: Need) -> InterruptedCopy | None:
        """What can be continued of first copies in one go."""
        truck = need.run.truck
        tables = [table for table in need.tables & need.interrupted if truck.continues(table)]
        if not tables or self._stream is None:
            return None
        try:
            return interrupted_copy(
                truck,
                tables,
                self.destinations[truck.destination],
                self._copy_record,
                self.schema_store,
                self._stream.reader,
            )
        except TruckerError as error:  # they are copied from their beginning
            log.warning("interrupted copy is not continued", extra={"truck": truck.name, **error.facts()})
            return None

    def _uncopied(self, need: Need) -> frozenset[TableId]:
        """The tables of which changes alone are applied, unless their rows were asked for (`trucker refresh`)."""
        uncopied = [name for name in need.tables if not need.run.truck.tables[name].is_copied]
        return frozenset(name for name in uncopied if not self._refreshes.copies(need.run.name, name))

    def _resume_copies(self, lanes: Sequence[Lane]) -> None:
        """Continue incremental copies."""
        if not lanes:
            return
        copier = self._incremental_copier()
        self._lanes += lanes
        self._run_copier(copier, (), lambda: copier.resume(lanes, self._stop))

    def _incremental_copier(self) -> IncrementalCopier:
        assert self._jobs is not None
        assert self._stream is not None
        return IncrementalCopier(
            self._jobs,
            self.resolved.source,
            self._stream,
            self.destinations,
            self._schemas,
            self.schema_store,
            self._recipes,
            self._config.copy_,
            small_bytes=self._config.batch.small_bytes,
            backoff=self._backoff,
            tries=ONCE_TRIES if self._once else None,
            spawn=self._spawn,
            hold=self._lanes.append,
            release=self._end_lane,
            take_up=self._take_up,
        )

    def _run_copier(self, copier: Copier | IncrementalCopier, needs: Sequence[Need], work: Callable[[], None]) -> None:
        """Have the copier's work done; it is listed meanwhile."""

        def listed() -> None:
            try:
                work()
            finally:
                self._copiers.remove(copier)

        self._copiers.append(copier)
        self._work.copy(needs, listed)

    def _start_copy(self, needs: Sequence[Need]) -> None:
        first, self._first = self._first, None
        if not needs:
            if first is not None:
                first.close()
            return
        assert self._jobs is not None
        copier = Copier(
            self._jobs,
            self.resolved.source,
            self.destinations,
            self.schema_store,
            self._recipes,
            backoff=self._backoff(),
            tries=ONCE_TRIES if self._once else None,
            spawn=self._spawn,
            durable=lambda: LogReader(self.log).durable().commit_lsn,
            take_up=self._take_up,
            resume=self._resume_by_chunks,
            record=self._copy_record,
            recorded_bytes=min(CONTINUED_BYTES, self._config.copy_.auto_bytes),
            here=self._config.batch.small_bytes > 0,
        )

        self._run_copier(copier, needs, lambda: copier.run(needs, first, self._stop))

    def _take_up(self, needs: Sequence[Need]) -> None:
        """Have those of the tables published, and read as they are, that were made again since they were copied."""
        self.resolved = take_up(self.resolved, needs, self.schema_store, self.record)

    def _copy_again(self, run: TruckRun, tables: frozenset[TableId]) -> None:
        """Copy tables of a truck that streams; its other tables go on meanwhile."""
        self._begin([Need(run, tables, whole=False)], {})

    def _spawn(self, lane: Lane) -> None:
        """Let a lane catch up."""
        assert self._stream is not None
        runner = LaneRunner(
            lane,
            self._stream,
            self.destinations[lane.destination],
            backoff=self._backoff(),
            tries=ONCE_TRIES if self._once else None,
            spawn=self._spawn,
        )

        self._lanes.append(lane)
        self._work.run_lane(lane, runner, partial(self._end_lane, lane))

    def _end_lane(self, lane: Lane) -> None:
        with suppress(ValueError):
            self._lanes.remove(lane)

    def _merge(self, lane: Lane) -> None:
        """Merge the rows of attached partitions into the table that the lane is for."""
        merger = self.at_snapshot(Merger, lane)

        def merge() -> None:
            self.run_at_snapshot(merger)

        self._work.start(f"merge {lane.name}", merge)

    def at_snapshot(self, kind: type[AtSnapshot], lane: Lane, **more: Any) -> AtSnapshot:
        """What works on the table of a lane at a snapshot of the source. The log is kept for the lane from now on."""
        assert self._stream is not None
        assert self._jobs is not None
        worker = kind(
            lane,
            self._stream,
            self.destinations[lane.destination],
            self._schemas,
            self._recipes,
            self._jobs,
            self.resolved.source,
            small_bytes=self._config.batch.small_bytes,
            backoff=self._backoff(),
            tries=ONCE_TRIES if self._once else None,
            spawn=self._spawn,
            **more,
        )
        self._lanes.append(lane)
        self._copiers.append(worker)
        return worker

    def run_at_snapshot(self, worker: SnapshotLane) -> bool:
        """Have it done, in this thread; whether the lane goes on."""
        try:
            goes_on = worker.run(self._stop)
            if goes_on or worker.lane.over:
                self._end_lane(worker.lane)
            return goes_on
        finally:
            self._copiers.remove(worker)

    def verify(self, truck: str, table: TableId) -> Verification:
        """Compare a table of a truck with its table at the destination, in this thread, while the stream goes on."""
        stream = self._stream
        if stream is None or self._stop.is_set():
            raise ControlError(
                f"source {self.name} is not read now", remedy="run `trucker status`, and verify it then", code="TRK642"
            )
        return verify_table(self, stream, truck, table, self._stop)

    def _backoff(self) -> Backoff:
        retry = self._config.retry
        return Backoff(retry.first, min(retry.longest, 2.0) if self._once else retry.longest)

    def _describe(self, table: TableId, columns: tuple[Column, ...]) -> CatalogDescription:
        with self.resolved.source.reading_session("catalog") as session:
            types = session.types((column.type_oid, column.typmod) for column in columns)
            return CatalogDescription(session.look(table), types)

    # -- while it runs ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Called about once a second: notice what died, bring it back, forget what everybody has applied."""
        if self._stop.is_set():  # it ends, or is being replaced
            return
        if (fatal := self.fatal or self._work.fatal) is not None:
            raise fatal
        if self._stream is None or self._capture is None:
            return
        failed = self._capture.failure()
        if failed is not None:
            self._capture_failed(failed)
        elif not self._stream.active and not self._once and not self._stop.is_set():
            self._revive(self._stream)
        if failed is None and not self._once and self._stream.active:
            self._retry_tables()
            self._retry_trucks(self._stream)
        self._keeper.look(self._lanes, self._away)
        self._prune()

    def _retry_tables(self) -> None:
        """Take up again what was set aside and has waited long enough: nothing else tells that the cause is gone."""
        needs = []
        for run in self.runs.values():
            if run.has_ended:
                continue
            due = run.due_tables()
            for table, failure in due.items():
                if failure.held:
                    self._spawn(Lane(run.truck.destination, [run], failure.position, frozenset({table})))
            copied = frozenset(table for table, failure in due.items() if not failure.held)
            if copied:
                needs.append(Need(run, copied, whole=False))
        self._begin(needs, {})

    def _retry_trucks(self, stream: SourceStream) -> None:
        """Start trucks that have failed again, one by one, as a start of the project would."""
        for run in list(self.runs.values()):
            if run.phase is not TruckPhase.FAILED or run.retry is None or run.retry.ended:
                continue
            if run.retry.failures == 0 or (run.retry.began is not None and not self._is_retrying(run)):
                run.retry.failed()
            if run.retry.due:
                run.retry.begin()
                self._work.start(f"retry {run.name}", partial(self._retry_truck, run, stream))

    def _is_retrying(self, run: TruckRun) -> bool:
        return any(thread.name == f"retry {run.name}" for thread in self._work.alive())

    def _retry_truck(self, failed: TruckRun, stream: SourceStream) -> None:
        """Threads that still work for the failed run find it failed and end; the destination refuses what they may yet
        commit, as it does after a crash (I4)."""
        try:
            states = self.destinations[failed.truck.destination].open()
        except TruckerError as error:
            failed.failed_again(error)
            return
        if self._start_again(failed, states, stream):
            log.info("truck is retried", extra={"truck": failed.name})

    def _start_again(self, before: TruckRun, states: Mapping[str, TruckState], stream: SourceStream) -> bool:
        """Replace the run of a truck by a new one, which goes on from what the destination stores; whether that was
        done: it may have been paused meanwhile."""
        with stream.turn:
            if self._stop.is_set() or self.runs[before.name] is not before or before.phase is TruckPhase.PAUSED:
                return False
            run = before.started_again()
            needs, lanes = self._divide({name: state for name, state in states.items() if name == run.name}, [run])
            # Of lanes that ended without having joined the new run has its own.
            self._lanes = [lane for lane in self._lanes if lane.trucks != (run.name,) and (lane.tables or lane.runs)]
            self.runs[run.name] = run
            self._go_on(lanes)
        self._start_copies(needs)
        return True

    # -- trucks that are paused ---------------------------------------------------------------------------------

    def pause(self, name: str) -> bool:
        """Have a truck apply nothing more, from the end of the batch in hand; whether that is new.

        Copies in progress are finished, and count: to give them up would lose the work of hours.
        """
        stream = self._stream
        if stream is None:
            return self.runs[name].pause()
        while not stream.turn.acquire(timeout=TURN_SECONDS):
            if self._stop.is_set():
                raise ControlError(
                    "the instance is stopping", remedy=f"when it has ended: trucker pause {name}", code="TRK616"
                )
        try:
            return self.runs[name].pause()
        finally:
            stream.turn.release()

    def is_busy(self, name: str) -> bool:
        """Whether a lane still has a batch in hand that it began before the truck was paused."""
        run = self.runs[name]
        return any(lane.working.is_set() and any(each is run for each in lane.runs) for lane in list(self._lanes))

    def copying(self, name: str) -> frozenset[TableId]:
        """The truck's tables whose copies are in progress, and would begin anew if they were interrupted."""
        whole = [copier for copier in list(self._copiers) if not isinstance(copier, IncrementalCopier)]
        return frozenset[TableId]().union(*(copier.trucks.get(name, ()) for copier in whole))

    def go_on(self, name: str) -> bool:
        """Have a paused truck go on from where its destination is, in a thread of its own; whether it was paused."""
        stream, paused = self._stream, self.runs[name]
        if paused.phase is not TruckPhase.PAUSED:
            return False
        run = paused.started_again()
        run.keep_from(needed_by(paused))
        self.runs[name] = run
        if stream is None:
            return True
        if run.truck.destination in self._away:  # `resume` takes it up
            run.retry_later(self._away[run.truck.destination])
        else:
            self._work.start(f"resume {name}", partial(self._resume_truck, run, stream))
        return True

    def _resume_truck(self, run: TruckRun, stream: SourceStream) -> None:
        """Once copies that were in progress when it was paused have ended, and its destination answers."""
        backoff = self._backoff()
        while not self._stop.is_set() and not run.has_ended:
            if any(run.name in copier.trucks for copier in list(self._copiers)):
                self._stop.wait(SLOT_LOOK_SECONDS)
                continue
            try:
                states = self.destinations[run.truck.destination].open()
            except TruckerError as error:
                note_failure(run, error, None)
                backoff.wait(self._stop)
                continue
            self._start_again(run, states, stream)
            return

    def _capture_failed(self, error: TruckerError) -> None:
        """Nothing more comes; `lost` says that it is the slot's fault, and that all is to begin anew."""
        try:
            lost = self.resolved.source.resnapshots and is_lost(self.resolved, error)
        except TruckerError as away:
            log.warning("reading the slot failed", extra={"source": self.name, **away.facts()})
            return
        if lost:
            self.lost = error
        else:
            self.fail(error)

    def _revive(self, stream: SourceStream) -> None:
        """A log that cannot be reached is tried again; one that cannot be read stops everybody."""
        damage = stream.damage()
        if damage is not None:
            self.fail(damage)
            return
        log.warning("applying batches ended and restarts", extra={"source": self.name, "reason": stream.failure()})
        stream.start(once=False)

    def fail(self, error: TruckerError) -> None:
        """Nothing more can be had from this source."""
        for run in self.runs.values():
            run.fail(error)

    def _prune(self) -> None:
        """Give back what every truck has applied, for good; a truck that failed keeps its share (I2). The main lane
        reads on from where it is, also while no truck is in it."""
        assert self._stream is not None
        positions = [needed for run in self.runs.values() if (needed := needed_by(run))]
        positions += [lane.position for lane in list(self._lanes)]
        positions += [lsn for copier in list(self._copiers) if (lsn := copier.needs_from) is not None]
        if positions:
            retention = self._config.log
            try:
                with log_free(self._config.state_folder) as free:
                    if free:
                        prune(
                            self._storage,
                            min(*positions, self._stream.main),
                            keep_seconds=retention.keep,
                            max_bytes=retention.max_bytes,
                        )
            except ChangeLogUnavailable as error:
                log.warning("deleting applied changes failed", extra={"source": self.name, **error.facts()})

    @property
    def durable(self) -> Durable | None:
        return self._stream.reader.durable() if self._stream is not None else None

    def hearing(self, now: float) -> Hearing:
        """What is known of the source at `now`; nothing before capture has begun."""
        return self._capture.hearing(now) if self._capture is not None else Hearing()

    @property
    def trouble(self) -> str | None:
        """What keeps capture from the source at the moment."""
        return self._capture.trouble if self._capture is not None else None

    @property
    def done(self) -> bool:
        """With `once`: nothing is left to do."""
        idle = self._stream is not None and not self._stream.active and not self._away
        return idle and not self._work.alive()

    def once_failure(self) -> str | None:
        return self._stream.failure() if self._stream is not None else None

    def stop(self) -> None:
        """Finish what is in hand; a copy in progress is given up, it begins anew at the next start.

        Each step is taken even if the one before failed: with the JVM gone the first fail.
        """
        self._stop.set()
        # The stream twice: `_stream_once` may have been about to start it.
        steps = (
            self._stop_query,
            self._stop_threads,
            self._stop_query,
            self._stop_capture,
            self._recipes.close,
            self._note_at_end,
        )
        for step in steps:
            try:
                step()
            except Exception as error:
                log.warning(
                    "stopping failed",
                    extra={"source": self.name, "step": step.__name__, "reason": type(error).__name__},
                )

    def _note_at_end(self) -> None:
        if self._stream is not None:
            self._keeper.write(self._lanes, self._away)

    def _stop_query(self) -> None:
        if self._stream is not None:
            self._stream.stop()

    def _stop_threads(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            alive = self._work.alive()
            if not alive:
                return
            for copier in list(self._copiers):
                with suppress(Exception):
                    copier.cancel()
            alive[0].join(0.5)
        names = [thread.name for thread in self._work.alive()]
        log.warning("threads did not end", extra={"source": self.name, "threads": names, "seconds": STOP_SECONDS})

    def _stop_capture(self) -> None:
        if self._first is not None:
            self._first.close()
        if self._capture is not None:
            self._capture.stop()


def needed_by(run: TruckRun) -> Lsn:
    """From where on a truck needs the change log, its tables that are set aside included; 0 where it has nothing."""
    positions = [run.stored, *(failure.position for failure in list(run.failed.values()) if failure.held)]
    return min((position for position in positions if position), default=Lsn(0))
