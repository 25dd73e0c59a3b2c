"""A project as one object: what the command line does, a program can do too.

from trucker import Project
Project.load("my-project").run(once=True)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trucker.config.load import load_project
from trucker.config.models import Connection, PostgresConnection, ProjectConfig, TruckConfig
from trucker.config.slots import part_name, whole_name
from trucker.config.sql_files import ON_SPARK
from trucker.errors import ConfigError, TruckerError
from trucker.finding import Checkable, Finding, Level, TellsUnique
from trucker.observe.status import ProjectStatus, TruckPhase, TruckStatus, read_status, write_status

if TYPE_CHECKING:
    from trucker.change import TableId
    from trucker.changelog.place import LogPlace
    from trucker.engine.plan import Truck
    from trucker.engine.resolve import ResolvedSource
    from trucker.engine.session import SparkSession
    from trucker.engine.trial import Shown
    from trucker.sinks.base import Sink
    from trucker.sinks.letters import Redriven

log = logging.getLogger("trucker.project")

PATIENCE: Final = 10.0
"""Seconds for which a redrive waits for a destination that something else holds."""


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
        """Look at everything a run needs, on both sides, changing nothing; each finding has its remedy.

        Spark is started where a truck has SQL files for it.
        """
        findings, sources = self._examine()
        if any(finding.level is Level.ERROR for finding in findings) or not self._has_spark_sql():
            return findings
        from trucker.engine.run import checked_on_spark

        return [
            *findings,
            *checked_on_spark(self.config, sources, {c.name: self._sink(c) for c in self._destinations()}),
        ]

    def _has_spark_sql(self) -> bool:
        return any(truck.file(name) for truck in self.config.trucks for name in ON_SPARK)

    def _examine(self) -> tuple[list[Finding], dict[str, ResolvedSource]]:
        findings = [
            Finding(Level.OK, str(self.config.folder), f"the project is well-formed, trucks: {len(self.config.trucks)}")
        ]
        sources: dict[str, ResolvedSource] = {}
        databases: dict[str, tuple[str, str]] = {}
        for connection in self._sources():
            found, resolved = _examine_source(self.config, connection, databases)
            findings += found
            findings += _examine_log(self.config, connection.name)
            if resolved is not None:
                sources[connection.name] = resolved
        shared = set()
        sinks = {}
        for place in self._destinations():
            sink = sinks[place.name] = self._sink(place)
            findings += _examine_destination(place, sink, databases)
            findings += _examine_letters(sink)
            if sink.capabilities.keeps_changes:
                shared.add(place.name)
        findings += _examine_outputs([t for source in sources.values() for t in source.trucks], databases, shared)
        findings += _examine_rules(self.config, sources.values(), sinks)
        if not any(finding.level is Level.ERROR for finding in findings):
            findings += _examine_recipes(self.config, sources.values(), sinks, shared)
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
        from trucker.engine.starting import StartingSession, session_there

        lock = ProjectLock(self.config.state_folder)
        lock.acquire(wait=wait)
        starting = None
        try:
            starting = None if spark or session_there() else StartingSession(self.config)
            from trucker.engine.run import ProjectRun  # it takes a third of a second: not before Spark is on its way
            from trucker.engine.streams import split

            findings, sources = self._examine()
            refuse(findings)
            streams = [stream for source in sources.values() for stream in split(self.config, source)]
            run = ProjectRun(self.config, streams, once=once, observer=on_status, stop=stop)
            return run.run(spark, starting=starting)
        finally:
            if starting is not None:
                starting.give_up()
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

        names = self._trucks(truck)
        sources = sorted({t.input.connection for t in names})
        chosen = {
            name: (log, [p for t in names if t.input.connection == s for p in t.input.tables])
            for s in sources
            for name, log in self._logs(s).items()
        }
        return peek(chosen, limit=limit, follow=follow)

    def _logs(self, connection: str) -> dict[str, LogPlace]:
        """The change logs of a source: one for each of its slots that has run; its first one's where none has."""
        from trucker.changelog.place import place_of, truth_of
        from trucker.changelog.source import log_exists
        from trucker.engine.reset import stream_numbers

        source = next(each for each in self._sources() if each.name == connection)
        names = [part_name(connection, number) for number in stream_numbers(self.config, source)]
        logs = {name: truth_of(place_of(self.config, name)) for name in names}
        return {name: log for name, log in logs.items() if log_exists(log)} or {connection: logs[connection]}

    # -- try ----------------------------------------------------------------------------------------------------

    def try_truck(self, truck: str, *, rows: Path | None = None, limit: int = 10) -> list[Shown]:
        """Take the last `limit` changes of the change log, or those in a file, through the truck's steps.

        Nothing is written, and no position moves. Spark is started only where the truck has SQL for it.
        """
        from trucker.changelog.source import log_exists
        from trucker.engine.given_changes import given_changes
        from trucker.engine.run import spark_for
        from trucker.engine.trial import Trial, recent
        from trucker.errors import ChangeLogError

        (config,) = self._trucks(truck)
        findings, sources = self._examine()
        refuse(findings)
        source = sources[config.input.connection]
        resolved = next(each for each in source.trucks if each.name == truck)
        tables = {
            name: table.target(truck, source.tables[name].schema).source for name, table in resolved.tables.items()
        }
        logs = list(self._logs(config.input.connection).values())
        if rows is None and not log_exists(logs[0]):
            raise ChangeLogError(
                f"there is no change log of {config.input.connection} yet",
                remedy="trucker run writes one; or give changes in a file: --rows changes.jsonl",
                code="TRK308",
            )
        changes = given_changes(rows, tables) if rows is not None else recent(logs, tables, limit)
        sink = self._sink(self.config.connection(config.output.connection))
        try:
            with spark_for(self.config, [config]) as spark:
                return list(Trial(self.config, source, resolved, sink, spark).run(changes))
        finally:
            sink.close()

    # -- redrive ------------------------------------------------------------------------------------------------

    def redrive(
        self,
        truck: str | None = None,
        *,
        table: str | None = None,
        ids: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[Redriven]:
        """Apply dead letters again, while the project runs or not; what became of each.

        Those that are applied are gone; the others stay, with the reason they were refused for now.
        """
        from trucker.config.patterns import parse_table
        from trucker.sinks.letters import Choice, KeepsLetters

        trucks = self._trucks(truck)
        source = parse_table(table) if table else None
        found: list[Redriven] = []
        left: dict[str, int] = {}
        for place in self._destinations():
            own = {t.name for t in trucks if t.output.connection == place.name}
            sink = self._sink(place)
            try:
                if own and isinstance(sink, KeepsLetters):
                    # A truck whose tables are in several slots has letters by part.
                    names = {*own, *(part for part in sink.count_letters() if whole_name(part) in own)}
                    choice = Choice(tuple(sorted(names)), source, tuple(ids) if ids else None)
                    found += _patiently(partial(sink.redrive, choice, dry_run=dry_run))
                    counts = sink.count_letters()
                    left |= {name: counts.get(name, 0) for name in names}
            finally:
                sink.close()
        self._note_letters(left)
        return found

    def _note_letters(self, left: Mapping[str, int]) -> None:
        """A project that does not run says so of its letters in its last status."""
        from trucker.engine.lock import ProjectLock

        file = self.config.state_folder / "status.json"
        last = read_status(file)
        if last is None or ProjectLock(self.config.state_folder).held():
            return
        trucks = tuple(replace(t, dead_letters=left.get(t.name, t.dead_letters)) for t in last.trucks)
        write_status(file, replace(last, trucks=trucks))

    def _trucks(self, name: str | None) -> list[TruckConfig]:
        chosen = [truck for truck in self.config.trucks if name in (None, truck.name)]
        if not chosen:
            known = ", ".join(truck.name for truck in self.config.trucks)
            raise ConfigError(f"there is no truck {name!r}", remedy=f"it has {known}")
        return chosen

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
    from trucker.engine.streams import split, spread_findings
    from trucker.postgres.connect import connect
    from trucker.postgres.preflight import Needed, check_source
    from trucker.postgres.slot import identify

    try:
        with connect(connection, application="trucker check") as database:
            system = identify(database)
            databases[connection.name] = (system.system_identifier, system.database)
            resolved = resolve_source(config, connection, database)
            streams = split(config, resolved)
    except TruckerError as error:
        return [_finding(connection.name, error)], None
    findings = check_source(connection, [Needed(each.publication, each.slot, each.published) for each in streams])
    findings += spread_findings(resolved, streams)
    return [*findings, *_examine_sql(config, resolved)], resolved


def _examine_sql(config: ProjectConfig, resolved: ResolvedSource) -> list[Finding]:
    """What the source says of the SQL of the trucks that read from it."""
    from trucker.engine.rules import compile_rules
    from trucker.postgres.source_query import check_input, check_old_values

    findings: list[Finding] = []
    by_name = {truck.name: truck for truck in config.trucks}
    for truck in resolved.trucks:
        configured, taken = by_name[truck.name], []
        for name, table in truck.tables.items():
            source = resolved.tables[name]
            try:
                rules = compile_rules(configured.rules, table.target(truck.name, source.schema).source)
            except TruckerError:  # told with the other rules
                continue
            taken.append(rules.schema)
            findings += check_old_values(configured, [source], rules.origin)
        findings += check_input(resolved.reads, configured, taken)
    return findings


def _examine_log(config: ProjectConfig, source: str) -> list[Finding]:
    """Whether the storage of a log of objects can be asked; whether it takes what it is given shows at the start."""
    from trucker.changelog.place import ObjectPlace, place_of
    from trucker.changelog.source import log_exists

    place = place_of(config, source)
    if not isinstance(place, ObjectPlace):
        return []
    try:
        log_exists(place)
    except TruckerError as error:
        return [Finding(Level.ERROR, str(place), error.message, error.remedy, error.code)]
    return [Finding(Level.OK, str(place), "the change log's storage answers")]


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


def _examine_letters(sink: Sink) -> list[Finding]:
    from trucker.sinks.letters import KeepsLetters

    if not isinstance(sink, KeepsLetters):
        return []
    try:
        counts = sink.count_letters()
    except TruckerError:  # what is wrong with the destination has been found
        return []
    remedy = "look at trucker.dead_letters there, mend what its reasons say, then run `trucker redrive`"
    return [
        Finding(
            Level.WARNING,
            f"truck {truck}",
            f"{count} dead letters: rows that its destination refuses",
            remedy,
            "TRK473",
        )
        for truck, count in sorted(counts.items())
    ]


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


def _examine_outputs(
    trucks: Sequence[Truck], databases: Mapping[str, tuple[str, str]], shared: set[str]
) -> list[Finding]:
    from trucker.engine.resolve import check_outputs

    try:
        check_outputs(trucks, databases, shared)
    except TruckerError as error:
        return [_finding("trucks", error)]
    return []


def _examine_recipes(
    config: ProjectConfig, sources: Iterable[ResolvedSource], sinks: Mapping[str, Sink], shared: set[str]
) -> list[Finding]:
    from trucker.engine.recipe import Recipes
    from trucker.engine.sql_check import check_sql

    kept = {name: name in shared for name in sinks}
    return [
        finding
        for source in sources
        for finding in check_sql(
            source, sinks, Recipes(source.reads, kept, config.slow_query_threshold_ms), spark=False
        )
    ]


def _examine_rules(
    config: ProjectConfig, sources: Iterable[ResolvedSource], sinks: Mapping[str, Sink]
) -> list[Finding]:
    from trucker.engine.rules.check import check_rules

    configured = {truck.name: truck for truck in config.trucks if truck.rules}
    findings: list[Finding] = []
    for source in sources:
        for truck in source.trucks:
            if truck.name not in configured:
                continue
            tables = [
                (
                    source.tables[name],
                    table.target(truck.name, source.tables[name].schema).source,
                    _unique(sinks[truck.destination], table.output),
                )
                for name, table in truck.tables.items()
            ]
            findings += check_rules(configured[truck.name], tables)
    return findings


def _unique(sink: Sink, table: TableId) -> list[tuple[str, ...]]:
    try:
        return sink.unique_columns(table) if isinstance(sink, TellsUnique) else []
    except TruckerError:  # what is wrong with the destination has been found
        return []


def _finding(subject: str, error: TruckerError) -> Finding:
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code)
