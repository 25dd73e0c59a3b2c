"""Runs a project from start to stop: all its sources, destinations and trucks, and the status they show."""

from __future__ import annotations

import logging
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
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.project.absent_destinations import Awaited
from trucker.engine.project.source_run import ONCE_TRIES, SourceRun
from trucker.engine.project.truck_status import TruckStatuses
from trucker.engine.spark.cluster import Executors, is_local, ship
from trucker.engine.spark.session_future import SessionFuture, adopt, has_spark_sql, started
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.transform.sql_check import check_sql
from trucker.engine.truck.life_log import log_life
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck_run import Listener
from trucker.errors import EngineError, TruckerError
from trucker.finding import Finding
from trucker.observe.narrator import Narrator
from trucker.observe.status import ProjectStatus, TruckPhase, write_status
from trucker.process.backoff import Backoff
from trucker.process.stopping import Stopped
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import TruckState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.run")

STATUS_SECONDS = 1.0
STATUS_SHARE = 20

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
    ) -> None:
        """`away` are destinations that do not answer and are waited for; `strict` waits for none."""
        self._away = dict(away or {})
        self._strict = strict
        self._config = config
        self._once = once
        self._observer = observer
        self._stop = stop or threading.Event()
        self._started = time.time()
        self._narrator = Narrator()
        self._statuses = TruckStatuses()
        self._executors: Executors | None = None
        used = {truck.destination for source in resolved for truck in source.trucks}
        self._destinations = {c.name: self._destination(c) for c in config.connections if c.name in used}
        self._sources = [
            SourceRun(config, source, self._destinations, once=once, stop=self._stop, listeners=LISTENERS)
            for source in resolved
        ]

    def _destination(self, connection: Connection) -> Destination:
        folder = self._config.state_folder / "spool" / connection.name
        near = is_local(self._config.spark.master)
        workspace = Workspace(self._config.unique_id, folder, near)
        return Destination(SinkSpec(connection, workspace, adapter_of(connection).sink_component))

    def run(self, session: SparkSession | None = None, *, starting: SessionFuture | None = None) -> ProjectStatus:
        """Run until it is stopped, or with `once` until all that is there has been taken; the last status.

        Without a `session` of the caller's it takes the one that is `starting`, or starts its own, and stops it at the
        end.
        """
        self._show(running=True)
        watching = False
        session_future = None if session else starting or SessionFuture(self._config)
        spark: Spark | None = session
        try:
            try:
                if has_spark_sql(self._config.trucks):
                    # Before anything is made: what is wrong with its SQL only Spark can tell (I11).
                    self._check_sql(session or (session_future.result() if session_future else None))
                states = self._open()
            finally:
                spark = session or (session_future.result() if session_future else None)
            assert spark is not None
            if session is not None:
                ship(session)
                adopt(session, self._config)
            with self._minding_java(spark):
                for source in self._sources:
                    source.start_stream(spark, states)
                for name, error in self._away.items():
                    self._await(name, error)
                watching = True
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
        for source in self._sources:
            source.check_sql(spark)

    def _open(self) -> Mapping[str, TruckState]:
        states: Mapping[str, TruckState] = self._stored(self._sources)
        for source in self._sources:
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

    def _await(self, name: str, error: TruckerError) -> None:
        """Take up the destination's trucks when it answers."""
        log.warning(
            "destination unavailable: its trucks wait, the others run",
            extra={"destination": name, **error.facts()},
        )
        retry = self._config.retry
        awaited = Awaited(
            name,
            lambda destination: self._opened(destination, self._sources),
            lambda: list(self._sources),
            backoff=Backoff(retry.first, min(retry.longest, 2.0) if self._once else retry.longest),
            tries=ONCE_TRIES if self._once else None,
        )
        awaited.start(self._stop)

    def _watch(self, spark: Spark) -> None:
        process = _java(spark)
        executors = self._executors = Executors(spark)
        while not self._stop.is_set():
            for number, source in enumerate(self._sources):
                source.look()
                if source.lost is not None:
                    self._sources[number] = self._renewed(source, source.lost, spark)
            self._check_java(process)
            executors.look()
            began = time.thread_time()
            status = self._show(running=True)
            took = time.thread_time() - began
            if all(truck.phase is TruckPhase.FAILED for truck in status.trucks):
                return
            if self._once and all(source.done for source in self._sources):
                self._check_once()
                return
            # Of many tables there is much to show: that must not take the time of copying them.
            self._stop.wait(max(0.1 if self._once else STATUS_SECONDS, took * STATUS_SHARE))

    def _renewed(self, source: SourceRun, lost: TruckerError, spark: Spark) -> SourceRun:
        """The source begun anew, its slot being lost; or as it is, to be tried again, while something is away."""
        source.stop()
        fresh = SourceRun(
            self._config,
            source.resolved,
            source.destinations,
            once=self._once,
            stop=self._stop,
            anew=True,
            listeners=LISTENERS,
        )
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
                remedy=f"read spark.log in {self._config.state_folder}, then restart; nothing is lost",
                code="TRK511",
            )

    def _check_once(self) -> None:
        for source in self._sources:
            reason = source.once_failure()
            if reason:
                raise EngineError(f"applying the changes of {source.name} failed: {reason}", code="TRK512")

    def _shut_down(self, spark: Spark | None) -> None:
        """Shut all parts down, even if one of them fails."""
        with ExitStack() as last:
            if spark is not None:
                last.callback(_stop_spark, spark)
            for destination in self._destinations.values():
                last.callback(destination.close)
            for source in self._sources:
                source.stop()
                for run in source.runs.values():
                    run.stop()
                    run.let_go()

    # -- status -------------------------------------------------------------------------------------------------

    def _show(self, *, running: bool) -> ProjectStatus:
        trouble = self._executors.trouble if self._executors and running else None
        trucks = tuple(
            self._statuses.of(source, run, trouble, running=running)
            for source in self._sources
            for run in source.runs.values()
        )
        status = ProjectStatus(
            self._config.unique_id,
            str(self._config.folder),
            running,
            os.getpid(),
            socket.gethostname(),
            self._started,
            time.time(),
            trucks,
        )
        try:
            write_status(self._config.state_folder / "status.json", status)
        except OSError as error:  # a full disk, say: no reason to stop what still works
            log.warning(
                "writing the status file failed",
                extra={"file": str(self._config.state_folder / "status.json"), "reason": error.strerror},
            )
        self._narrator(status)
        if self._observer is not None:
            self._observer(status)
        return status


def checked_on_spark(
    config: ProjectConfig, resolved: Mapping[str, ResolvedSource], sinks: Mapping[str, Sink]
) -> list[Finding]:
    """What is wrong with the trucks that have SQL for Spark."""
    with spark_for(config, config.trucks) as spark:
        assert spark is not None
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
