"""A project as one object: what the command line does, a program can do too.

from trucker import Project
Project.load("my-project").run(once=True)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trucker.config.load import load_project
from trucker.config.models import Connection, PostgresConnection, ProjectConfig
from trucker.errors import ConfigError, TruckerError
from trucker.finding import Checkable, Finding, Level
from trucker.observe.status import ProjectStatus, TruckPhase, TruckStatus, read_status

if TYPE_CHECKING:
    from trucker.engine.plan import Truck
    from trucker.engine.resolve import ResolvedSource
    from trucker.engine.session import SparkSession
    from trucker.sinks.base import Sink

log = logging.getLogger("trucker.project")


class Project:
    """A loaded project. Loading reads files only; nothing is connected to until a method needs it."""

    def __init__(self, config: ProjectConfig) -> None:
        self.config = config

    @classmethod
    def load(cls, folder: str | Path = ".") -> Project:
        """Read the project's files; ConfigError points at what is wrong in them."""
        return cls(load_project(Path(folder)))

    # -- check --------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Look at everything a run needs, on both sides, changing nothing; each finding has its remedy."""
        return self._examine()[0]

    def _examine(self) -> tuple[list[Finding], dict[str, ResolvedSource]]:
        findings = [
            Finding(Level.OK, str(self.config.folder), f"the project is well-formed, trucks: {len(self.config.trucks)}")
        ]
        sources: dict[str, ResolvedSource] = {}
        databases: dict[str, tuple[str, str]] = {}
        for connection in self._sources():
            found, resolved = _examine_source(self.config, connection, databases)
            findings += found
            if resolved is not None:
                sources[connection.name] = resolved
        shared = set()
        for place in self._destinations():
            sink = self._sink(place)
            findings += _examine_destination(place, sink, databases)
            if sink.capabilities.keeps_changes:
                shared.add(place.name)
        findings += _examine_outputs([t for source in sources.values() for t in source.trucks], databases, shared)
        return findings, sources

    def _sources(self) -> list[PostgresConnection]:
        used = {truck.input.connection for truck in self.config.trucks}
        return [c for c in self.config.connections if c.name in used and isinstance(c, PostgresConnection)]

    def _destinations(self) -> list[Connection]:
        used = {truck.output.connection for truck in self.config.trucks}
        return [connection for connection in self.config.connections if connection.name in used]

    def _sink(self, connection: Connection) -> Sink:
        from trucker.sinks.base import Workspace
        from trucker.sinks.registry import make_sink

        return make_sink(connection, Workspace(self.config.unique_id, self._spool(connection.name)))

    def _spool(self, connection: str) -> Path:
        return self.config.state_folder / "spool" / connection

    # -- run ----------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        once: bool = False,
        wait: bool = False,
        on_status: Callable[[ProjectStatus], None] | None = None,
        stop: threading.Event | None = None,
        spark: SparkSession | None = None,
    ) -> ProjectStatus:
        """Run until SIGINT or SIGTERM, or with `once` until all that is there now has been taken.

        Everything wrong that can be seen beforehand is refused before anything is created on either side (I11).
        `wait` waits for another instance of the project to end instead of raising LockedError. Setting `stop` ends
        the run as a signal does. On a session of the caller's own (`spark`) it runs there and leaves it open.
        """
        from trucker.engine.lock import ProjectLock
        from trucker.engine.run import ProjectRun

        lock = ProjectLock(self.config.state_folder)
        lock.acquire(wait=wait)
        try:
            findings, sources = self._examine()
            refuse(findings)
            return ProjectRun(self.config, sources, once=once, observer=on_status, stop=stop).run(spark)
        finally:
            lock.release()

    # -- look ---------------------------------------------------------------------------------------------------

    def status(self) -> ProjectStatus:
        """What the running project says of itself, or said last."""
        from trucker.engine.lock import ProjectLock

        running = ProjectLock(self.config.state_folder).held()
        last = read_status(self.config.state_folder / "status.json")
        if last is None:
            trucks = tuple(
                TruckStatus(truck.name, truck.input.connection, truck.output.connection, TruckPhase.STOPPED)
                for truck in self.config.trucks
            )
            return ProjectStatus(self.config.unique_id, str(self.config.folder), running, 0, "", 0, 0, trucks)
        if running:
            return last
        stopped = tuple(
            t if t.phase is TruckPhase.FAILED else replace(t, phase=TruckPhase.STOPPED) for t in last.trucks
        )
        return replace(last, running=False, trucks=stopped)

    def peek(self, *, truck: str | None = None, limit: int | None = None, follow: bool = False) -> Iterator[str]:
        """The changes in the change log as JSON lines, newest last; `follow` goes on with those to come."""
        from trucker.observe.peek import peek

        names = [t for t in self.config.trucks if truck in (None, t.name)]
        if not names:
            raise ConfigError(
                f"there is no truck {truck!r}", remedy=f"it has {', '.join(t.name for t in self.config.trucks)}"
            )
        sources = sorted({t.input.connection for t in names})
        patterns = {s: [p for t in names if t.input.connection == s for p in t.input.tables] for s in sources}
        return peek(self.config.state_folder / "log", patterns, limit=limit, follow=follow)

    # -- reset --------------------------------------------------------------------------------------------------

    def reset_plan(self, trucks: Sequence[str] | None = None) -> list[str]:
        """What `reset` would do, for people to read."""
        from trucker.engine.reset import plan

        return plan(self.config, trucks)

    def reset(self, trucks: Sequence[str] | None = None) -> list[str]:
        """Forget positions; without `trucks` also drop slot, publication and change log. Rows already written stay.

        The next run copies the tables again. Refused while the project runs.
        """
        from trucker.engine.lock import ProjectLock
        from trucker.engine.reset import reset

        lock = ProjectLock(self.config.state_folder)
        lock.acquire(wait=False)
        try:
            return reset(self.config, trucks, {c.name: self._sink(c) for c in self._destinations()})
        finally:
            lock.release()


