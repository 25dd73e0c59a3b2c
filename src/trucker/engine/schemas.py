"""The tables' shapes as the stream tells them.

A Relation message is in force from where it stands in the log, so the shape a batch is written in is the newest one
that the batch's blocks use; the catalog only adds what the stream does not say (type names, NOT NULL, defaults of
added columns). What a batch's shapes are is told to the one who asks and not kept as "the current one": a lane that
catches up reads older shapes than the main lane, at the same time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from trucker.change import Column, TableId, TableSchema
from trucker.postgres.pgoutput import parse_relation

Describe = Callable[[TableId, tuple[Column, ...]], TableSchema]

KNOWN = 10_000


class Schemas:
    """Shapes by Relation message. `describe` asks the source's catalog; it is called once per new shape."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._known: OrderedDict[bytes, TableSchema] = OrderedDict()
        self._lock = threading.Lock()

    def follow(self, relations: Iterable[bytes], wanted: AbstractSet[TableId]) -> Mapping[TableId, TableSchema]:
        """The shapes of the wanted tables, from the relations of a batch in log order: of each the newest.

        A table that has more than one in the batch is looked at anew: its older rows get what the catalog now says of
        an added column, which may have been dropped and added with another default since it was looked at last.
        """
        found: dict[TableId, list[bytes]] = {}
        for message in relations:
            relation = parse_relation(message)
            if relation.table in wanted:
                found.setdefault(relation.table, []).append(message)
        with self._lock:
            return {table: self._schema(messages[-1], anew=len(messages) > 1) for table, messages in found.items()}

    def _schema(self, message: bytes, *, anew: bool) -> TableSchema:
        known = self._known.get(message)
        if known is None or anew:
            relation = parse_relation(message)
            known = self._known[message] = self._describe(relation.table, relation.columns)
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return known
