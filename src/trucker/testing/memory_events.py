"""A stream of events in this process's memory: the conformance suite's sink of the base `EventSink`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from trucker.abilities import Abilities
from trucker.config.events import EventConnection
from trucker.sinks.base import Workspace
from trucker.sinks.event import Event, Events
from trucker.sinks.events import EventSink
from trucker.sinks.ledger import Ledger


@dataclass(slots=True)
class Stream:
    """A destination: the events of each truck that count, those that do not yet, and the ledgers of projects."""

    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    ledgers: dict[str, Ledger] = field(default_factory=dict)


class MemoryEventSink(EventSink):
    """Guarantee: exactly once, in commit order, for as long as the process lives."""

    name: ClassVar[str] = "memory_events"
    abilities: ClassVar[Abilities] = Abilities(every_change=True, guarantee="exactly once while the process lives")
    streams: ClassVar[dict[str, Stream]] = {}

    def __init__(self, destination: str, workspace: Workspace, connection: EventConnection | None = None) -> None:
        super().__init__(connection, workspace)
        self._destination = destination
        self._appended: dict[str, list[Event]] = {}

    @property
    def stream(self) -> Stream:
        return self.streams.setdefault(self._destination, Stream())

    def read_ledger(self) -> Ledger:
        self._appended = {}
        return self.stream.ledgers.get(self._project, Ledger())

    def append(self, truck: str, events: Iterator[Events]) -> None:
        self._appended[truck] = [event for piece in events for event in piece.rows()]

    def store(self, ledger: Ledger) -> None:
        for truck, events in self._appended.items():
            self.stream.events[truck] += events
        self._appended = {}
        self.stream.ledgers[self._project] = ledger
