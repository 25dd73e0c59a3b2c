"""Runs a project from start to stop: all its sources, destinations and trucks, and the status they show."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Final

from trucker import private
from trucker.config.adapter import Connection
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.registry import adapter_of
from trucker.control.answers import Refresh
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.project.absent_destinations import Awaited
from trucker.engine.project.conditions.condition import failure
from trucker.engine.project.pause_record import PauseRecord
from trucker.engine.project.reload_plan import TruckText, truck_texts
from trucker.engine.project.source_run import ONCE_TRIES, SourceRun
from trucker.engine.project.truck_status import TruckStatuses
from trucker.engine.refresh.refresh_record import RefreshRecord
from trucker.engine.spark.cluster import Executors, is_local, ship
from trucker.engine.spark.session_future import SessionFuture, adopt, has_spark_sql, started
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.transform.sql_check import check_sql
from trucker.engine.truck.life_log import log_life
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck_run import Listener
from trucker.engine.verify.row_spool import remove_spools
from trucker.errors import ControlError, EngineError, TruckerError
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.observe.narrator import Narrator
from trucker.observe.status import ProjectStatus, TruckPhase, write_status
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import TruckState
from trucker.table import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.run")

STATUS_SECONDS = 1.0
STATUS_SHARE = 20
ARRIVAL_SECONDS = 30.0

LISTENERS: Final[tuple[Listener, ...]] = (log_life,)
"""Who hears of every change of a truck's or a table's phase and of every advance, as it happens. The status shows what
is known after it (`TruckLife`)."""

Observer = Callable[[ProjectStatus], None]


class ProjectRun:
    """One run of these sources. They have been checked; nothing has been created yet."""

    def __init__(
        self,
        config: ProjectConfig,
        resolved: Sequence[ResolvedSource],
        *,
        once: bool,
        observer: Observer | None = None,
        stop: threading.Event | None = None,
        away: Mapping[str, TruckerError] | None = None,
        strict: bool = False,
        on_begun: Callable[[ProjectRun], None] | None = None,
    ) -> None:
        """`away` are destinations that do not answer and are waited for; `strict` waits for none. `on_begun` is called
        with the run when all sources have started, and commands can be given to it."""
        self._away = dict(away or {})
        self._awaited: set[str] = set()
        self._on_begun = on_begun
        self._changes = threading.Lock()
        self._over = False
        self._showing = threading.Lock()
        self._spark: Spark | None = None
        self._retry_at = -math.inf
        self._refused_arrivals: frozenset[Finding] = frozenset()
        self.pauses = PauseRecord(config.state_folder)
        self.refreshes = RefreshRecord(config.state_folder)
        self.texts = truck_texts(config)
        """The trucks as their files said when they were taken up."""
        self._strict = strict
        self.config = config
        self._once = once
        self._observer = observer
        self._stop = stop or threading.Event()
        self._started = time.time()
        self._narrator = Narrator()
        self._statuses = TruckStatuses()
        self._executors: Executors | None = None
        used = {truck.destination for source in resolved for truck in source.trucks}
        self._destinations = {c.name: self._destination(c) for c in config.connections if c.name in used}
        self.sources = [self._source_run(source) for source in resolved]

    def _source_run(self, resolved: ResolvedSource, *, anew: bool = False) -> SourceRun:
        return SourceRun(
            self.config,
            resolved,
            self._destinations,
            once=self._once,
            stop=self._stop,
            anew=anew,
            paused=self.pauses.trucks(),
            listeners=LISTENERS,
            refreshes=self.refreshes,
        )

    def _destination(self, connection: Connection) -> Destination:
        folder = self.config.state_folder / "spool" / connection.name
        near = is_local(self.config.spark.master)
        workspace = Workspace(self.config.unique_id, folder, near)
        return Destination(SinkSpec(connection, workspace, adapter_of(connection).sink_component))

    def run(self, session: SparkSession | None = None, *, starting: SessionFuture | None = None) -> ProjectStatus:
        """Run until it is stopped, or with `once` until all that is there has been taken; the last status.

        Without a `session` of the caller's it takes the one that is `starting`, or starts its own, and stops it at the
        end.
        """
        self._show(running=True)
        watching = False
        session_future = None if session else starting or SessionFuture(self.config)
        spark: Spark | None = session
        try:
            try:
                if session is not None:
                    # Before its first function is registered, which takes the environment of the workers as it is.
                    ship(session)
                    adopt(session, self.config)
                if has_spark_sql(self.config.trucks):
                    # Before anything is made: what is wrong with its SQL only Spark can tell (I11).
                    self._check_sql(session or (session_future.result() if session_future else None))
                states = self._open()
            finally:
                spark = session or (session_future.result() if session_future else None)
            assert spark is not None
            with self._minding_java(spark):
                for source in self.sources:
                    source.start_stream(spark, states)
                self._spark = spark
                self._await_all()
                watching = True
                if self._on_begun is not None:
                    self._on_begun(self)
                self._watch(spark)
        except Stopped:
            log.info("stopped before the stream began")
        except TruckerError as error:
            if watching or not self._stop.is_set():
                raise
            log.info("stopped before the stream began", extra=error.facts())
        finally:
            self._shut_down(None if session else spark)
        return self._show(running=False)

    def _check_sql(self, spark: Spark | None) -> None:
        assert spark is not None
        for source in self.sources:
            source.check_sql(spark)

    def _open(self) -> Mapping[str, TruckState]:
        for destination in self._destinations.values():
            remove_spools(destination.spec)
        states: Mapping[str, TruckState] = self._stored(self.sources)
        for source in self.sources:
            states = source.start_capture(states, self._away)
        return states

    def _stored(self, sources: Sequence[SourceRun], *, anew: bool = False) -> dict[str, TruckState]:
        """What the destinations say of the sources' trucks.

        One that has been used before and does not answer is `_away` from then on; not for a source that begins `anew`,
        which needs the answer of all of them.
        """
        states: dict[str, TruckState] = {}
        for name in sorted({run.truck.destination for source in sources for run in source.runs.values()}):
            if name in self._away and not anew:
                continue
            try:
                states |= self._opened(name, sources)
            except TruckerError as error:
                used = any(source.noted.uses(name) for source in sources)
                if anew or self._strict or not used or not error.transient:
                    raise
                self._away[name] = error
        return states

    def _opened(self, name: str, sources: Sequence[SourceRun]) -> dict[str, TruckState]:
        """Open a destination; what it stores of these sources' trucks to it."""
        trucks = {run.name for source in sources for run in source.runs.values() if run.truck.destination == name}
        destination = self._destinations[name]
        private.make_folder(destination.spec.workspace.folder)
        # A truck that went to another destination before has a state there still: it says nothing of this one.
        return {truck: state for truck, state in destination.open().items() if truck in trucks}

    def _await_all(self) -> None:
        for name, error in self._away.items():
            if name not in self._awaited:
                self._awaited.add(name)
                self._await(name, error)

    def _answered(self, name: str) -> None:
        """A destination has answered, or is given up: nothing waits for it any more."""
        self._away.pop(name, None)
        self._awaited.discard(name)

    def _await(self, name: str, error: TruckerError) -> None:
        """Take up the destination's trucks when it answers."""
        log.warning(
            "destination unavailable: its trucks wait, the others run",
            extra={"destination": name, **error.facts()},
        )
        retry = self.config.retry
        awaited = Awaited(
            name,
            lambda destination: self._opened(destination, self.sources),
            lambda: list(self.sources),
            turn=self._changes,
            answered=self._answered,
            backoff=Backoff(retry.first, min(retry.longest, 2.0) if self._once else retry.longest),
            tries=ONCE_TRIES if self._once else None,
        )
        awaited.start(self._stop)

    def _watch(self, spark: Spark) -> None:
        process = _java(spark)
        executors = self._executors = Executors(spark)
        while not self._stop.is_set():
            for source in list(self.sources):
                source.look()
            self._mend(spark)
            self._check_java(process)
            executors.look()
            began = time.thread_time()
            status = self._show(running=True)
            took = time.thread_time() - began
            if status.trucks and all(truck.phase is TruckPhase.FAILED for truck in status.trucks):
                return
            if self._once and all(source.done for source in self.sources):
                self._check_once()
                return
            # Of many tables there is much to show: that must not take the time of copying them.
            self._stop.wait(max(0.1 if self._once else STATUS_SECONDS, took * STATUS_SHARE))

    def _mend(self, spark: Spark) -> None:
        """Begin sources anew that must be, unless a command changes them now: then the next look does."""
        if not self._changes.acquire(blocking=False):
            return
        try:
            for number, source in enumerate(self.sources):
                if source.lost is not None:
                    self.sources[number] = self._renewed(source, source.lost, spark)
                elif source.unstarted is not None and source.unstarted.transient:
                    self.sources[number] = self._begun(source.resolved)
            if any(source.arrivals for source in self.sources) and not self._once:
                self._try_arrivals()
        finally:
            self._changes.release()

    def _renewed(self, source: SourceRun, lost: TruckerError, spark: Spark) -> SourceRun:
        """The source begun anew, its slot being lost; or as it is, to be tried again, while something is away."""
        source.stop()
        fresh = self._source_run(source.resolved, anew=True)
        try:
            fresh.start_stream(spark, fresh.start_capture(self._stored([fresh], anew=True)))
        except TruckerError as error:
            fresh.stop()
            if not error.transient:
                source.lost = None
                source.fail(error)
            log.warning("restarting the source failed", extra={"source": source.name, **error.facts()})
            return source
        log.warning("source restarted: its tables are copied again", extra={"source": source.name, **lost.facts()})
        return fresh

    @contextmanager
    def _minding_java(self, spark: Spark) -> Iterator[None]:
        """An error after the end of Spark's JVM is reported as the end of the JVM."""
        try:
            yield
        except Exception as error:
            process = _java(spark)
            if process is not None and not isinstance(error, TruckerError):
                with suppress(TimeoutExpired):  # its end may take a moment to be seen
                    process.wait(2)
            self._check_java(process)
            raise

    def _check_java(self, process: Popen[bytes] | None) -> None:
        if process is not None and process.poll() is not None:
            raise EngineError(
                f"the Java process of Spark ended with exit code {process.returncode}",
                remedy=f"read spark.log in {self.config.state_folder}, then restart; nothing is lost",
                code="TRK511",
            )

    def _check_once(self) -> None:
        for source in self.sources:
            reason = source.once_failure()
            if reason:
                raise EngineError(f"applying the changes of {source.name} failed: {reason}", code="TRK512")

    def _shut_down(self, spark: Spark | None) -> None:
        """Shut all parts down, even if one of them fails. A command that changes the sources ends first."""
        self._over = True
        with self._changes, ExitStack() as last:
            if spark is not None:
                last.callback(_stop_spark, spark)
            for destination in self._destinations.values():
                last.callback(destination.close)
            for source in self.sources:
                source.stop()
                for run in source.runs.values():
                    run.stop()
                    run.let_go()

    # -- commands that change it ----------------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Nothing else changes the sources, or ends them, inside. Raises `ControlError` where the run ends."""
        with self._changes:
            if self._over or self._stop.is_set():
                raise ControlError("the instance is stopping", remedy="start it again: `trucker run`", code="TRK616")
            yield

    def source_of(self, truck: str) -> SourceRun:
        """The source of a truck that runs."""
        for source in self.sources:
            if truck in source.runs:
                return source
        names = ", ".join(sorted(name for source in self.sources for name in source.runs))
        raise ControlError(
            f"the running instance has no truck {truck!r}; it has {names}",
            remedy="correct the name; or have it take up new trucks with `trucker reload`",
            code="TRK618",
        )

    def sql_findings(
        self, config: ProjectConfig, resolved: Mapping[str, ResolvedSource], sinks: Mapping[str, Sink]
    ) -> list[Finding]:
        """What is wrong with SQL for Spark in this configuration."""
        if not has_spark_sql(config.trucks):
            return []
        assert self._spark is not None
        return sql_findings(self._spark, config, resolved, sinks)

    def take_up(
        self, config: ProjectConfig, texts: Mapping[str, TruckText], resolved: Mapping[str, ResolvedSource]
    ) -> list[Finding]:
        """Have this configuration in force: begin the sources `resolved` anew, end those that no truck reads from any
        more, and leave the others alone. Call while `changing`.

        Returns why sources could not be started. Their trucks have failed, or the source is tried again.
        """
        self.config, self.texts = config, dict(texts)
        self._make_destinations()
        before = {source.name: source for source in self.sources}
        read = {connection.name for connection in config.sources}
        reach("reload.stop.before")
        for name, source in before.items():
            if name in resolved or name not in read:
                self._end(source)
        reach("reload.stop.after")
        reach("reload.start.before")
        fresh = {name: self._begun(each) for name, each in resolved.items()}
        reach("reload.start.after")
        self.sources = [fresh.get(c.name) or before[c.name] for c in config.sources]
        self._close_destinations()
        self._await_all()
        return [
            failure(source.name, source.unstarted, waits=source.unstarted.transient)
            for source in fresh.values()
            if source.unstarted is not None
        ]

    def _begun(self, resolved: ResolvedSource) -> SourceRun:
        """A source that is started now, in the session that is there; `unstarted` where that failed."""
        assert self._spark is not None
        fresh = self._source_run(resolved)
        try:
            if has_spark_sql(self.config.trucks):
                fresh.check_sql(self._spark)  # and so read the functions now, as a start does
            states = self._stored([fresh])
            fresh.start_stream(self._spark, fresh.start_capture(states, self._away))
        except Stopped:
            fresh.stop()
        except TruckerError as error:
            self._note_unstarted(fresh, error)
        except Exception as error:
            log.exception("starting the source failed unexpectedly", extra={"source": fresh.name})
            reason = f"starting {fresh.name} failed unexpectedly: {type(error).__name__}"
            remedy = "read the log, then restart: the trucks continue from their stored positions"
            self._note_unstarted(fresh, EngineError(reason, remedy=remedy, code="TRK599"))
        return fresh

    def _note_unstarted(self, fresh: SourceRun, error: TruckerError) -> None:
        """A source was not started: its trucks wait for the next try, or have failed."""
        fresh.stop()
        fresh.unstarted = error
        for run in fresh.runs.values():
            run.retry_later(error) if error.transient else run.fail(error)
        log.warning("starting the source failed", extra={"source": fresh.name, **error.facts()})

    def _end(self, source: SourceRun) -> None:
        """Stop a source that is replaced, or that no truck reads from any more."""
        source.stop()
        for run in source.runs.values():
            run.let_go()

    def _make_destinations(self) -> None:
        """Make the destinations of trucks that are new. Those that are there stay."""
        used = {truck.output.connection for truck in self.config.trucks}
        for connection in self.config.connections:
            if connection.name in used and connection.name not in self._destinations:
                self._destinations[connection.name] = self._destination(connection)

    def _close_destinations(self) -> None:
        """Close the destinations to which no truck goes any more. One that is waited for stays until it answers."""
        used = {truck.output.connection for truck in self.config.trucks}
        for name in self._destinations.keys() - used - self._away.keys():
            self._destinations.pop(name).close()

    def _try_arrivals(self) -> None:
        """What goes wrong with new tables is no reason to stop what runs."""
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + ARRIVAL_SECONDS
        try:
            self._take_up_arrivals()
        except TruckerError as error:
            log.warning("tables that match are not taken up", extra=error.facts())
        except Exception:
            log.exception("taking up tables that match failed unexpectedly")

    def _take_up_arrivals(self) -> None:
        """Take up tables that have begun to match patterns, once no copy is in progress that would begin anew.

        A table that cannot be taken up stays out, as the log says, and is tried again: it may get its key a moment
        after it was created.
        """
        from trucker.engine.project.reload import copies_in_progress, examine, has_arrivals

        names = [source.name for source in self.sources if source.arrivals]
        if copies_in_progress(self, names):
            self._retry_at = -math.inf
            return
        tables = sorted(map(str, frozenset[TableId]().union(*(source.arrivals for source in self.sources))))
        resolved, findings = examine(self, self.config)
        errors = [finding for finding in findings if finding.level is Level.ERROR and not finding.waits]
        for finding in frozenset(errors) - self._refused_arrivals:  # once, not at every try
            facts = {"subject": finding.subject, "code": finding.code, "reason": finding.message}
            log.warning("tables that match are not taken up", extra={**facts, "remedy": finding.remedy})
        self._refused_arrivals = frozenset(errors)
        due = {name: each for name, each in resolved.items() if name in names and has_arrivals(self, each)}
        if errors or not due:
            return
        self.take_up(self.config, self.texts, due)
        self._retry_at = -math.inf
        log.info("tables that match a pattern are taken up", extra={"tables": tables, "sources": sorted(due)})

    # -- status -------------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Have the status show what has changed, before the next look does."""
        with self._changes:
            if not self._over:
                self._show(running=True)

    def _show(self, *, running: bool) -> ProjectStatus:
        with self._showing:
            return self._write_status(running=running)

    def _write_status(self, *, running: bool) -> ProjectStatus:
        trouble = self._executors.trouble if self._executors and running else None
        trucks = tuple(
            self._statuses.of(source, run, trouble, running=running)
            for source in self.sources
            for run in source.runs.values()
        )
        status = ProjectStatus(
            self.config.unique_id,
            str(self.config.folder),
            running,
            os.getpid(),
            socket.gethostname(),
            self._started,
            time.time(),
            trucks,
            refreshes=self._active_refreshes(),
        )
        try:
            write_status(self.config.state_folder / "status.json", status)
        except OSError as error:  # a full disk, say: no reason to stop what still works
            log.warning(
                "writing the status file failed",
                extra={"file": str(self.config.state_folder / "status.json"), "reason": error.strerror},
            )
        self._narrator(status)
        if self._observer is not None:
            self._observer(status)
        return status

    def _active_refreshes(self) -> tuple[Refresh, ...]:
        try:
            return tuple(self.refreshes.active())
        except TruckerError:  # the queue logs it
            return ()


