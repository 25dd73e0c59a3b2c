"""Changes of tables that the stream never tells: noticed by looking at the catalogue now and then.

A rewrite under the same type (`TYPE integer USING …`), a column dropped and added again under its name, a table dropped
or made again leave no trace in the stream. A look counts for a truck when all that was committed before it has been
applied, so that whatever the stream does tell has been followed already.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import closing

from trucker.change import Lsn, TableId
from trucker.engine.query import SourceQuery
from trucker.engine.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.postgres.catalog import Connection
from trucker.postgres.shape import Look, digests, look, position

log = logging.getLogger("trucker.shapes")

LOOK_SECONDS = 5.0

Connect = Callable[[], Connection]


class ShapeWatch:
    """Watches the tables of one source."""

    def __init__(self, connect: Connect, runs: Collection[TruckRun], query: SourceQuery) -> None:
        self._connect = connect
        self._runs = runs
        self._tables = frozenset(table for run in runs for table in run.truck.tables)
        self._query = query
        self._seen: dict[TableId, tuple[int, str] | None] = {}
        self._waiting: dict[TableId, tuple[Look | None, Lsn]] = {}

    def run(self, stop: threading.Event) -> None:
        """Look until told to stop. What keeps it from looking keeps capture from the source, too, which says so."""
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
                self.judge()
            except TruckerError as error:
                log.debug("the catalogue could not be read", extra={"reason": error.message})

    def look(self) -> Lsn:
        """Look at what has changed since the last time; up to where trucks must be for that to count."""
        with closing(self._connect()) as database:
            found = digests(database, self._tables)
            for table in self._tables:
                if table not in self._seen or self._seen[table] != found.get(table):
                    self._waiting[table] = (look(database, table), position(database))
                    self._seen[table] = found.get(table)
        return max((lsn for _, lsn in self._waiting.values()), default=Lsn(0))

    def judge(self) -> None:
        """Judge what all trucks have caught up with; the rest waits."""
        self._waiting = {
            table: (seen, lsn)
            for table, (seen, lsn) in self._waiting.items()
            if not self._query.examine(table, seen, lsn, self._runs)
        }
