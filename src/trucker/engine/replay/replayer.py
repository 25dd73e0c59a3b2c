"""Applies a range of the change log again: events once more, or a copy of tables brought forward to a moment.

Who calls: `trucker replay`, in a process of its own, beside a running instance or without one. The source is not
asked (save by a truck's `input.sql`), so it may be gone. What a destination gets depends on what it is:

- One that keeps every change gets the changes of the range as a series of its own, under a name of the replay's: what
  the truck has written before stays as it is, and positions do not go back.
- Tables are brought forward from a copy that has the truck's position in it, such as a restored backup of its
  destination, or from rows that the user knows to be those of a moment.

What may fail: the log does not have the range, or the copy does not fit it (`replay_plan`); this is seen before
anything is written. A row may be refused, and a value may be missing in the log: the replay ends there, at a commit.
What is repeated after a crash: tables go on from the position that they have (I3); a series of events begins anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trucker import private
from trucker.changelog.identity import log_exists
from trucker.changelog.location import location_of, truth_of
from trucker.changelog.reader import LogReader
from trucker.config.models import ProjectConfig
from trucker.config.registry import adapter_of
from trucker.config.sql.sql_files import INPUT
from trucker.control.answers import Replay
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.replay.log_moment import shown
from trucker.engine.replay.logged_source import LoggedSource
from trucker.engine.replay.logged_tables import NOT_FOLLOWED, LoggedTable, logged_tables, schemas_of
from trucker.engine.replay.replay_plan import UNFIT, ReplayPlan, ReplayRequest, apart, plan_replay
from trucker.engine.schema.refusals import STALE
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema, shapes_file
from trucker.engine.spark.application import ContextAlone, session_of
from trucker.engine.spark.cluster import is_local, ship
from trucker.engine.spark.jobs import SparkJobs
from trucker.engine.spark.session_future import adopt, has_spark_sql, session_there, started
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import ChangeLogError, ControlError, TruckerError
from trucker.observe.status import TruckPhase
from trucker.process.backoff import Backoff
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.source.base import Source
from trucker.source.factory import make_source
from trucker.table import SchemaChanges, TableId

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.replay")

TRIES: Final = 6
LOG_SECONDS: Final = 5.0


def replay(config: ProjectConfig, request: ReplayRequest, stop: threading.Event, spark: Spark | None = None) -> Replay:
    """Carry a request out; what was done. Raises, having written nothing, where it does not fit what there is.

    On an application of the caller's own (`spark`) it runs there. The change logs must be held (`log_hold`).
    """
    began, source = time.monotonic(), request.truck.input.connection
    location = truth_of(location_of(config, source))
    if not log_exists(location):
        raise ChangeLogError(f"there is no change log of {source} yet", remedy="run: trucker run", code="TRK308")
    written = SchemaStore(shapes_file(config, source)).of(request.truck.name)
    with closing(LogReader(location)) as reader, closing(_destination(config, request)) as destination:
        plan = plan_replay(request, reader, destination, written)
        replayer = _Replayer(config.model_copy(update={"trucks": (plan.config,)}), plan, destination, reader, written)
        if not plan.is_empty:
            replayer.look()
            with _application(config, spark) as application:
                replayer.run(application, stop)
        return replace(replayer.result(), seconds=round(time.monotonic() - began, 3))


def _destination(config: ProjectConfig, request: ReplayRequest) -> Destination:
    into = request.into
    workspace = Workspace(config.unique_id, config.state_folder / "spool" / into.name, is_local(config.spark.master))
    return Destination(SinkSpec(into, workspace, adapter_of(into).sink_component))


@contextmanager
def _application(config: ProjectConfig, spark: Spark | None) -> Iterator[Spark]:
    """The caller's application, or that of this process, or one of its own."""
    if spark is None and session_there():
        from pyspark import SparkContext

        context = ContextAlone(SparkContext.getOrCreate())
        spark = session_of(context) if has_spark_sql(config.trucks) else context
    if spark is not None:
        ship(spark)
        adopt(spark, config)
        yield spark
        return
    from trucker.engine.spark.session import stop_session

    application = started(config)
    try:
        yield application
    finally:
        stop_session(application)


