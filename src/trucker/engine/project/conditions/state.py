"""Conditions on the project's state folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trucker.changelog.location import location_of
from trucker.engine.project.conditions.condition import failure
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.lock import refuse_unwritable
from trucker.engine.project.state_folder import exposed
from trucker.errors import ChangeLogError, TruckerError
from trucker.file_errors import file_error, folder_trouble
from trucker.finding import Finding


def writable(situation: Situation) -> Iterator[Finding]:
    """The state folder is one that can be written, or made."""
    try:
        refuse_unwritable(situation.config.state_folder)
    except TruckerError as error:
        yield failure("state", error)


def log_writable(situation: Situation) -> Iterator[Finding]:
    """The folder of a change log that is not in the state folder can be written, or made."""
    if not isinstance(situation.config.log.location, Path):
        return
    for connection in situation.config.sources:
        location = location_of(situation.config, connection.name)
        assert isinstance(location, Path)
        if (trouble := folder_trouble(location)) is not None:
            error = file_error(
                trouble, "writing the change log in", location, ChangeLogError, code="TRK306", setting="log.location"
            )
            yield failure(str(location), error)


def private(situation: Situation) -> Iterator[Finding]:
    """Other accounts of the machine read neither the state folder nor the change log, or a start can see to that."""
    for folder, error in exposed(situation.config):
        yield failure(str(folder), error)
