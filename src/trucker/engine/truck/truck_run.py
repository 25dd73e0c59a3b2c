"""A truck while it runs: how far it is, what it is doing, what went wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from trucker.engine.truck.table_failure import Retry, RetryWaits, TableFailure
from trucker.engine.truck.truck import Truck
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import CopyProgress, TruckPhase
from trucker.sinks.base import Phase, TruckState
from trucker.table import TableId

log = logging.getLogger("trucker.truck")


@dataclass(slots=True)
class TruckRun:
    """Owned by the source's query; written under its lock.

    `position` is the end of the last commit applied, `stored` the one its destination holds (the same, but for
    quiet stretches that nobody had to write down yet). `floors` has the tables that follow it, each with the LSN it was
    copied at: what was committed before that is in the copy, so a table's changes count from the greater of both (I6).
    `arriving` are those of them that the destination still has a position of their own for: the truck's next commit
    there takes it away, so that a table never counts as following a truck that has passed it by. `left_out` names
    columns that the destination has no place for. `failed` has the tables that are set aside; they are neither in
    `floors` nor in a lane, but while they are tried again. `retry` is there where a truck that fails is tried again.
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
    failed: dict[TableId, TableFailure] = field(default_factory=dict)
    waits: RetryWaits = field(default_factory=RetryWaits)
    retry: Retry | None = None

    @property
    def name(self) -> str:
        return self.truck.name

    @property
    def is_over(self) -> bool:
        """Whether it has failed and is not tried again before the next start."""
        return self.phase is TruckPhase.FAILED and (self.retry is None or self.retry.ended)

    def after(self, table: TableId) -> Lsn:
        """Changes of the table committed below this are at the destination already."""
        return max(self.position, self.floors[table])

    def give_up(self, error: TruckerError) -> None:
        """Fail until the next start, which looks for the cause again: the stream does not tell whether it is gone."""
        self.phase, self.error = TruckPhase.FAILED, error
        if self.retry is not None:
            self.retry.ended = True

    def set_aside(self, table: TableId, error: TruckerError, position: Lsn, *, held: bool, again: bool = True) -> None:
        """Note that a table cannot go on, and when it is tried again: without `again`, not before the next start."""
        self.floors.pop(table, None)
        self.arriving.pop(table, None)
        self.copying.pop(table, None)
        before = self.failed.get(table)
        retry = before.retry if before is not None else Retry(self.waits)
        retry.failed()
        retry.ended = not again
        since = before.since if before is not None else time.time()
        self.failed[table] = TableFailure(error, since, position, held, retry)
        log.warning(
            "table failed; the truck's other tables continue",
            extra={"truck": self.name, "table": str(table), **error.facts()},
        )

    def started_again(self) -> TruckRun:
        """A run of the truck that begins anew. Until the destination has said where it is, the log is kept as for this
        one."""
        return TruckRun(
            self.truck,
            position=self.position,
            stored=self.stored,
            phase=TruckPhase.CATCHING_UP,
            rows=self.rows,
            batches=self.batches,
            applied_time=self.applied_time,
            waits=self.waits,
            retry=self.retry,
        )

    def recovered(self, tables: Iterable[TableId]) -> None:
        """These tables follow the truck again."""
        for table in tables:
            if self.failed.pop(table, None) is not None:
                log.info("table continues after a failure", extra={"truck": self.name, "table": str(table)})

    def let_go(self) -> None:
        """Keep of the error what it says, not the places it passed: their frames hold what was used there, as a
        connection whose library complains when the process ends before it."""
        errors: list[BaseException | None] = [self.error, *(failure.error for failure in self.failed.values())]
        for error in errors:
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
            left = table in self.floors and found.phase is Phase.CATCHING_UP  # and whether it did was not known
            if table in self.arriving or left:
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
    trucks: tuple[str, ...] = ()
    """The trucks that were in it when it was made."""

    def __post_init__(self) -> None:
        self.trucks = tuple(run.name for run in self.runs)

    @property
    def name(self) -> str:
        trucks = ", ".join(run.name for run in self.runs)
        return f"{trucks} ({', '.join(map(str, sorted(self.tables)))})" if self.tables else trucks
