"""The findings of `trucker check`, each with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trucker.table import TableId


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `subject` is what was checked (a connection, a table), `remedy` the exact next step.

    An error stops a start, unless it `waits`: then a run starts all the same, and only the trucks concerned wait until
    the cause is gone (`run --strict` refuses those, too). A subject that an error's message begins with is removed from
    the message.
    """

    level: Level
    subject: str
    message: str
    remedy: str = ""
    code: str = ""
    waits: bool = False

    def __post_init__(self) -> None:
        message = self.message
        for subject in (self.subject, *self.subject.split(", ")):
            message = message.removeprefix(f"{subject}: ")
        object.__setattr__(self, "message", message)


@runtime_checkable
class Checkable(Protocol):
    """A sink that can say beforehand whether it could be used. Must create and change nothing."""

    def check(self) -> list[Finding]: ...


@runtime_checkable
class TellsUnique(Protocol):
    """A sink that can say which columns of a table are unique there. Must create and change nothing."""

    def unique_columns(self, table: TableId) -> list[tuple[str, ...]]:
        """The columns of each unique index or constraint; none where there is no such table."""
