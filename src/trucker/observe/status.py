"""What a running project says of itself, and the file it says it in.

The driver writes `.trucker/status.json` about once a second (whole, by rename); `trucker status`, the demo's live
view and tests read it. It holds no row and no secret.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trucker import private


class TruckPhase(StrEnum):
    """What a truck is doing."""

    STARTING = "starting"
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A table being copied: chunks done of all."""

    table: str
    done: int
    chunks: int
    rows: int


@dataclass(frozen=True, slots=True)
class TruckStatus:
    """One truck. Positions are LSN texts; `lag_seconds` is now less the commit time of what was applied last,
    0 when there is nothing left to apply; `rows` counts the rows written since the start;
    `dead_letters` are those set aside and not applied yet; `left_out` names columns (`schema.table.column`) that the
    destination has no place for."""

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

    def to_json(self) -> str:
        return json.dumps(self, default=_fields, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ProjectStatus:
        raw: dict[str, Any] = json.loads(text)
        trucks = tuple(_truck(entry) for entry in raw.pop("trucks"))
        return cls(**raw, trucks=trucks)


def _fields(value: ProjectStatus | TruckStatus | CopyProgress) -> dict[str, Any]:
    """Not `asdict`, which copies all that is in it first: a truck may copy hundreds of tables at once."""
    return {name: getattr(value, name) for name in value.__slots__}


def _truck(raw: dict[str, Any]) -> TruckStatus:
    copying = tuple(CopyProgress(**entry) for entry in raw.pop("copying"))
    left_out = tuple(raw.pop("left_out", ()))
    return TruckStatus(**{**raw, "phase": TruckPhase(raw["phase"])}, copying=copying, left_out=left_out)


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
