"""The project's own folder."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.engine.conditions.condition import failure
from trucker.engine.conditions.situation import Situation
from trucker.engine.lock import refuse_unwritable
from trucker.errors import TruckerError
from trucker.finding import Finding


def writable(situation: Situation) -> Iterator[Finding]:
    """The state folder is one that can be written, or made."""
    try:
        refuse_unwritable(situation.config.state_folder)
    except TruckerError as error:
        yield failure("state", error)
