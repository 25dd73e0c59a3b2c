"""The project's own folder."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.engine.conditions.condition import failure
from trucker.engine.conditions.situation import Situation
from trucker.engine.lock import refuse_unwritable
from trucker.engine.state import exposed
from trucker.errors import TruckerError
from trucker.finding import Finding


def writable(situation: Situation) -> Iterator[Finding]:
    """The state folder is one that can be written, or made."""
    try:
        refuse_unwritable(situation.config.state_folder)
    except TruckerError as error:
        yield failure("state", error)


def private(situation: Situation) -> Iterator[Finding]:
    """Other accounts of the machine read neither the state folder nor the change log, or a start can see to that."""
    for folder, error in exposed(situation.config):
        yield failure(str(folder), error)
