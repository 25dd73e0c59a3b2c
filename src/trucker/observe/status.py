"""The status of a running project, and the file that holds it.

The driver writes `.trucker/status.json` about once a second (whole, by rename); `trucker status`, the demo's live
view and tests read it. It holds no row and no secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from trucker import private
from trucker.control.answers import Refresh

STALE_SECONDS: Final = 30.0
"""A running project writes its status about once a second: an older one does not tell where the trucks are."""


class TruckPhase(StrEnum):
    """What a truck is doing."""

    STARTING = "starting"
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"
    RETRYING = "retrying"
    FAILED = "failed"
    PAUSED = "paused"
    """`trucker pause` was given for it: it applies nothing until `trucker resume`."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A table that is being copied: chunks, rows and bytes done after so many `seconds` of work on it.

    `bytes` is the size of the planned chunks at the source, so that 100 % are reached when all of them are done, and
    not before. The seconds count from the table's first chunk.
    """

    table: str
    done: int
    chunks: int
    rows: int
    bytes_done: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def percent(self) -> int:
        """Per cent of the bytes; of the chunks where they have no bytes, as those of an empty table."""
        if self.done >= self.chunks:
            return 100
        share = self.bytes_done / self.bytes if self.bytes else self.done / self.chunks
        return max(0, min(99, int(100 * share)))

    @property
    def rows_per_second(self) -> float | None:
        return round(self.rows / self.seconds, 1) if self.done and self.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The seconds still needed at the speed so far; None where nothing is copied yet."""
        if self.done >= self.chunks:
            return 0.0
        if not self.done or self.seconds <= 0:
            return None
        if not self.bytes_done:
            return round(self.seconds * (self.chunks - self.done) / self.done, 1)
        return round(self.seconds * max(0, self.bytes - self.bytes_done) / self.bytes_done, 1)


_ERROR: Final = re.compile(r"(?:\[(\w+)\] )?(.*?)(?:\n  next: (.*))?", re.DOTALL)
_DERIVED: Final = ("percent", "rows_per_second", "seconds_left")


@dataclass(frozen=True, slots=True)
class FailedTable:
    """A table that is set aside while its truck goes on. `error` has code, reason and next step, `since` is in seconds
    since 1970, `position` is where the destination's rows of it are, `lag_bytes` how far that is behind the source.
    `held` says that it goes on from there once the user has decided; otherwise it is copied again."""

    table: str
    error: str
    since: float
    position: str
    lag_bytes: int | None
    held: bool


@dataclass(frozen=True, slots=True)
class TruckStatus:
    """One truck. Positions are LSN texts. `lag_seconds` is the age of the oldest change that may be missing at the
    destination: of the commit applied last while there is more to apply, and never less than the time since everything
    that the source said was last in the change log, if it cannot be heard or the log cannot be written now; 0 when
    nothing is missing; None where that is not known. `source_heard` is when the source was last heard, with all that
    it had said in the change log. `blind_since` is that time where it is too long ago: what this says of the truck is
    then as old as that. `rows` counts the rows written since the start; `dead_letters` are those set aside and not
    applied yet; `left_out` names columns (`schema.table.column`) that the destination has no place for;
    `failed` are tables that are set aside."""

    name: str
    source: str
    destination: str
    phase: TruckPhase
    position: str | None = None
    source_position: str | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    rows: int = 0
    batches: int = 0
    copying: tuple[CopyProgress, ...] = ()
    error: str | None = None
    dead_letters: int = 0
    left_out: tuple[str, ...] = ()
    failed: tuple[FailedTable, ...] = ()
    source_heard: float | None = None
    blind_since: float | None = None


