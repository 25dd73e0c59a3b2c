"""Keeps the destination record up to date while trucks advance."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from trucker.engine.destination.destination_record import DestinationRecord, Recorded
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError

log = logging.getLogger("trucker.source")

SECONDS: Final = 30.0
"""So old a noted position may be: a start without the destination keeps that much more of the change log."""


class RecordKeeper:
    """Writes the record of one source's trucks. Used by one thread at a time."""

    def __init__(self, record: DestinationRecord, runs: Mapping[str, TruckRun]) -> None:
        self._record = record
        self._runs = runs
        self._written = time.monotonic()

    def look(self, lanes: Sequence[Lane], away: Collection[str]) -> None:
        """Write now and then, and whenever a truck, or a table of one, has come."""
        reachable = (run for run in list(self._runs.values()) if self._is_due(run, away))
        if time.monotonic() - self._written >= SECONDS or any(self._is_news(run) for run in reachable):
            self.write(lanes, away)

    def _is_due(self, run: TruckRun, away: Collection[str]) -> bool:
        """Whether the truck's place is known and may have changed. The lanes of one that has ended do not name it, so
        that a position of a table that is behind it would be missing."""
        return run.truck.destination not in away and (not run.has_ended or self._record.get(run.name) is None)

    def _is_news(self, run: TruckRun) -> bool:
        recorded = self._record.get(run.name)
        return recorded is None or bool(run.stored and not frozenset(run.floors) <= recorded.tables)

    def write(self, lanes: Sequence[Lane], away: Collection[str]) -> None:
        """Note where the trucks are, but for those to destinations that are `away`, and those that have failed or are
        paused: of them is known what was noted.

        It is no reason to stop that it cannot be written: what is there is older, and as safe.
        """
        trucks = {run.name: _noted(run, list(lanes)) for run in list(self._runs.values()) if self._is_due(run, away)}
        self._written = time.monotonic()
        try:
            self._record.put(trucks)
        except (OSError, TruckerError) as error:
            log.warning("positions not recorded", extra={"reason": str(error)})


def _noted(run: TruckRun, lanes: Sequence[Lane]) -> Recorded:
    """Tables that catch up in lanes of their own, or are set aside, may be behind their truck."""
    if not run.stored:
        return Recorded(run.truck.destination)
    behind = [lane for lane in lanes if lane.tables and any(run is each for each in lane.runs)]
    aside = {table: failure.position for table, failure in list(run.failed.items()) if failure.held}
    tables = frozenset(run.floors).union(aside, *(lane.tables or () for lane in behind))
    needed = min([run.stored, *aside.values(), *(lane.position for lane in behind)])
    return Recorded(run.truck.destination, needed, tables)
