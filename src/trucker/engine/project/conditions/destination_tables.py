"""The condition that the destination tables are still the ones that trucker filled."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.engine.destination.table_watch import concerning
from trucker.engine.project.conditions.condition import failure
from trucker.engine.project.conditions.situation import Situation
from trucker.errors import TruckerError
from trucker.finding import Finding
from trucker.sinks.base import RecognizesTables


def tables(situation: Situation) -> Iterator[Finding]:
    """No table or column that trucker has filled was dropped or made again. A run starts all the same: only the truck
    concerned stops."""
    trucks = {truck.name: (source, truck) for source in situation.sources.values() for truck in source.trucks}
    for destination, sink in situation.sinks.items():
        try:
            changes = sink.changed_tables() if isinstance(sink, RecognizesTables) else ()
        except TruckerError:  # what is wrong with the destination has been found
            continue
        for change in changes:
            source, truck = trucks.get(change.truck, (None, None))
            if source is None or truck is None or truck.destination != destination:
                continue
            described = source.tables.get(change.source)
            columns = described.schema.names if described else ()
            relevant = concerning(change, truck, columns)
            if relevant is not None:
                yield failure(f"truck {truck.name}", relevant.error(), waits=True)