@dataclass(frozen=True, slots=True)
class ProjectStatus:
    """The project as a whole at `updated` (seconds since 1970)."""

    project: str
    folder: str
    running: bool
    pid: int
    host: str
    started: float
    updated: float
    trucks: tuple[TruckStatus, ...] = field(default=())
    gone: bool = False
    """No process holds the project, and the last one that did was not stopped: it was killed, or crashed."""
    refreshes: tuple[Refresh, ...] = ()
    """Those that are queued or running."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Trucks that have failed and tables that are set aside, each with code, reason and next step."""
        return tuple(
            failure
            for truck in self.trucks
            for failure in (
                *([f"truck {truck.name}: {truck.error}"] if truck.phase is TruckPhase.FAILED else ()),
                *(f"truck {truck.name}, table {each.table}: {each.error}" for each in truck.failed),
            )
        )

    def ended(self, paused: Container[str] = ()) -> ProjectStatus:
        """As it is when no process holds the project; trucks that are `paused` do not go on at the next start."""
        trucks = tuple(
            replace(
                truck,
                phase=_phase_at_rest(truck, paused),
                lag_seconds=None,
                copying=(),
                blind_since=None,
            )
            for truck in self.trucks
        )
        return replace(self, running=False, trucks=trucks, gone=self.running)

    def starting(self, pid: int, host: str, since: float) -> ProjectStatus:
        """As it is while a process holds the project that has not written a status yet."""
        trucks = tuple(
            TruckStatus(truck.name, truck.source, truck.destination, TruckPhase.STARTING, truck.position)
            for truck in self.trucks
        )
        return ProjectStatus(self.project, self.folder, True, pid, host, since, since, trucks)

    def as_of(self, now: float) -> ProjectStatus:
        """The status as of `now`: without lag where it was written too long ago."""
        if now - self.updated <= STALE_SECONDS or all(truck.phase is TruckPhase.STARTING for truck in self.trucks):
            return self
        trucks = (
            replace(truck, lag_seconds=None, blind_since=truck.blind_since or self.updated) for truck in self.trucks
        )
        return replace(self, trucks=tuple(trucks))

    def to_json(self) -> str:
        return json.dumps(self, default=_fields, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ProjectStatus:
        raw: dict[str, Any] = json.loads(text)
        trucks = tuple(_truck(entry) for entry in raw.pop("trucks"))
        refreshes = tuple(Refresh.from_json(entry) for entry in raw.pop("refreshes", ()))
        return cls(**raw, trucks=trucks, refreshes=refreshes)


def _phase_at_rest(truck: TruckStatus, paused: Container[str]) -> TruckPhase:
    if truck.phase is TruckPhase.FAILED:
        return TruckPhase.FAILED
    return TruckPhase.PAUSED if truck.name in paused else TruckPhase.STOPPED


def _fields(value: ProjectStatus | TruckStatus | CopyProgress | FailedTable | Refresh) -> dict[str, Any]:
    """Not `asdict`, which copies all that is in it first: a truck may copy hundreds of tables at once."""
    names = (*value.__slots__, *_DERIVED) if isinstance(value, CopyProgress) else value.__slots__
    return {name: getattr(value, name) for name in names}


def _truck(raw: dict[str, Any]) -> TruckStatus:
    copying = tuple(CopyProgress(**_without(entry, _DERIVED)) for entry in raw.pop("copying"))
    left_out = tuple(raw.pop("left_out", ()))
    failed = tuple(FailedTable(**entry) for entry in raw.pop("failed", ()))
    return TruckStatus(**{**raw, "phase": TruckPhase(raw["phase"])}, copying=copying, left_out=left_out, failed=failed)


def _without(entry: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}


def error_facts(error: str | None) -> dict[str, str]:
    """Code, reason and remedy of an error as a status holds it, for the `extra` of a log call."""
    if error is None:
        return {}
    match = _ERROR.fullmatch(error)
    assert match is not None, "it matches any text"
    code, reason, remedy = match.groups("")
    return {"code": code, "reason": reason, "remedy": remedy}


def write_status(path: Path, status: ProjectStatus) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    private.write_text(temporary, status.to_json())
    temporary.replace(path)


def read_status(path: Path) -> ProjectStatus | None:
    """The last status written, or None where the project has never run."""
    try:
        return ProjectStatus.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