def checked_on_spark(
    config: ProjectConfig, resolved: Mapping[str, ResolvedSource], sinks: Mapping[str, Sink]
) -> list[Finding]:
    """What is wrong with the trucks that have SQL for Spark."""
    with spark_for(config, config.trucks) as spark:
        assert spark is not None
        return sql_findings(spark, config, resolved, sinks)


def sql_findings(
    spark: Spark, config: ProjectConfig, resolved: Mapping[str, ResolvedSource], sinks: Mapping[str, Sink]
) -> list[Finding]:
    """What is wrong with the SQL of trucks, by what Spark says of it."""
    keeps_changes = {name: sink.abilities.every_change for name, sink in sinks.items()}
    findings: list[Finding] = []
    for source in resolved.values():
        recipes = Recipes(
            source.source, keeps_changes, config.slow_query_threshold_ms, config.state_folder / "spool" / "check"
        )
        recipes.start(spark, config)
        findings += check_sql(source, sinks, recipes, spark=True)
        recipes.close()
    return findings


@contextmanager
def spark_for(config: ProjectConfig, trucks: Sequence[TruckConfig]) -> Iterator[Spark | None]:
    """A session for these trucks' SQL, where they have any for Spark: this process's own, if it has one."""
    if not has_spark_sql(trucks):
        yield None
        return
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        adopt(active, config)
        yield active
        return
    spark = started(config)
    try:
        yield spark
    finally:
        _stop_spark(spark)


def _java(spark: Spark) -> Popen[bytes] | None:
    """Spark's JVM, where it is a process of ours."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def _stop_spark(spark: Spark) -> None:
    from py4j.protocol import Py4JError

    from trucker.engine.spark.session import stop_session

    try:
        stop_session(spark)
    except (Py4JError, OSError):  # its JVM is gone already, which `_watch` has said
        log.debug("Spark ended before it was stopped", exc_info=True)
