"""Starts a project although some destinations do not answer, and takes them in when they do.

One that the project has used before is waited for, as one that goes away later is: its trucks are *retrying*, all else
runs. When it answers, its trucks take up from what it stores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from trucker.changelog.reader import LogReader
from trucker.engine.destination.destination import Destination
from trucker.engine.destination.destination_record import DestinationRecord
from trucker.engine.project.continuity import needed_from, refuse_pruned
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.process.backoff import Backoff
from trucker.sinks.batch import Batch, TableState, TruckState
from trucker.sinks.target import TruckTable

if TYPE_CHECKING:
    from trucker.engine.project.source_run import SourceRun

log = logging.getLogger("trucker.destination")


class AbsentDestinations:
    """The destinations of one source that do not answer yet, with the reasons, and the trucks that wait for them."""

    def __init__(
        self, noted: DestinationRecord, runs: Mapping[str, TruckRun], destinations: Mapping[str, Destination]
    ) -> None:
        self._destinations = destinations
        self.reasons: dict[str, TruckerError] = {}
        self._noted = noted
        self._runs = runs

    def runs_to(self, destination: str) -> list[TruckRun]:
        return [run for run in list(self._runs.values()) if run.truck.destination == destination]

    def wait(self) -> list[TruckRun]:
        """Let their trucks wait. The log is kept from where each was when that was last noted."""
        runs = [run for run in list(self._runs.values()) if run.truck.destination in self.reasons]
        for run in runs:
            run.retry_later(self.reasons[run.truck.destination])
            recorded = self._noted.get(run.name)
            if recorded is not None and recorded.lsn:
                run.keep_from(recorded.lsn)
        return runs

    def note(self, destination: str, error: TruckerError) -> None:
        """It still does not answer."""
        if destination in self.reasons:
            self.reasons[destination] = error
            for run in self.runs_to(destination):
                run.retry_later(error)

    def give_up(self, destination: str) -> None:
        """It will not answer, or not as it has to: its trucks have failed."""
        error = self.reasons.pop(destination, None)
        for run in self.runs_to(destination) if error is not None else ():
            run.fail(error)

    # -- tables that must be copied again ---------------------------------------------------------------------------

    def tell(self, destination: str, tables: Mapping[TruckTable, TableState]) -> None:
        """Tell a destination that tables must be copied again. Durable when this returns.

        One that does not answer yet gets it when it does (`resume`); that is recorded, so that no crash hides it.
        """
        if destination not in self.reasons:
            self._store(destination, tables)
            return
        for run in self.runs_to(destination):
            again = frozenset(table for truck, table in tables if truck == run.name)
            self._noted.mark(run.name, self._noted.again(run.name) | again)

    def tell_marked(self, states: Mapping[str, TruckState]) -> frozenset[TruckTable]:
        """Store at destinations that answer now which tables must be copied again; the tables."""
        to_copy: set[TruckTable] = set()
        for name, run in self._runs.items():
            marked = self._noted.again(name) & (states[name].tables.keys() if name in states else frozenset())
            if marked and run.truck.destination not in self.reasons:
                self._store(run.truck.destination, {(name, table): BEFORE_COPY for table in marked})
                to_copy |= {(name, table) for table in marked}
        return frozenset(to_copy)

    def resume(
        self, destination: str, states: Mapping[str, TruckState], incomplete: frozenset[TruckTable], reader: LogReader
    ) -> tuple[list[TruckRun], frozenset[TruckTable]]:
        """The trucks of a destination that answers which can go on, and the tables that must be copied again."""
        runs: list[TruckRun] = []
        to_copy: set[TruckTable] = set()
        for run in self.runs_to(destination):
            state = states.get(run.name)
            stored = state.tables.keys() if state else frozenset()
            again = self._noted.again(run.name) | {table for truck, table in incomplete if truck == run.name}
            tables = {(run.name, table): BEFORE_COPY for table in again & stored}
            try:
                if tables:
                    self._store(destination, tables)
                refuse_pruned(reader, needed_from([run.truck], states, incomplete | tables.keys()))
            except TruckerError as error:
                run.fail(error)
            to_copy |= tables.keys()
            if run.phase is not TruckPhase.FAILED:
                runs.append(run)
        return runs, frozenset(to_copy)

    def _store(self, destination: str, tables: Mapping[TruckTable, TableState]) -> None:
        failures = self._destinations[destination].commit(Batch(Lsn(0), Lsn(0), tables=tables), ())
        for error in failures.values():
            raise error


class Awaited:
    """Waits for one destination, in a thread of its own."""

    def __init__(
        self,
        name: str,
        open_all: Callable[[str], Mapping[str, TruckState]],
        sources: Callable[[], Sequence[SourceRun]],
        *,
        turn: threading.Lock,
        answered: Callable[[str], None],
        backoff: Backoff,
        tries: int | None,
    ) -> None:
        """`open_all` opens the destination for every source; what is stored there. `turn` is held while sources are
        replaced; `answered` is called in it at the end of the wait. `tries` is how often at the most."""
        self._name = name
        self._open_all = open_all
        self._sources = sources
        self._turn = turn
        self._answered = answered
        self._backoff = backoff
        self._tries = tries

    def start(self, stop: threading.Event) -> None:
        threading.Thread(target=self._run, args=[stop], name=f"await {self._name}", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set() and not self._try(stop):
                pass
        except Exception as error:
            log.exception("starting the trucks of a destination failed", extra={"destination": self._name})
            for source in self._sources():
                source.fatal = error

    def _try(self, stop: threading.Event) -> bool:
        """Whether nothing is left to wait for."""
        if self._tries is not None and self._backoff.tries >= self._tries:
            self._give_up(None)
            return True
        self._backoff.wait(stop)
        if stop.is_set():
            return True
        asked = self._sources()
        try:
            states = self._open_all(self._name)
        except TruckerError as error:
            if not error.transient:
                self._give_up(error)
                return True
            for source in self._sources():
                source.absent.note(self._name, error)
            return False
        with self._turn:
            if self._sources() != asked:  # others run by now, of which the states say nothing
                return False
            log.info("destination available: its trucks start", extra={"destination": self._name})
            for source in asked:
                source.resume(self._name, states)
            self._answered(self._name)
        return True

    def _give_up(self, error: TruckerError | None) -> None:
        with self._turn:
            for source in self._sources():
                if error is not None:
                    source.absent.note(self._name, error)
                source.absent.give_up(self._name)
            self._answered(self._name)
