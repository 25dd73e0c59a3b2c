"""Where in the WAL tables begin that are copied incrementally, or not at all, and their shapes there."""

from __future__ import annotations

import threading
from typing import Final

from trucker.engine.schema.schema_changes import SchemaReading, copied
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.snapshot.copier import Need
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import SourceUnavailable, TruckerError
from trucker.lsn import Lsn
from trucker.source.base import CopySession, Source
from trucker.table import TableId

LOOKS: Final = 5
"""How often the shapes of tables are read, until they stay the same meanwhile."""


def readings_at_start(
    source: Source, schema_store: SchemaStore, need: Need, stop: threading.Event
) -> tuple[dict[TableId, SchemaReading], Lsn]:
    """The tables, which are published, as they are at a position: no shape changed between the look at it and the
    position. Every transaction that commits after it was published as a whole."""
    tables = sorted(need.tables)
    with source.copy_session() as session:
        session.await_ended(stop)  # what they wrote before the tables were published is not in the stream
        for _ in range(LOOKS):
            digests = session.digests(tables)
            readings = {}
            for table in tables:
                try:
                    readings[table] = _reading(session, schema_store, need.run, table)
                except TruckerError as error:
                    raise error.of_table(table) from None
            start = session.watermark()
            if session.digests(tables) == digests:
                return readings, start
    raise SourceUnavailable(
        f"truck {need.run.name}: its tables are altered again and again while their copy begins",
        remedy="none needed: the copy is tried again",
    )


def _reading(session: CopySession, schema_store: SchemaStore, run: TruckRun, table: TableId) -> SchemaReading:
    source, look = session.load_table(table), session.look(table)
    if look is None:
        raise SourceUnavailable(f"table {table} was dropped", remedy="none needed: the copy is tried again")
    before = schema_store.get(run.name, table)
    return copied(run.name, run.truck.tables[table], source.schema, look, before)