def refuse(findings: Sequence[Finding]) -> None:
    """Raise the first error among the findings, and say how many more there are."""
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if not errors:
        return
    from trucker.errors import CheckFailed

    first = errors[0]
    more = f" (and {len(errors) - 1} more: trucker check shows all)" if len(errors) > 1 else ""
    raise CheckFailed(f"{first.subject}: {first.message}{more}", remedy=first.remedy, code=first.code or None)


def _examine_source(
    config: ProjectConfig, connection: PostgresConnection, databases: dict[str, tuple[str, str]]
) -> tuple[list[Finding], ResolvedSource | None]:
    from trucker.engine.resolve import resolve_source
    from trucker.postgres.connect import connect
    from trucker.postgres.preflight import check_source
    from trucker.postgres.slot import identify

    try:
        with connect(connection, application="trucker check") as database:
            system = identify(database)
            databases[connection.name] = (system.system_identifier, system.database)
            resolved = resolve_source(config, connection, database)
    except TruckerError as error:
        return [_finding(connection.name, error)], None
    findings = check_source(connection, resolved.published, publication=resolved.publication, slot=resolved.slot)
    return findings, resolved


def _examine_destination(connection: Connection, sink: Sink, databases: dict[str, tuple[str, str]]) -> list[Finding]:
    from trucker.postgres.connect import connect
    from trucker.postgres.slot import identify

    if isinstance(connection, PostgresConnection) and connection.name not in databases:
        try:
            with connect(connection, application="trucker check") as database:
                system = identify(database)
                databases[connection.name] = (system.system_identifier, system.database)
        except TruckerError as error:
            return [_finding(connection.name, error)]
    return sink.check() if isinstance(sink, Checkable) else []


def _examine_outputs(
    trucks: Sequence[Truck], databases: Mapping[str, tuple[str, str]], shared: set[str]
) -> list[Finding]:
    from trucker.engine.resolve import check_outputs

    try:
        check_outputs(trucks, databases, shared)
    except TruckerError as error:
        return [_finding("trucks", error)]
    return []


def _finding(subject: str, error: TruckerError) -> Finding:
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code)
