"""Looks regularly into the source's catalogue for changes of tables that the stream does not carry.

The stream describes a new shape with the first row in it, so a table without further changes keeps its old shape there.
A rewrite under the same type (`TYPE integer USING …`), a column dropped and added again under its name, a table dropped
or made again leave no trace in the stream at all. A look counts for a truck when all that was committed before it has
been applied, and nothing else has changed what is known of the table since: what the stream tells comes first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from trucker.capture.supervisor import CaptureSupervisor
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.source.base import Source, SourceTables
from trucker.source.look import Sighting
from trucker.table import TableId

log = logging.getLogger("trucker.shapes")

LOOK_SECONDS = 5.0
APPLY_SECONDS = 0.02


class CatalogWatch:
    """Watches the tables of one source, as its publication sends them."""

    def __init__(
        self,
        source: Source,
        runs: Collection[TruckRun],
        stream: SourceStream,
        schema_store: SchemaStore,
        arrivals: Callable[[SourceTables], None] | None = None,
    ) -> None:
        """`arrivals` is called with the session of each look: it looks for tables that trucks do not have yet."""
        self._source = source
        self._arrivals = arrivals
        self._runs = runs
        self._tables = frozenset(table for run in runs for table in run.truck.tables)
        self._stream = stream
        self._schema_store = schema_store
        self._digests: dict[TableId, tuple[int, str] | None] = {}
        self._waiting: dict[TableId, tuple[Sighting, int]] = {}
        self._since: dict[TableId, int] = {}

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set. While the source cannot be reached, capture reports it."""
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
                self.judge()
            except TruckerError as error:
                log.debug("reading the catalogue failed", extra=error.facts())

    def once(self, capture: CaptureSupervisor, stop: threading.Event) -> bool:
        """Look, let the stream apply what is in the log by now, and judge what was seen; whether nothing is left of it.

        A table whose shape the stream has changed meanwhile has to be looked at once more.
        """
        stream = self._stream
        capture.wait_seen(self.look(), stop)
        stream.start(once=True)
        while stream.active and not stop.wait(APPLY_SECONDS):
            pass
        return stop.is_set() or self.judge()

    def look(self) -> Lsn:
        """Look at the tables that have changed since the last time; where trucks must be for that to count."""
        with self._source.reading_session("catalog") as session:
            if self._arrivals is not None:
                self._arrivals(session)
            horizon = session.horizon()
            digests = session.digests(self._tables)
            missing = (None, "never looked at")
            changed = {t for t in self._tables if self._digests.get(t, missing) != digests.get(t)}
            self._since |= dict.fromkeys(self._tables - changed - self._waiting.keys(), horizon)
            if changed:
                # Counted before the look: what changes meanwhile makes it void.
                counts = {table: self._schema_store.changes(table) for table in changed}
                for sighting in session.sightings(changed):
                    dated = replace(sighting, since=self._since.get(sighting.table, 0))
                    self._waiting[sighting.table] = dated, counts[sighting.table]
                    self._digests[sighting.table] = digests.get(sighting.table)
        return max((sighting.lsn for sighting, _ in self._waiting.values()), default=Lsn(0))

    def judge(self) -> bool:
        """Judge what all trucks have caught up with; whether nothing is left to be judged, or looked at again."""
        for table, (sighting, count) in list(self._waiting.items()):
            if self._schema_store.changes(table) != count:
                del self._waiting[table], self._digests[table]
            elif self._stream.examine(sighting, self._runs):
                del self._waiting[table]
        return self._digests.keys() == self._tables and not self._waiting
