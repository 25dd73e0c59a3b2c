"""The envelopes by name, and what a connection says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trucker.change import Changes
from trucker.config.events import EventConnection, EventFormat
from trucker.sinks.envelope.debezium_envelope import DebeziumEnvelope
from trucker.sinks.envelope.encoded import EncodedChanges
from trucker.sinks.envelope.flat_envelope import FlatEnvelope
from trucker.sinks.envelope.trucker_envelope import TruckerEnvelope
from trucker.sinks.target import Target


class Envelope(Protocol):
    """Turns changes of one table into events."""

    def encode(self, changes: Changes, target: Target, *, snapshot: bool) -> EncodedChanges:
        """The events of one or more changes, in their order. Raises `SinkError` for a value that the truck's policy
        refuses."""


@dataclass(frozen=True, slots=True)
class EnvelopeSettings:
    """`lines`: values end in a line feed, and events have neither keys, ids nor tombstones. `name` and `database` are
    what Debezium's envelope calls the source, and `placeholder` stands in it for a value that was not sent."""

    format: EventFormat = EventFormat.TRUCKER
    transactions: bool = False
    lines: bool = False
    name: str = ""
    database: str = ""
    placeholder: str = ""

    def envelope(self) -> Envelope:
        """The envelope to encode with."""
        end = "\n" if self.lines else ""
        if self.format is EventFormat.FLAT:
            return FlatEnvelope(end)
        if self.format is EventFormat.DEBEZIUM:
            return DebeziumEnvelope(self.name, self.database, self.placeholder, not self.lines, self.transactions, end)
        return TruckerEnvelope(end, not self.lines)


def envelope_settings(connection: EventConnection | None, project: str, *, lines: bool) -> EnvelopeSettings:
    """What a connection says; without one trucker's own envelope."""
    if connection is None:
        return EnvelopeSettings(lines=lines)
    debezium = connection.debezium
    return EnvelopeSettings(
        connection.format,
        connection.transactions,
        lines,
        debezium.name or project,
        debezium.database,
        debezium.unavailable_value,
    )
