"""Conditions on slot, change log and stored positions, held against each other."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.changelog.place import ObjectPlace, place_of
from trucker.changelog.source import log_exists
from trucker.engine.conditions.condition import failure, fine
from trucker.engine.conditions.situation import Situation
from trucker.errors import TruckerError
from trucker.finding import Finding


def storage(situation: Situation) -> Iterator[Finding]:
    """The storage of a log of objects can be asked; whether it takes what it is given shows at the start."""
    for connection in situation.source_connections:
        place = place_of(situation.config, connection.name)
        if not isinstance(place, ObjectPlace):
            continue
        try:
            log_exists(place)
            yield fine(str(place), "the change log's storage answers")
        except TruckerError as error:
            yield failure(str(place), error)


def continuous(situation: Situation) -> Iterator[Finding]:
    """Slot, log and stored positions continue each other."""
    yield from ()


def whole(situation: Situation) -> Iterator[Finding]:
    """The log is not damaged."""
    yield from ()
