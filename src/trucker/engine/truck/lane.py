"""Trucks, or tables of one, that move apart from the main lane."""

from __future__ import annotations

from dataclasses import dataclass

from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.table import TableId


@dataclass(slots=True)
class Lane:
    """Members of one destination that move together, apart from the main lane.

    A lane holds whole trucks, or, while one is added to a truck that streams, single tables of it (`tables`).
    """

    destination: str
    runs: list[TruckRun]
    position: Lsn
    tables: frozenset[TableId] | None = None
    unsure: bool = False
    """A commit for it failed: whether that took effect, and so where the lane is, only the destination knows (I4)."""
    over: bool = False
    """Its tables are being copied again: nothing is left to do for it, nor held for it."""
    trucks: tuple[str, ...] = ()
    """The trucks that were in it when it was made."""

    def __post_init__(self) -> None:
        self.trucks = tuple(run.name for run in self.runs)

    @property
    def name(self) -> str:
        trucks = ", ".join(run.name for run in self.runs)
        return f"{trucks} ({', '.join(map(str, sorted(self.tables)))})" if self.tables else trucks


def note_failure(run: TruckRun, error: TruckerError, lane: Lane | None) -> None:
    """What was applied for a truck in a lane, or in the main one, failed: it fails, or is tried again."""
    if not error.transient:
        run.fail(error)
    elif lane is not None and lane.tables:
        run.retry_tables(lane.tables, error)
    else:
        run.retry_later(error)
