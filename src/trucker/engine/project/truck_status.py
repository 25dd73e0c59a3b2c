"""What is shown of a truck: what is known of it, and how far that is behind its source."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from trucker.capture.supervisor import Hearing
from trucker.changelog.format.durable import Durable
from trucker.engine.destination.destination import Destination
from trucker.engine.truck.life import TruckLife
from trucker.engine.truck.table_failure import TableFailure
from trucker.engine.truck.truck_run import TruckRun
from trucker.lsn import Lsn
from trucker.observe.status import FailedTable, TruckPhase, TruckStatus
from trucker.table import TableId


class Heard(Protocol):
    """What a status needs to know of a source that runs."""

    name: str
    source_lsn: Lsn
    destinations: Mapping[str, Destination]

    @property
    def durable(self) -> Durable | None: ...

    @property
    def trouble(self) -> str | None: ...

    def hearing(self, now: float) -> Hearing: ...


class TruckStatuses:
    """Makes the statuses of a project's trucks, one after the other."""

    def __init__(self) -> None:
        self._complete: dict[str, float] = {}

    def of(self, source: Heard, run: TruckRun, trouble: str | None, *, running: bool) -> TruckStatus:
        """The status of a truck now. `trouble` is what keeps Spark from working, if anything."""
        durable = source.durable
        life = run.life  # once, so that all of it is of one instant; and last, so that it does not seem to lag
        seen_lsn = durable.seen_lsn if durable else source.source_lsn
        behind = max(0, durable.commit_lsn - life.position) if durable and life.position else None
        now = time.time()
        hearing = source.hearing(now) if running else Hearing()
        error = str(life.error) if life.error else source.trouble or trouble
        return TruckStatus(
            run.name,
            source.name,
            run.truck.destination,
            life.phase,
            str(life.position) if life.position else None,
            str(Lsn(seen_lsn)) if seen_lsn else None,
            behind,
            self._lag(run.name, life, behind, hearing, now) if running else None,
            life.rows,
            life.batches,
            tuple(run.copying.values()),
            error,
            source.destinations[run.truck.destination].letters(run.name),
            tuple(f"{table}.{name}" for table, names in sorted(life.left_out.items()) for name in names),
            tuple(_failed_table(table, failure, durable) for table, failure in sorted(life.failed.items())),
            hearing.settled,
            hearing.blind_since,
        )

    def _lag(self, truck: str, life: TruckLife, behind: int | None, hearing: Hearing, now: float) -> float | None:
        """The age of the oldest change that may be missing at the destination; None where that is not known.

        A truck that had applied all there was when the source was last heard misses nothing that is older than that,
        however old the last change that it applied.
        """
        if behind is None or hearing.settled is None or life.phase is TruckPhase.STARTING:
            return None
        if not behind:
            self._complete[truck] = hearing.settled
            return 0.0 if hearing.current else max(0.0, now - hearing.settled)
        complete = max(life.applied_time / 1e6, self._complete.get(truck, 0.0))
        return max(0.0, now - complete) if complete else None


def _failed_table(table: TableId, failure: TableFailure, durable: Durable | None) -> FailedTable:
    behind = max(0, durable.commit_lsn - failure.position) if durable else None
    return FailedTable(str(table), str(failure.error), failure.since, str(failure.position), behind, failure.held)
