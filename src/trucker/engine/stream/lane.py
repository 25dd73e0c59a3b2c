"""Runs trucks that have fallen behind in lanes of their own, until they have caught up and join the main lane.

A truck gets here when its destination could not be reached, when it starts from another position than the others,
or when it (or one of its tables) has just been copied. Each lane has a thread; it may run Spark jobs beside the
main lane's. Nothing but a position at the destination outlives the process: after a crash lanes are made anew from
those.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from trucker.changelog.format.log_range import LogRange
from trucker.engine.destination.destination import Destination
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.lane import Absent, Lane, note_failure
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SinkError, TruckerError
from trucker.lsn import Lsn
from trucker.process.backoff import Backoff
from trucker.sinks.batch import Phase, TableState, TruckState

log = logging.getLogger("trucker.lane")


class LaneRunner:
    """Works one lane off until it has joined, has no member left, or is stopped."""

    def __init__(
        self,
        lane: Lane,
        stream: SourceStream,
        destination: Destination,
        *,
        backoff: Backoff,
        tries: int | None,
        spawn: Callable[[Lane], None],
        goal: Lsn | None = None,
    ) -> None:
        """With a `goal` the lane does not join: it ends there, wherever the main lane is."""
        self._lane = lane
        self._goal = goal
        self._stream = stream
        self._destination = destination
        self._backoff = backoff
        self._tries = tries
        self._spawn = spawn
        self.arrived = False
        self._proven = not lane.unsure

    def run(self, stop: threading.Event) -> bool:
        """Whether it has joined, or is at its goal."""
        while self.still_alive() and not stop.is_set():
            if self.round(stop):
                return True
        return False

    def round(self, stop: threading.Event) -> bool:
        """One round: find out where the lane is, if that is not sure, and go on from there. True when it has joined,
        or is at its goal."""
        if self._lane.unsure and not self._reconcile(stop):
            return self.arrived
        before = self._lane.position
        try:
            if self._step():
                return True
        except TruckerError as error:  # the log cannot be read
            self._note(self._lane.runs, error)
            self._lane.unsure = True
        if self._lane.position >= self._stream.main and (self._goal is None or self._lane.position == before):
            # A table has caught up before its truck has, or the log has not come to the goal.
            stop.wait(self._stream.pace.wait_seconds)
        return False

    def still_alive(self) -> bool:
        """Whether one of its trucks still runs."""
        self._lane.runs = [run for run in self._lane.runs if not run.has_ended]
        return bool(self._lane.runs)

    def _step(self) -> bool:
        """One round; True when the lane has joined.

        The others wait for the last round only, and not for a destination that has not taken anything since it was in
        trouble: it may be reachable and take nothing still, as when somebody holds a lock there.
        """
        lane, stream = self._lane, self._stream
        if self._goal is not None:
            return self._approach(self._goal)
        if self._is_far(stream.main) or (lane.position < stream.main and not self._proven):
            self._apply(stream.reader.next_range(lane.position, stream.max_bytes, stream.main))
            return False
        with stream.turn:  # near: the main lane waits for this one round
            if lane.position < stream.main:
                self._apply(stream.reader.range(lane.position, stream.main))
            return not lane.unsure and stream.join(lane)

    def _approach(self, goal: Lsn) -> bool:
        """One round towards the goal; True when everything before it has been applied."""
        lane, reader = self._lane, self._stream.reader
        complete = reader.durable().seen_lsn >= goal
        batch = reader.next_range(lane.position, self._stream.max_bytes, goal)
        if batch.end > lane.position:
            self._apply(batch)
            return False
        return complete

    def _is_far(self, main: Lsn) -> bool:
        """Whether more than a little is missing."""
        reader, position, near_bytes = self._stream.reader, self._lane.position, self._stream.pace.near_bytes
        near = reader.next_end(position, near_bytes, main)
        return position < near and reader.next_end(near, near_bytes, main) > near

    def _apply(self, batch: LogRange) -> None:
        lane = self._lane
        failures = self._stream.apply(lane.runs, batch, lane)
        self._proven = not failures
        if not failures:
            self._backoff.reset()
            return
        lane.runs = [run for run in lane.runs if run.name not in failures or failures[run.name].transient]
        lane.unsure = bool(lane.runs)

    def _reconcile(self, stop: threading.Event) -> bool:
        """After a failure: wait, connect again, and take the position from the destination.

        Whether the commit that failed took effect only the destination knows (I4).
        """
        if self._tries is not None and self._backoff.tries >= self._tries:
            for run in self._lane.runs:
                run.fail()
            return False
        self._backoff.wait(stop)
        if stop.is_set():
            return False
        try:
            states = self._destination.open()
        except TruckerError as error:
            self._note(self._lane.runs, error)
            return False
        self.arrived = self._follow(states)
        if self.arrived:
            return False
        places: dict[Lsn, list[TruckRun]] = defaultdict(list)
        for run in self._lane.runs:
            place = self._place(run, states.get(run.name))
            if place is None:
                self._note([run], _forgotten(run))
            else:
                places[place].append(run)
        if not places or self._lane.over:
            return False
        self._regroup(places)
        self._lane.unsure = False
        return True

    def _follow(self, states: Mapping[str, TruckState]) -> bool:
        """Whether a commit whose answer was lost has made the lane's tables follow their truck.

        It has moved the truck too, which therefore asks the destination before it commits again and learns of them.
        Those that follow are no longer the lane's: a start finds tables at one place that were in several lanes before,
        and the commit that was under way then, one lane's end, may land when the start has looked.
        """
        lane = self._lane
        if not lane.tables:
            return False
        states = {run.name: states[run.name] for run in lane.runs if run.name in states}
        followed = {
            table
            for table in lane.tables
            if states and all(_streams(state.tables.get(table)) for state in states.values())
        }
        for run in lane.runs:
            run.relieve(followed)
        if followed == lane.tables:
            return True
        lane.tables -= followed
        return False

    def _place(self, run: TruckRun, state: TruckState | None) -> Lsn | None:
        """Where the destination says the lane's truck or tables are; None where it knows nothing of them any more."""
        tables = self._lane.tables
        if state is None or not (tables or frozenset(run.floors)) <= state.tables.keys():
            return None
        again = [table for table in tables or run.floors if state.tables[table].phase is Phase.COPYING]
        if again:  # said by a commit whose answer was lost
            whole = dict.fromkeys(tables or again, "the destination has the table as not copied")
            self._stream.copy_again(run, whole, self._lane)
        if tables:
            self._lane.staged = None  # what a commit is to bring after a failure is staged again
            self._lane.cursor = next(iter(state.tables[table].cursor for table in sorted(tables)))
            if not self._lane.cursor:  # the copy is complete, perhaps by a commit whose answer was lost
                self._lane.absent = Absent.NONE
            return min(state.tables[table].lsn for table in tables)
        run.reconcile(state)
        return state.lsn or None

    def _regroup(self, places: dict[Lsn, list[TruckRun]]) -> None:
        """Trucks of a lane that turn out to be at different positions go on in lanes of their own."""
        (self._lane.position, self._lane.runs), *others = sorted(places.items())
        for position, runs in others:
            for run in runs:
                run.catch_up()
            self._spawn(Lane(self._lane.destination, runs, position))

    def _note(self, runs: Sequence[TruckRun], error: TruckerError) -> None:
        """A failure of these trucks; one for good ends them, which `still_alive` sees."""
        for run in runs:
            note_failure(run, error, self._lane)


def _streams(table: TableState | None) -> bool:
    return table is not None and table.phase is Phase.STREAMING


def _forgotten(run: TruckRun) -> SinkError:
    return SinkError(
        f"{run.truck.destination} no longer has the position of truck {run.name}",
        remedy=f"restore trucker's own tables; or run `trucker reset --truck {run.name}`, then `trucker run`, "
        "which copies its tables again",
        code="TRK417",
    )
