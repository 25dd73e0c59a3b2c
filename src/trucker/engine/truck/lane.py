"""Trucks, or tables of a truck, that are processed separately from the main lane."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import Receipt
from trucker.sinks.target import Target
from trucker.table import TableId


class Absent(Enum):
    """Which rows of a lane's table the destination may not have yet, though the source had them before."""

    NONE = "none"
    ANY = "any"
    """Any row, or an older or newer one: every change is written as a whole row."""
    MOVED = "moved"
    """A row that has moved to another key or was deleted after its values were read: an update of single cells is left
    out where its row is not there."""


@dataclass(frozen=True, slots=True)
class StagedChunks:
    """Rows of a copy that the lane's next commit makes visible together with the changes up to then.

    `name` is that of the batch they were staged for, `parts` how many part numbers they take, `cursor` how far the copy
    has got with them.
    """

    name: str
    target: Target
    receipts: Sequence[Receipt]
    parts: int
    cursor: str


@dataclass(slots=True)
class Lane:
    """Trucks of one destination that advance together, separately from the main lane.

    A lane holds whole trucks, or single tables (`tables`) that are added to a truck that streams.

    A lane whose table is copied incrementally has the `cursor` of the copy, and between two commits the `staged` rows
    of its next chunks.
    """

    destination: str
    runs: list[TruckRun]
    position: Lsn
    tables: frozenset[TableId] | None = None
    unsure: bool = False
    """A commit for it failed: only the destination knows whether that took effect, and so the lane's position (I4)."""
    over: bool = False
    """Its tables are being copied again: it has nothing to apply, and the change log is not kept for it."""
    trucks: tuple[str, ...] = ()
    """The trucks that were in it when it was made."""
    cursor: str = ""
    staged: StagedChunks | None = None
    brought: str = ""
    """The name of the chunks that the lane's last commit with any has brought, as far as its answer came."""
    absent: Absent = Absent.NONE
    reselected: bool = False
    """Rows were read again at the source for it: the destination may have them newer than its position."""
    working: threading.Event = field(default_factory=threading.Event)
    """Set while a thread of its own applies changes for it."""

    def __post_init__(self) -> None:
        self.trucks = tuple(run.name for run in self.runs)

    @property
    def name(self) -> str:
        trucks = ", ".join(run.name for run in self.runs)
        return f"{trucks} ({', '.join(map(str, sorted(self.tables)))})" if self.tables else trucks


def note_failure(run: TruckRun, error: TruckerError, lane: Lane | None) -> None:
    """Applying changes for a truck failed, in a lane or in the main one: fail the truck, or retry later."""
    if not error.transient:
        run.fail(error)
    elif lane is not None and lane.tables:
        run.retry_tables(lane.tables, error)
    else:
        run.retry_later(error)
