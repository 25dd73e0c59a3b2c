"""Exit codes, and which error gives which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from trucker.errors import (
    ChangeLogError,
    CheckFailed,
    ConfigError,
    FileError,
    LockedError,
    SinkError,
    SourceError,
    TruckerError,
)
from trucker.observe.status import ProjectStatus


class ExitCode(IntEnum):
    FINE = 0
    FAILED = 1
    WRONG = 2
    UNUSABLE = 3
    LOCKED = 4
    BLIND = 5
    GONE = 6
    INTERRUPTED = 130


MEANINGS: Final = {
    ExitCode.FINE: "success; also when a run was stopped by SIGINT or SIGTERM",
    ExitCode.FAILED: "a truck failed during a run, `check` found errors, a command to the running instance was"
    " refused or none runs, the user answered no, or an unexpected error occurred",
    ExitCode.WRONG: "wrong usage, or a mistake in the project's files",
    ExitCode.UNUSABLE: "the source, a destination, the change log or the state folder cannot be used at the start",
    ExitCode.LOCKED: "another instance holds the project",
    ExitCode.BLIND: "`status`: the lag of the trucks is not known, because for too long the source sent nothing, the"
    " change log was not written, or the status was not updated",
    ExitCode.GONE: "`status`: the project is not running although it was not stopped: its process was killed or"
    " crashed",
    ExitCode.INTERRUPTED: "interrupted by SIGINT in a command other than `run` and `peek`",
}


def exit_code(error: TruckerError) -> ExitCode:
    """The exit code an error ends the command with."""
    if isinstance(error, ConfigError):
        return ExitCode.WRONG
    if isinstance(error, SourceError | SinkError | ChangeLogError | CheckFailed | FileError):
        return ExitCode.UNUSABLE
    return ExitCode.LOCKED if isinstance(error, LockedError) else ExitCode.FAILED


def status_code(status: ProjectStatus) -> ExitCode:
    """What `status` ends with: the worst of what it shows. A project that was stopped is fine."""
    if status.failures:
        return ExitCode.FAILED
    if status.gone:
        return ExitCode.GONE
    blind = any(truck.blind_since is not None for truck in status.trucks)
    return ExitCode.BLIND if blind else ExitCode.FINE