class _Replayer:
    """Carries out a plan. `look` finds what is wrong with its range, `run` writes."""

    def __init__(
        self,
        config: ProjectConfig,
        plan: ReplayPlan,
        destination: Destination,
        reader: LogReader,
        written: Mapping[TableId, WrittenSchema],
    ) -> None:
        self._config = config
        self._plan = plan
        self._destination = destination
        self._reader = reader
        self._written = written
        self._tables: dict[TableId, LoggedTable] = {}
        self._run = TruckRun(plan.truck)
        self._complete = plan.is_empty

    def result(self) -> Replay:
        plan = self._plan
        reached = plan.begin if plan.is_empty else self._run.position or plan.begin
        time_reached = plan.goal.time if self._complete else None
        return Replay(
            plan.truck.name,
            self._destination.name,
            str(plan.begin),
            str(reached),
            shown(time_reached) if time_reached is not None else None,
            self._run.life.rows,
            self._complete,
        )

    def look(self) -> None:
        """Read the shapes of the range. Raises where one cannot be followed."""
        plan = self._plan
        whole = self._reader.range(plan.begin, plan.goal.end)
        keeps_changes = self._destination.keeps_changes
        self._tables = logged_tables(self._reader, whole, plan.truck, self._written, own=keeps_changes)

    def run(self, spark: Spark, stop: threading.Event) -> None:
        """Apply the range, until it is done or `stop` is set."""
        name = self._destination.name
        recipes = Recipes(
            self._source(),
            {name: self._destination.keeps_changes},
            self._config.slow_query_threshold_ms,
            self._config.state_folder / "rows" / f"replay-{name}",
        )
        with closing(recipes):
            recipes.start(spark, self._config)
            stream = self._stream(spark, recipes)
            self._open(recipes)
            self._complete = all(self._apply(lane, stream, stop) for lane in self._lanes())

    def _source(self) -> Source:
        name = self._plan.truck.source
        if self._plan.config.file(INPUT):
            return make_source(self._config.connection(name), self._config.unique_id)
        return LoggedSource.of(name)

    def _stream(self, spark: Spark, recipes: Recipes) -> SourceStream:
        """What applies ranges; its loop over batches is not started."""
        batch, location = self._config.batch, self._reader.location
        stream = SourceStream(
            self._plan.truck.source,
            SparkJobs(spark),
            location,
            {self._destination.name: self._destination},
            schemas_of(self._plan.truck, self._tables, self._written.values()),
            recipes,
            source=self._source(),
            max_bytes=batch.max_bytes,
            patience=batch.patience,
            part_bytes=batch.part_bytes,
            small_bytes=batch.small_bytes,
            leave=_never,
            copy_again=_never,
            merge=_never,
        )
        stream.main = self._plan.goal.end
        return stream

    # -- the destination ----------------------------------------------------------------------------------------------

    def _open(self, recipes: Recipes) -> None:
        """Open the destination, make sure that its tables fit, and store where a replay without a copy begins."""
        plan, destination = self._plan, self._destination
        private.make_folder(destination.spec.workspace.folder)
        state = destination.open().get(plan.truck.name)
        if state != plan.stored and plan.stored is not None:
            raise ControlError(
                f"the position of truck {plan.truck.name} in {destination.name} has changed meanwhile",
                remedy="make sure that nothing else writes there, then run this command again",
                code=UNFIT,
            )
        if plan.stored is not None:
            self._take_tables()
        if not destination.keeps_changes:
            self._check_columns(recipes)
        if plan.stored is None:
            tables = dict.fromkeys(plan.truck.tables, TableState(Phase.STREAMING, plan.begin))
            batch = Batch(
                plan.begin,
                plan.begin,
                {plan.truck.name: plan.begin},
                {(plan.truck.name, table): state for table, state in tables.items()},
                staged_as=f"replay-{plan.begin}",
            )
            for trouble in destination.commit(batch, ()).values():
                raise trouble

    def _take_tables(self) -> None:
        """To the database a restored table is another one than trucker has filled; it is taken for that one."""
        truck, destination = self._plan.truck, self._destination
        changes = [change for change in destination.changed_tables() if change.truck == truck.name]
        for change in changes:
            if not change.replaced:
                raise ControlError(
                    f"the copy in {destination.name} is not complete: {change.what()}",
                    remedy="restore it again, with all tables and columns",
                    code=UNFIT,
                )
        destination.accept_tables([(truck.name, change.source) for change in changes])

    def _check_columns(self, recipes: Recipes) -> None:
        """Raise where a table lacks a column of the range: which values older rows have in it, the log does not say."""
        for table, logged in self._tables.items():
            plain = self._plan.truck.tables[table].target(self._plan.truck.name, logged.schema)
            transformed = recipes.of(self._plan.truck, plain)
            target = transformed[0] if transformed else plain
            lacking = self._destination.prepare(replace(target, schema_changes=SchemaChanges.IGNORE))
            if lacking:
                raise ControlError(
                    f"{target.table} in {self._destination.name} has no column {', '.join(sorted(lacking))}: it was "
                    f"added to {table} after the copy was taken, and before the next change in the log",
                    remedy="add it there, with the values that the rows had; or use a younger copy",
                    code=UNFIT,
                ).of_table(table)
        self._destination.forget_tables(self._plan.truck.name)

    def _lanes(self) -> Iterator[Lane]:
        """The truck as a whole, then its tables that have positions of their own."""
        run, stored, into = self._run, self._plan.stored, self._destination.name
        behind = apart(stored) if stored is not None else {}
        begin = stored.lsn if stored is not None else self._plan.begin
        following = {table: begin for table in self._plan.truck.tables if table not in behind}
        if stored is not None:
            following = {table: stored.tables[table].lsn for table in following if table in stored.tables}
        run.take_up(begin, following, behind.keys() & self._plan.truck.tables.keys())
        yield Lane(into, [run], begin)
        for table, position in sorted(behind.items()):
            if table in self._plan.truck.tables:
                yield Lane(into, [run], position, frozenset({table}))

    # -- the range ----------------------------------------------------------------------------------------------------

    def _apply(self, lane: Lane, stream: SourceStream, stop: threading.Event) -> bool:
        """Apply the changes of a lane up to the goal; False where it was stopped before."""
        retry, run = self._config.retry, self._run
        runner = LaneRunner(
            lane,
            stream,
            self._destination,
            backoff=Backoff(retry.first, min(retry.longest, 2.0)),
            tries=TRIES,
            spawn=_never,
            goal=self._plan.goal.end,
        )
        logged_at = time.monotonic()
        while not stop.is_set():
            done = runner.round(stop)
            if run.phase is TruckPhase.FAILED and run.error is not None:
                raise self._explained(run.error)
            if done:
                return True
            if time.monotonic() - logged_at > LOG_SECONDS:
                logged_at = time.monotonic()
                facts = {"truck": run.name, "position": str(lane.position), "to": str(self._plan.goal.end)}
                log.info("replaying", extra={**facts, "rows": run.life.rows})
        return False

    def _explained(self, error: TruckerError) -> TruckerError:
        """The error, with what can be done without the source."""
        if error.code != STALE:
            return error
        at = self._run.position
        return ControlError(
            f"the replay ended at {at}: {error.message}",
            remedy=f"what follows cannot be had from the change log: replay up to there (--to {at}), or use a copy of "
            "the destination that is younger",
            code=NOT_FOLLOWED,
        )


def _never(*_: object) -> None:
    """A replay has neither lanes of its own nor copies: `Truck.copies` prevents both."""
    raise AssertionError("a replay copies nothing")
