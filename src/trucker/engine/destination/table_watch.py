"""Looks regularly for destination tables that were dropped or altered while the project runs.

A commit compares the tables that it writes (`sinks.table_identity`). Tables without changes are compared here, and all
of them at the start. Such a table is set aside, or its truck fails, with the choice of what to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from trucker.engine.destination.destination import Destination
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.truck.truck import Truck
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.sinks.table_identity import TableChange
from trucker.source.base import Source
from trucker.table import TableId

log = logging.getLogger("trucker.tables")

LOOK_SECONDS = 10.0

FailTruck = Callable[[TruckRun, TruckerError], None]


class TableWatch:
    """Watches the destination tables of one source's trucks."""

    def __init__(
        self,
        destinations: Mapping[str, Destination],
        runs: Mapping[str, TruckRun],
        schema_store: SchemaStore,
        source: Source,
        fail: FailTruck,
    ) -> None:
        self._destinations = destinations
        self._runs = runs
        self._schema_store = schema_store
        self._source = source
        self._fail = fail

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set."""
        while not stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Fail the tables that are others. A destination that is away is looked at the next time."""
        for name in sorted({run.truck.destination for run in self._runs.values()}):
            try:
                for change in self._destinations[name].changed_tables():
                    self._judge(name, change)
            except TruckerError as error:
                log.debug("reading the tables failed", extra={"destination": name, "reason": error.message})

    def _judge(self, destination: str, change: TableChange) -> None:
        run = self._runs.get(change.truck)
        if run is None or run.truck.destination != destination or run.has_ended:
            return
        if change.source not in run.floors:  # set aside already, or catching up, by commits that compare it
            return
        written = self._schema_store.get(change.truck, change.source)
        called = written.names.values() if written else ()
        columns = () if change.missing or change.replaced else {*self._columns(change.source), *called}
        relevant = concerning(change, run.truck, columns)
        if relevant is not None:
            self._fail(run, relevant.error())

    def _columns(self, table: TableId) -> frozenset[str]:
        """The columns that a source table has now."""
        with self._source.reading_session("catalog") as session:
            look = session.look(table)
            return frozenset(look.numbers) if look is not None else frozenset()


def concerning(change: TableChange, truck: Truck, columns: Collection[str]) -> TableChange | None:
    """The change as far as it concerns what the truck still writes.

    `columns` are those that the source has: another one may be gone from the destination, too. Of a truck with rules or
    SQL they say nothing.
    """
    if change.source not in truck.tables:
        return None
    return change if truck.config is not None else change.among(columns)
