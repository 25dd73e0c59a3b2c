"""Every error trucker raises, with a stable code and a next step.

    TruckerError
    ├── ConfigError          TRK1xx  the project's files are wrong
    ├── SourceError          TRK2xx  PostgreSQL, the publication or the slot is not as needed
    │   └── SourceUnavailable        … for now: the work is tried again
    │       └── SourceRefused        … it does not accept the user, the password or the certificate
    ├── ChangeLogError       TRK3xx  the change log is missing, behind or damaged
    │   ├── ChangeLogFull            … for now: its disk is full, and nothing is acknowledged
    │   └── ChangeLogUnavailable     … for now: its object storage cannot be reached
    ├── SinkError            TRK4xx  a destination cannot take what it is given
    │   ├── SinkUnavailable          … for now: the work is tried again
    │   │   ├── SinkRefused          … it does not accept the user, the password or the certificate
    │   │   └── SinkHeld             … by another process, which may be an instance of the project
    │   └── DataError                … because of what is in a row: it may be set aside as a letter
    ├── EngineError          TRK5xx  Spark or Java
    │   └── JobFailed                … for now: the work is tried again
    ├── CheckFailed          TRK600  what was found before a run stands in its way
    ├── TruckFailed          TRK402  one truck of a batch cannot be committed
    ├── LockedError          TRK601  another instance holds the project
    ├── ControlError         TRK610  a command to the running instance cannot be carried out
    └── FileError            TRK604  a file or a folder cannot be used

Spark hands the driver an executor's exception as text only, so the code is part of the message. Whether
a failure is tried again is decided here, from the class, in one place: only `transient` errors are.
Messages name what failed and where, never a password or a row's data (I10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from trucker.table import TableId

DECISIONS: Final = frozenset({"TRK253", "TRK255", "TRK409", "TRK425", "TRK426", "TRK428"})
"""Codes of failures that only the user can resolve, by a change of the configuration or of the destination. The change
log is kept for such a failure; nothing is copied again before the user has decided."""


class TruckerError(Exception):
    """A failure with a `code`, a one-line `message` and a `remedy` that says what to do next."""

    code: str = "TRK000"
    transient: bool = False
    table: TableId | None = None
    """The source table whose share of a truck's work failed, where it is the fault of one table alone."""

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or type(self).code

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text}\n  next: {self.remedy}" if self.remedy else text

    def facts(self) -> dict[str, str]:
        """Code, reason and remedy for the `extra` of a log call."""
        return {"code": self.code, "reason": self.message, "remedy": self.remedy}

    @property
    def needs_decision(self) -> bool:
        """Whether the user must decide how to go on."""
        return self.code in DECISIONS

    def of_table(self, table: TableId) -> Self:
        """The same error, with the table it concerns; a table that is set already stays."""
        self.table = self.table or table
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.remedy, self.code, dict(self.__dict__)))


def _rebuild(kind: type[TruckerError], message: str, remedy: str, code: str, state: dict[str, object]) -> TruckerError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.message, error.remedy, error.code = message, remedy, code
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a project's files: 1-based line and column, 0 where not known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)


class ConfigError(TruckerError):
    """The project's files are wrong; `place` points at the spot."""

    code = "TRK100"

    def __init__(self, message: str, *, place: Place | None = None, remedy: str = "", code: str | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, remedy=remedy, code=code)
        self.place = place


class SourceError(TruckerError):
    """PostgreSQL, the publication or the slot is not as needed."""

    code = "TRK200"


class SourceUnavailable(SourceError):
    """The source cannot be reached for now."""

    code = "TRK201"
    transient = True


class SourceRefused(SourceUnavailable):
    """The source refuses these credentials. While a project runs that may pass: secrets are read again from
    their files at each connect, and rights are granted again."""

    code = "TRK202"


class ChangeLogError(TruckerError):
    """The change log is missing, behind the slot or damaged."""

    code = "TRK300"


class ChangeLogFull(ChangeLogError):
    """The change log's disk is full; nothing is acknowledged to the source until there is room again."""

    code = "TRK305"
    transient = True


class ChangeLogUnavailable(ChangeLogError):
    """The change log's object storage cannot be reached for now; nothing is acknowledged that it does not have."""

    code = "TRK310"
    transient = True


class SinkError(TruckerError):
    """A destination cannot take what it is given; the truck stops (I8)."""

    code = "TRK400"


class SinkUnavailable(SinkError):
    """The destination cannot be reached or is overloaded for now; the same work is tried again."""

    code = "TRK401"
    transient = True


class SinkRefused(SinkUnavailable):
    """The destination refuses these credentials; as with `SourceRefused`, that may pass."""

    code = "TRK403"


class SinkHeld(SinkUnavailable):
    """Another process has the destination for itself for now; `pid` is its id, 0 where that is not known."""

    code = "TRK431"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None, pid: int = 0) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.pid = pid


class DataError(SinkError):
    """A destination refuses a row for what is in it: a value that does not fit, a constraint it does not keep.

    `sqlstate` is PostgreSQL's code for it, for other stores too; `constraint` and `column` are named where they are
    known. A truck that says `on_error: dead_letter` sets such rows aside; any other stops (I8).
    """

    code = "TRK406"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        code: str | None = None,
        sqlstate: str = "",
        constraint: str | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.sqlstate = sqlstate
        self.constraint = constraint
        self.column = column


class EngineError(TruckerError):
    """Spark or Java could not be started or failed."""

    code = "TRK500"


class JobFailed(EngineError):
    """Spark gave up on a job, as when its processes are killed again and again; it is tried again."""

    code = "TRK510"
    transient = True


class CheckFailed(TruckerError):
    """What `trucker check` finds stands in the way of a run; nothing has been created."""

    code = "TRK600"


class LockedError(TruckerError):
    """Another instance holds the project."""

    code = "TRK601"


class ControlError(TruckerError):
    """A command to the running instance of a project cannot be carried out; nothing was changed."""

    code = "TRK610"


class FileError(TruckerError):
    """A file or a folder cannot be used; `trucker.file_errors` says why and what to do."""

    code = "TRK604"


class TruckFailed(TruckerError):
    """One truck's share of a batch cannot be committed; the framework goes on without it.

    A sink's `commit` raises it with the cause as `reason`; nothing of the batch has been written then. `table` is the
    source table at fault, where it is one: a truck without SQL then goes on with its other tables.
    """

    code = "TRK402"

    def __init__(self, truck: str, reason: TruckerError, table: TableId | None = None) -> None:
        named = reason.message.startswith((f"truck {truck} ", f"truck {truck}:"))
        message = reason.message if named else f"truck {truck}: {reason.message}"
        super().__init__(message, remedy=reason.remedy, code=reason.code)
        self.truck = truck
        self.reason = reason if table is None else reason.of_table(table)
        self.table = self.reason.table
