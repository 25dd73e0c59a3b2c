"""Finds tables that were dropped and created again, or whose name another table has now.

A publication holds tables by their oid, and what is known of a table's columns goes by their numbers: a new table is
therefore published before it is copied, and read by its own key and columns. What tells it from the old one is its oid.
After a crash in between, the destination still says that the table is to be copied, and the same is done again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from trucker.engine.project.publication_record import PublicationRecord
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.snapshot.copier import Need
from trucker.engine.truck.resolve import ResolvedSource, published_tables
from trucker.engine.truck.truck import InputTable, Truck
from trucker.sinks.batch import TruckState
from trucker.source.source_table import SourceTable

log = logging.getLogger("trucker.source")


def take_up(
    resolved: ResolvedSource, needs: Sequence[Need], schema_store: SchemaStore, record: PublicationRecord
) -> ResolvedSource:
    """Publish the tables of these needs that were made again, and have their trucks read them as they are now.

    The source as it is resolved then. The destinations have recorded that the tables are to be copied.
    """
    copied = [
        (need.run, table, before.look.oid)
        for need in needs
        for table in sorted(need.tables)
        if (before := schema_store.get(need.run.name, table)) is not None
    ]
    if not copied:
        return resolved
    with resolved.source.session("setup") as session:
        digests = session.digests({table for _, table, _ in copied})
        for run, table, oid in copied:
            if table not in digests or digests[table][0] == oid:
                continue
            source = session.load_table(table)
            resolved = _renewed(resolved, source)
            wanted = next(each for each in resolved.published if each.table == table)
            session.publish_again(wanted)
            run.truck = _reading(run.truck, source)
            record.put({(run.name, table): session.memberships([table])[table]})
    return resolved


def tell_gone(truck: Truck, state: TruckState | None) -> None:
    """Log the tables that a destination has rows of, and that are not among the truck's any more."""
    for table in sorted((state.tables.keys() if state else frozenset()) - truck.tables.keys()):
        log.warning(
            "table no longer belongs to the truck: its rows stay at the destination",
            extra={"truck": truck.name, "table": str(table)},
        )


def _renewed(resolved: ResolvedSource, source: SourceTable) -> ResolvedSource:
    trucks = tuple(_reading(truck, source) for truck in resolved.trucks)
    tables = {**resolved.tables, source.table: source}
    return replace(resolved, trucks=trucks, tables=tables, published=published_tables(trucks, tables))


def _reading(truck: Truck, source: SourceTable) -> Truck:
    """The truck with the table read by its new key."""
    table: InputTable | None = truck.tables.get(source.table)
    if table is None:
        return truck
    read = replace(table, key=source.schema.key, key_numbers=source.key_numbers)
    return replace(truck, tables={**truck.tables, source.table: read})
