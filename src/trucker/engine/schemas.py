"""The tables' shapes as the stream tells them, and the targets that follow from them.

A Relation message is in force from where it stands in the log, so the shape a batch is written in is the newest one
that the batch's blocks use; the catalog only adds what the stream does not say (type names, NOT NULL, defaults of
added columns).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from trucker.change import Column, TableId, TableSchema
from trucker.engine.plan import Truck, shape
from trucker.postgres.pgoutput import parse_relation
from trucker.sinks.base import Target

Describe = Callable[[TableId, tuple[Column, ...]], TableSchema]


class Schemas:
    """Known shapes by table. `describe` asks the source's catalog; it is called once per new shape."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._schemas: dict[TableId, TableSchema] = {}
        self._relations: dict[bytes, TableId] = {}
        self._lock = threading.Lock()

    def follow(self, relations: Iterable[bytes]) -> frozenset[TableId]:
        """Take note of the relations of a batch, in log order; the tables they describe."""
        tables = set()
        with self._lock:
            for message in relations:
                relation = parse_relation(message)
                tables.add(relation.table)
                known = self._schemas.get(relation.table)
                if known is None or shape(known.columns) != shape(relation.columns):
                    self._schemas[relation.table] = self._describe(relation.table, relation.columns)
        return frozenset(tables)

    def target(self, truck: Truck, table: TableId) -> Target:
        """The truck's target for a table that `follow` has seen."""
        return truck.tables[table].target(truck.name, self._schemas[table])
