"""A truck while it runs: how far it is, what it is doing, what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trucker.change import Lsn, TableId
from trucker.engine.plan import Truck
from trucker.errors import TruckerError
from trucker.observe.status import CopyProgress, TruckPhase
from trucker.sinks.base import Phase, TruckState


@dataclass(slots=True)
class TruckRun:
    """Owned by the source's query; written under its lock.

    `position` is the end of the last commit applied, `stored` the one its destination holds (the same, but for
    quiet stretches that nobody had to write down yet). `floors` has the tables that follow it, each with the LSN it was
    copied at: what was committed before that is in the copy, so a table's changes count from the greater of both (I6).
    `arriving` are those of them that the destination still has a position of their own for: the truck's next commit
    there takes it away, so that a table never counts as following a truck that has passed it by. `left_out` names
    columns that the destination has no place for.
    """

    truck: Truck
    position: Lsn = field(default_factory=Lsn)
    stored: Lsn = field(default_factory=Lsn)
    floors: dict[TableId, Lsn] = field(default_factory=dict)
    arriving: dict[TableId, Lsn] = field(default_factory=dict)
    phase: TruckPhase = TruckPhase.STARTING
    error: TruckerError | None = None
    rows: int = 0
    batches: int = 0
    applied_time: int = 0
    copying: dict[TableId, CopyProgress] = field(default_factory=dict)
    left_out: dict[TableId, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.truck.name

    def after(self, table: TableId) -> Lsn:
        """Changes of the table committed below this are at the destination already."""
        return max(self.position, self.floors[table])

    def let_go(self) -> None:
        """Keep of the error what it says, not the places it passed: their frames hold what was used there, as a
        connection whose library complains when the process ends before it."""
        error: BaseException | None = self.error
        while error is not None:
            before = error.__cause__ or error.__context__
            error.__traceback__ = error.__cause__ = error.__context__ = None
            error = before

    def reconcile(self, state: TruckState) -> None:
        """Take over what the destination says, after a commit whose outcome was not known.

        That may have made tables follow the truck: before a crash even, so that this run knows them as lagging.
        """
        self.position = self.stored = state.lsn
        for table, found in state.tables.items():
            if table in self.arriving:
                self.floors[table] = self.arriving[table] = found.lsn
            if table in self.truck.tables and found.phase is Phase.STREAMING:
                self.floors.setdefault(table, found.lsn)
                self.arriving.pop(table, None)


def letters_of(runs: Iterable[TruckRun]) -> dict[str, int]:
    """How many failing rows each truck that sets them aside may have, for `Batch.dead_letters`."""
    return {run.name: run.truck.dead_letters for run in runs if run.truck.dead_letters is not None}


@dataclass(slots=True)
class Lane:
    """Members of one destination that move together, apart from the main lane.

    A lane holds whole trucks, or, while one is added to a truck that streams, single tables of it (`tables`).
    """

    destination: str
    runs: list[TruckRun]
    position: Lsn
    tables: frozenset[TableId] | None = None
    over: bool = False
    """Its tables are being copied again: nothing is left to do for it, nor held for it."""

    @property
    def name(self) -> str:
        trucks = ", ".join(run.name for run in self.runs)
        return f"{trucks} ({', '.join(map(str, sorted(self.tables)))})" if self.tables else trucks
