"""Conditions on destinations."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.config.models import Connection, PostgresConnection
from trucker.engine.conditions.condition import failure
from trucker.engine.conditions.situation import Situation
from trucker.errors import TruckerError
from trucker.finding import Checkable, Finding, Level
from trucker.postgres.connect import connect
from trucker.postgres.slot import identify
from trucker.sinks.base import Sink
from trucker.sinks.letters import KeepsLetters


def usable(situation: Situation) -> Iterator[Finding]:
    """Every destination can be reached and written."""
    for connection in situation.destination_connections:
        yield from _destination(situation, connection, situation.sinks[connection.name])


def _destination(situation: Situation, connection: Connection, sink: Sink) -> Iterator[Finding]:
    if isinstance(connection, PostgresConnection) and connection.name not in situation.databases:
        try:
            with connect(connection, application="trucker check") as database:
                system = identify(database)
                situation.databases[connection.name] = (system.system_identifier, system.database)
        except TruckerError as error:
            yield failure(connection.name, error)
            return
    if isinstance(sink, Checkable):
        yield from sink.check()


def letters(situation: Situation) -> Iterator[Finding]:
    """Dead letters are no reason not to run, but somebody should look at them."""
    for sink in situation.sinks.values():
        if not isinstance(sink, KeepsLetters):
            continue
        try:
            counts = sink.count_letters()
        except TruckerError:  # what is wrong with the destination has been found
            continue
        for truck, count in sorted(counts.items()):
            yield Finding(
                Level.WARNING,
                f"truck {truck}",
                f"{count} dead letters: rows that its destination refuses",
                "look at trucker.dead_letters there, mend what its reasons say, then run `trucker redrive`",
                "TRK473",
            )


def states(situation: Situation) -> Iterator[Finding]:
    """What destinations store of the trucks can be read."""
    yield from ()


def tables(situation: Situation) -> Iterator[Finding]:
    """The tables that are there can take the rows."""
    yield from ()
