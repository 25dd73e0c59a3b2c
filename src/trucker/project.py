"""A project as one object: what the command line does, a program can do too.

    from trucker import Project
    Project.load("my-project").run(once=True)

A project is loaded from a folder, or built of values (`Project.build`), or is a `trucker.pipeline.Pipeline`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trucker.config.adapter import Connection
from trucker.config.models import ProjectConfig
from trucker.config.project_build import Settings, build_project
from trucker.config.project_folder import load_project
from trucker.config.sql.sql_files import ON_SPARK
from trucker.errors import TruckerError
from trucker.file_errors import all_explained
from trucker.finding import Finding, Level
from trucker.observe.status import ProjectStatus, TruckPhase, TruckStatus, read_status, write_status
from trucker.project_commands import ProjectCommands, refuse, source_table

if TYPE_CHECKING:
    from trucker.changelog.location import LogLocation
    from trucker.control.server import ControlServer
    from trucker.engine.project.lock import Instance
    from trucker.engine.spark.session import SparkSession
    from trucker.engine.transform.try_truck import Shown
    from trucker.process.stopping import Signals
    from trucker.sinks.base import Sink
    from trucker.sinks.letters import Redriven
    from trucker.sinks.table_identity import TableChange

log = logging.getLogger("trucker.project")

PATIENCE: Final = 10.0
"""Seconds for which a redrive waits for a destination that something else holds."""


class Project(ProjectCommands):
    """A project that was loaded or built. Neither connects to anything: that is left to the methods that need it."""

    def __init__(self, config: ProjectConfig, folder: Path | None = None) -> None:
        """`folder` has the project's files, where it was loaded from any."""
        self.config = config
        self._folder = folder

    @classmethod
    def load(cls, folder: str | Path = ".") -> Project:
        """Read the project's files; ConfigError points at what is wrong in them."""
        return Project(load_project(Path(folder)), Path(folder))

    @classmethod
    def build(
        cls,
        *,
        name: str,
        connections: Sequence[Settings | Connection],
        trucks: Sequence[Settings],
        state: str | Path,
        **settings: object,
    ) -> Project:
        """A project of these parts, without files; ConfigError names the key that is wrong (`connections[0].port`).

        `name` is the project's `unique_id`: keep it, because slot, publication and positions have it. `state` is the
        folder of local state; it must outlive the process, because the change log in it has what the source may have
        dropped. Connections have the keys of trucker.yml, `settings` are its other keys. A truck has `name`, the keys
        of truck.yml, and where it needs them `sql` (SQL files: a mapping of names to texts) and `functions` (Python
        functions for its Spark SQL). Values are no templates, save those of `sql`. Relative paths are seen from the
        working folder.
        """
        return Project(build_project(name, state, connections, trucks, settings))

    # -- check --------------------------------------------------------------------------------------------------

    @all_explained()
    def check(self) -> list[Finding]:
        """Look at everything a run needs, on both sides, changing nothing; each finding has its remedy.

        Spark is started where a truck has SQL files for it.
        """
        from trucker.engine.project.conditions.condition_list import has_errors, walk
        from trucker.engine.project.conditions.situation import Situation

        with Situation(self.config, self._instance()) as situation:
            findings = walk(situation)
            if has_errors(findings) or not self._has_spark_sql():
                return findings
            from trucker.engine.project.project_run import checked_on_spark

            return [*findings, *checked_on_spark(self.config, situation.sources, situation.sinks)]

    def _has_spark_sql(self) -> bool:
        return any(truck.file(name) for truck in self.config.trucks for name in ON_SPARK)

    def _instance(self) -> Instance | None:
        """The running instance; a lock that cannot be read is reported with the state folder."""
        from trucker.engine.project.lock import ProjectLock

        try:
            return ProjectLock(self.config.state_folder).instance()
        except TruckerError:
            return None

    def _destinations(self) -> list[Connection]:
        used = {truck.output.connection for truck in self.config.trucks}
        return [connection for connection in self.config.connections if connection.name in used]

    def _sink(self, connection: Connection) -> Sink:
        from trucker.sinks.base import Workspace
        from trucker.sinks.factory import make_sink

        return make_sink(connection, Workspace(self.config.unique_id, self._spool(connection.name)))

    def _spool(self, connection: str) -> Path:
        return self.config.state_folder / "spool" / connection

    # -- run ----------------------------------------------------------------------------------------------------

    @all_explained()
    def run(
        self,
        *,
        once: bool = False,
        wait: bool = False,
        strict: bool = False,
        on_status: Callable[[ProjectStatus], None] | None = None,
        stop: threading.Event | None = None,
        spark: SparkSession | None = None,
    ) -> ProjectStatus:
        """Run until SIGINT or SIGTERM, or with `once` until all that is there now has been taken.

        Everything wrong that can be seen beforehand is refused before anything is created on either side (I11).
        Where only some trucks have to wait, as for a destination that was used before and cannot be reached now, the
        others run; `strict` refuses that too. `wait` waits for another instance of the project to end instead of
        raising LockedError. Setting `stop` ends
        the run as a signal does. On a session of the caller's own (`spark`) it runs there and leaves it open.
        """
        from trucker.process.stopping import Stopped, stopping_on_signals

        stop = stop or threading.Event()
        try:
            with stopping_on_signals(stop) as signals:
                return self._run(signals, stop, once=once, wait=wait, strict=strict, on_status=on_status, spark=spark)
        except Stopped:
            log.info("stopped before anything was created")
            return self.status()

    def _run(
        self,
        signals: Signals,
        stop: threading.Event,
        *,
        once: bool,
        wait: bool,
        strict: bool,
        on_status: Callable[[ProjectStatus], None] | None,
        spark: SparkSession | None,
    ) -> ProjectStatus:
        from trucker.control.server import ControlServer
        from trucker.engine.project.instance_commands import InstanceCommands
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.state_folder import secure_state
        from trucker.engine.spark.session_future import SessionFuture, session_there

        secure_state(self.config)
        lock = ProjectLock(self.config.state_folder)
        starting = None
        load = partial(load_project, self._folder) if self._folder is not None else None
        commands = InstanceCommands(stop, signals.end, load, once=once)
        server = ControlServer(self.config.state_folder, commands)
        try:
            with signals.at_once():
                lock.acquire(wait=wait, stop=stop)
                _serve(server)
                starting = None if spark or session_there() else SessionFuture(self.config)
                # These take a third of a second: not before Spark is on its way.
                from trucker.engine.project.conditions.condition_list import walk
                from trucker.engine.project.conditions.situation import Situation
                from trucker.engine.project.project_run import ProjectRun

                with Situation(self.config) as situation:
                    findings = walk(situation)
                    refuse(findings, strict=strict)
                    tell(findings)
            run = ProjectRun(
                self.config,
                list(situation.sources.values()),
                once=once,
                observer=on_status,
                stop=stop,
                away=situation.away,
                strict=strict,
                on_begun=commands.attach,
            )
            return run.run(spark, starting=starting)
        finally:
            commands.close()
            if starting is not None:
                starting.give_up()
            server.close()
            lock.release()

    # -- look ---------------------------------------------------------------------------------------------------

    @all_explained()
    def status(self) -> ProjectStatus:
        """What the running project says of itself, or said last. What is too old to count is not shown as known."""
        from trucker.engine.project.lock import ProjectLock, unusable

        instance = ProjectLock(self.config.state_folder).instance()
        try:
            last = read_status(self.config.state_folder / "status.json")
        except OSError as error:
            raise unusable(error, self.config.state_folder) from error
        if last is None:
            phase = TruckPhase.STOPPED if instance is None else TruckPhase.STARTING
            trucks = tuple(
                TruckStatus(truck.name, truck.input.connection, truck.output.connection, phase)
                for truck in self.config.trucks
            )
            last = ProjectStatus(self.config.unique_id, str(self.config.folder), False, 0, "", 0, 0, trucks)
        if instance is None:
            return last.ended(self._paused())
        if last.updated < instance.since or (instance.pid and last.pid != instance.pid):
            return last.starting(instance.pid, instance.host, instance.since)
        return last.as_of(time.time())

    def _paused(self) -> Collection[str]:
        from trucker.engine.project.pause_record import PauseRecord

        return PauseRecord(self.config.state_folder).trucks()

    @all_explained()
    def peek(self, *, truck: str | None = None, limit: int | None = None, follow: bool = False) -> Iterator[str]:
        """The changes in the change log as JSON lines, newest last; `follow` goes on with those to come."""
        from trucker.observe.peek import peek

        names = self._trucks(truck)
        sources = sorted({t.input.connection for t in names})
        chosen = {
            source: (self._log(source), [p for t in names if t.input.connection == source for p in t.input.tables])
            for source in sources
        }
        return peek(chosen, limit=limit, follow=follow)

    def _log(self, source: str) -> LogLocation:
        """Where the change log of a source is read."""
        from trucker.changelog.location import location_of, truth_of

        return truth_of(location_of(self.config, source))

    # -- try ----------------------------------------------------------------------------------------------------

    @all_explained()
    def try_truck(self, truck: str, *, rows: Path | None = None, limit: int = 10) -> list[Shown]:
        """Take the last `limit` changes of the change log, or those in a file, through the truck's steps.

        Nothing is written, and no position moves. Spark is started only where the truck has SQL for it.
        """
        from trucker.changelog.identity import log_exists
        from trucker.engine.project.conditions.condition_list import DESCRIBED, walk
        from trucker.engine.project.conditions.situation import Situation
        from trucker.engine.project.project_run import spark_for
        from trucker.engine.transform.changes_file import given_changes
        from trucker.engine.transform.try_truck import Trial, recent
        from trucker.errors import ChangeLogError

        (config,) = self._trucks(truck)
        with Situation(self.config, self._instance()) as situation:
            refuse(walk(situation, DESCRIBED))
        source = situation.sources[config.input.connection]
        resolved = next(each for each in source.trucks if each.name == truck)
        tables = {
            name: table.target(truck, source.tables[name].schema).source for name, table in resolved.tables.items()
        }
        change_log = self._log(config.input.connection)
        if rows is None and not log_exists(change_log):
            raise ChangeLogError(
                f"there is no change log of {config.input.connection} yet",
                remedy="run: trucker run; or give changes in a file: --rows changes.jsonl",
                code="TRK308",
            )
        changes = given_changes(rows, tables) if rows is not None else recent(change_log, tables, limit)
        sink = self._sink(self.config.connection(config.output.connection))
        try:
            with spark_for(self.config, [config]) as spark:
                return list(Trial(self.config, source, resolved, sink, spark).run(changes))
        finally:
            sink.close()

    # -- redrive ------------------------------------------------------------------------------------------------

    @all_explained()
    def redrive(
        self,
        truck: str | None = None,
        *,
        table: str | None = None,
        ids: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[Redriven]:
        """Apply dead letters again, while the project runs or not; the result of each.

        Those that are applied are gone; the others stay, with the reason they were refused for now.
        """
        from trucker.sinks.letters import Choice, KeepsLetters

        trucks = self._trucks(truck)
        source = source_table(table)
        redriven: list[Redriven] = []
        letter_counts: dict[str, int] = {}
        for place in self._destinations():
            names = {t.name for t in trucks if t.output.connection == place.name}
            sink = self._sink(place)
            try:
                if names and isinstance(sink, KeepsLetters):
                    choice = Choice(tuple(sorted(names)), source, tuple(ids) if ids else None)
                    redriven += _patiently(partial(sink.redrive, choice, dry_run=dry_run))
                    counts = sink.count_letters()
                    letter_counts |= {name: counts.get(name, 0) for name in names}
            finally:
                sink.close()
        self._note_letters(letter_counts)
        return redriven

    def _note_letters(self, letter_counts: Mapping[str, int]) -> None:
        """A project that does not run says so of its letters in its last status."""
        from trucker.engine.project.lock import ProjectLock

        file = self.config.state_folder / "status.json"
        last = read_status(file)
        if last is None or ProjectLock(self.config.state_folder).held():
            return
        trucks = tuple(replace(t, dead_letters=letter_counts.get(t.name, t.dead_letters)) for t in last.trucks)
        write_status(file, replace(last, trucks=trucks))

    # -- reset --------------------------------------------------------------------------------------------------

    def reset_plan(self, trucks: Sequence[str] | None = None, *, table: str | None = None) -> list[str]:
        """What `reset` would do, for people to read."""
        from trucker.engine.project.reset import plan

        return plan(self.config, trucks, source_table(table))

    @all_explained()
    def reset(self, trucks: Sequence[str] | None = None, *, table: str | None = None) -> list[str]:
        """Forget positions; without `trucks` also drop slot, publication and change log. Rows already written stay.

        With `table` only that source table of these trucks is forgotten. The next run copies the tables again. Refused
        while the project runs.
        """
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.reset import reset
        from trucker.engine.project.state_folder import secure_state

        secure_state(self.config)
        lock = ProjectLock(self.config.state_folder)
        lock.acquire(wait=False, remedy="stop that instance, then run this command again")
        try:
            return reset(
                self.config, trucks, {c.name: self._sink(c) for c in self._destinations()}, source_table(table)
            )
        finally:
            lock.release()

    # -- accept -------------------------------------------------------------------------------------------------

    @all_explained()
    def accept(self, trucks: Sequence[str] | None = None, *, table: str | None = None) -> list[TableChange]:
        """Go on with destination tables as they are now, where somebody has dropped or altered them; what had changed.

        A table that was dropped is made again by the next run, empty, and gets the changes from then on; a column that
        was dropped is treated as a new one. Refused while the project runs.
        """
        from trucker.engine.project.accept_tables import accept
        from trucker.engine.project.lock import ProjectLock
        from trucker.engine.project.state_folder import secure_state

        secure_state(self.config)
        lock = ProjectLock(self.config.state_folder)
        lock.acquire(wait=False, remedy="stop that instance, then run this command again")
        try:
            return accept(
                self.config, trucks, source_table(table), {c.name: self._sink(c) for c in self._destinations()}
            )
        finally:
            lock.release()


def _serve(server: ControlServer) -> None:
    """Serve commands; a file system without sockets is no reason not to run."""
    try:
        server.start()
    except OSError as error:
        reason = "pause, resume, reload and stop cannot reach this instance"
        log.warning("no control socket", extra={"reason": f"{error.strerror}: {reason}"})


def tell(findings: Sequence[Finding]) -> None:
    """Log the warnings among the findings, and the errors that a run goes on with."""
    for finding in findings:
        if finding.level is Level.WARNING or (finding.level is Level.ERROR and finding.waits):
            facts = {"subject": finding.subject, "code": finding.code, "reason": finding.message}
            log.warning("check found a problem", extra={**facts, "remedy": finding.remedy})


def _patiently(work: Callable[[], list[Redriven]]) -> list[Redriven]:
    """What another process keeps from us for a moment, a running project perhaps, is asked for again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except TruckerError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        time.sleep(0.2)
