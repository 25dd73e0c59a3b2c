"""The type of a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trucker.errors import TruckerError
from trucker.finding import Finding, Level

if TYPE_CHECKING:
    from trucker.engine.project.conditions.situation import Situation


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must hold before a project starts.

    `look` gives what is found wanting, and what is fine where a reader should see that it was looked at. Whether a run
    may start and wait for it is stated by each finding (`Finding.waits`). One that is `sound` is looked at only if no
    error has been found before it: it would repeat that error, or could not be examined.
    """

    name: str
    look: Callable[[Situation], Iterable[Finding]]
    sound: bool = False


def failure(subject: str, error: TruckerError, *, waits: bool = False) -> Finding:
    """The finding that an error is."""
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code, waits)


def fine(subject: str, message: str) -> Finding:
    return Finding(Level.OK, subject, message)
