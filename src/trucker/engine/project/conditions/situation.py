"""What the conditions examine: the project, its sources and its destinations at this moment. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Self

from trucker.config.adapter import Connection
from trucker.config.models import ProjectConfig
from trucker.engine.destination.destination_record import DestinationRecord, records
from trucker.engine.project.lock import Instance
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.engine.project.publication_start import missed
from trucker.engine.truck.resolve import ResolvedSource
from trucker.errors import TruckerError
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.factory import make_sink
from trucker.sinks.target import TruckTable
from trucker.source.base import Source, SourceSession
from trucker.source.factory import make_source


class Situation:
    """Filled by the walk: a condition finds what those before it in the list have learnt.

    `instance` is the project's running instance, None where it does not run or it is the caller. `databases` tells
    what a connection really leads to, its server's identifier and database. `sources` has the sources that could
    be read. `stored` has, of the destinations that answered, what they store of each truck; `away` has why the others
    did not.
    """

    def __init__(self, config: ProjectConfig, instance: Instance | None = None) -> None:
        self.config = config
        self.instance = instance
        self.databases: dict[str, tuple[str, str]] = {}
        self.sources: dict[str, ResolvedSource] = {}
        self.stored: dict[str, Mapping[str, TruckState]] = {}
        self.away: dict[str, TruckerError] = {}
        self._incomplete: dict[str, frozenset[TruckTable]] = {}
        self._opened = ExitStack()
        self._sessions: dict[str, SourceSession] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @cached_property
    def configured_sources(self) -> list[Source]:
        """The sources that trucks read from, whether they can be reached or not."""
        return [make_source(connection, self.config.unique_id) for connection in self.config.sources]

    @cached_property
    def destination_connections(self) -> list[Connection]:
        used = {truck.output.connection for truck in self.config.trucks}
        return [connection for connection in self.config.connections if connection.name in used]

    @cached_property
    def sinks(self) -> Mapping[str, Sink]:
        """The destinations' sinks, none of them opened."""
        sinks = {}
        for connection in self.destination_connections:
            folder = self.config.state_folder / "spool" / connection.name
            sink = sinks[connection.name] = make_sink(connection, Workspace(self.config.unique_id, folder))
            self._opened.callback(sink.close)
        return sinks

    def session(self, source: Source) -> SourceSession:
        """A session with a source, kept until the walk is over."""
        if source.name not in self._sessions:
            self._sessions[source.name] = self._opened.enter_context(source.session("check"))
        return self._sessions[source.name]

    def states(self, source: ResolvedSource) -> dict[str, TruckState]:
        """What the destinations that answered store of the source's trucks."""
        states = {}
        for truck in source.trucks:
            state = self.stored.get(truck.destination, {}).get(truck.name)
            if state is not None:
                states[truck.name] = state
        return states

    def incomplete(self, source: ResolvedSource) -> frozenset[TruckTable]:
        """The trucks' tables of which not all changes have been published as they are wanted now: they are copied
        again."""
        if source.name not in self._incomplete:
            self._incomplete[source.name] = self._look_at_publication(source)
        return self._incomplete[source.name]

    def _look_at_publication(self, source: ResolvedSource) -> frozenset[TruckTable]:
        session = self.session(source.source)
        truck_tables = [(truck.name, table) for truck in source.trucks for table in truck.tables]
        record = PublicationRecord(record_file(self.config, source.name))
        try:
            other = session.ensure_publication(source.published, dry=True)
            memberships = session.memberships(source.tables)
        except TruckerError:  # what is wrong with the publication has been found
            return frozenset()
        return frozenset(
            truck_table
            for truck_table in truck_tables
            if truck_table[1] in other
            or missed(record, truck_table, memberships)
            or (not record.is_empty and record.get(*truck_table) is None)
        )

    def has_used(self, destination: str) -> bool:
        """Whether the project has written to the destination before, as far as is known without it."""
        return any(record.uses(destination) for record in self._records)

    @cached_property
    def _records(self) -> list[DestinationRecord]:
        return records(self.config)

    def noted(self, source: ResolvedSource) -> dict[str, TruckState]:
        """What is known of the source's trucks to destinations that do not answer: not less than what they need."""
        names = {truck.name for truck in source.trucks}
        states = {name: state for record in self._records for name, state in record.states(self.away).items()}
        return {name: state for name, state in states.items() if name in names}

    def is_new(self, truck: str, destination: str) -> bool:
        """Whether its destination, which answered, stores nothing of the truck."""
        stored = self.stored.get(destination)
        return stored is not None and truck not in stored
