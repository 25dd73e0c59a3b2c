"""Trucks, or tables of a truck, that are processed separately from the main lane."""

from __future__ import annotations

from dataclasses import dataclass

from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.table import TableId


@dataclass(slots=True)
class Lane:
    """Trucks of one destination that advance together, separately from the main lane.

    A lane holds whole trucks, or single tables (`tables`) that are added to a truck that streams.
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
