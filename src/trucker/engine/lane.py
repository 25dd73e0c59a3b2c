"""Trucks apart from the main lane: they catch up from their own position, then join.

A truck gets here when its destination could not be reached, when it starts from another position than the others,
or when it (or one of its tables) has just been copied. Each lane has a thread; it may run Spark jobs beside the
main lane's. Nothing but a position at the destination outlives the process: after a crash lanes are made anew from
those.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable

from trucker.change import Lsn
from trucker.engine.backoff import Backoff
from trucker.engine.destination import Destination
from trucker.engine.query import SourceQuery
from trucker.engine.truck_run import Lane, TruckRun
from trucker.errors import TruckerError
from trucker.observe.status import TruckPhase
from trucker.sinks.base import Batch, Phase, TableState

log = logging.getLogger("trucker.lane")

NEAR_BYTES = 4 << 20
WAIT_SECONDS = 0.1


class LaneRunner:
    """Works one lane off until it has joined, has no member left, or is told to stop."""

    def __init__(
        self,
        lane: Lane,
        query: SourceQuery,
        destination: Destination,
        *,
        backoff: Backoff,
        tries: int | None,
        spawn: Callable[[Lane], None],
    ) -> None:
        self._lane = lane
        self._query = query
        self._destination = destination
        self._backoff = backoff
        self._tries = tries
        self._spawn = spawn
        self._unsure = any(run.phase is TruckPhase.RETRYING for run in lane.runs)

    def run(self, stop: threading.Event) -> None:
        while self._still_alive() and not stop.is_set():
            if self._unsure and not self._reconcile(stop):
                continue
            if self._step():
                return
            if self._lane.position >= self._query.main:
                stop.wait(WAIT_SECONDS)  # a table has caught up before its truck has

    def _still_alive(self) -> bool:
        self._lane.runs = [run for run in self._lane.runs if run.phase is not TruckPhase.FAILED]
        return bool(self._lane.runs)

    def _step(self) -> bool:
        """One round; True when the lane has joined."""
        lane, query = self._lane, self._query
        if lane.position < query.main and query.reader.next_end(lane.position, NEAR_BYTES, query.main) < query.main:
            self._apply(query.reader.next_end(lane.position, query.max_bytes, query.main))
            return False
        with query.turn:  # near: the main lane waits for this one round
            if lane.position < query.main:
                self._apply(query.main)
            return not self._unsure and self._arrive() and query.join(lane)

    def _apply(self, end: Lsn) -> None:
        lane = self._lane
        failures = self._query.apply(lane.runs, lane.position, end, lane)
        if not failures:
            self._backoff.reset()
            return
        lane.runs = [run for run in lane.runs if run.name not in failures or failures[run.name].transient]
        self._unsure = bool(lane.runs)

    def _arrive(self) -> bool:
        """Before tables join their truck, their destination must say so."""
        lane = self._lane
        if not lane.tables or lane.position < self._query.main:
            return True
        state = TableState(Phase.STREAMING, lane.position)
        tables = {(run.name, table): state for run in lane.runs for table in lane.tables}
        failures = self._destination.commit(Batch(lane.position, lane.position, tables=tables), ())
        for run in lane.runs:
            if run.name in failures:
                run.error = failures[run.name]
        self._unsure = bool(failures)
        return not failures

    def _reconcile(self, stop: threading.Event) -> bool:
        """After a failure: wait, connect again, and take the position from the destination.

        Whether the commit that failed took effect only the destination knows (I4).
        """
        if self._tries is not None and self._backoff.tries >= self._tries:
            for run in self._lane.runs:
                run.phase = TruckPhase.FAILED
            self._lane.runs = []
            return False
        self._backoff.wait(stop)
        if stop.is_set():
            return False
        try:
            states = self._destination.open()
        except TruckerError as error:
            self._note(error)
            return False
        places: dict[Lsn, list[TruckRun]] = defaultdict(list)
        for run in self._lane.runs:
            state = states[run.name]
            tables = self._lane.tables
            places[min(state.tables[table].lsn for table in tables) if tables else state.lsn].append(run)
        self._regroup(places)
        self._unsure = False
        return True

    def _regroup(self, places: dict[Lsn, list[TruckRun]]) -> None:
        """Trucks of a lane that turn out to be at different positions go on in lanes of their own."""
        (self._lane.position, self._lane.runs), *others = sorted(places.items())
        for run in self._lane.runs:
            if not self._lane.tables:
                run.position = self._lane.position
        for position, runs in others:
            for run in runs:
                run.position = position
                run.phase = TruckPhase.CATCHING_UP
            self._spawn(Lane(self._lane.destination, runs, position))

    def _note(self, error: TruckerError) -> None:
        for run in self._lane.runs:
            run.error = error
            run.phase = TruckPhase.RETRYING if error.transient else TruckPhase.FAILED
        if not error.transient:
            self._lane.runs = []
