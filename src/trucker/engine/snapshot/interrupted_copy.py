"""First copies in one go that were interrupted, and how much of them the destination has.

Such a copy can be continued by chunks from the position of its snapshot: of the pages that it has read the destination
has the rows as they were there, which is what a cursor of an incremental copy says of the pages before it. The change
log must have everything since, and the truck must want the same of the table as then. Parts of the copy that are still
on their way from a process that has been killed are refused, or are read once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trucker.changelog.reader import LogReader
from trucker.engine.destination.destination import Destination
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.snapshot.copy_cursor import CopyCursor
from trucker.engine.snapshot.copy_record import CopyRecord
from trucker.engine.snapshot.row_steps import steps_digest
from trucker.engine.truck.truck import Truck
from trucker.lsn import Lsn
from trucker.sinks.base import KeepsCopiedParts
from trucker.table import TableId

CONTINUED_BYTES: Final = 16 << 20
"""A table from this size on is continued when its first copy was interrupted; a smaller one is copied as quickly."""


@dataclass(frozen=True, slots=True)
class InterruptedCopy:
    """Tables of a truck that were copied in one snapshot, and where to continue. `attempt` is that copy's name, `start`
    the position of its snapshot."""

    attempt: str
    start: Lsn
    cursors: Mapping[TableId, CopyCursor]

    @property
    def tables(self) -> frozenset[TableId]:
        return frozenset(self.cursors)

    def only(self, tables: Collection[TableId]) -> InterruptedCopy:
        """The same of these tables alone."""
        return replace(self, cursors={table: cursor for table, cursor in self.cursors.items() if table in tables})


def interrupted_copy(
    truck: Truck,
    tables: Collection[TableId],
    destination: Destination,
    record: CopyRecord,
    schema_store: SchemaStore,
    reader: LogReader,
) -> InterruptedCopy | None:
    """What can be continued of the truck's first copies of these tables; None where nothing can."""
    attempts: dict[str, dict[TableId, Collection[int]]] = defaultdict(dict)
    with destination.using() as sink:
        if not isinstance(sink, KeepsCopiedParts):
            return None
        for table in tables:
            attempt, parts = sink.copied_parts((truck.name, table))
            if parts:
                attempts[attempt][table] = parts
    copies = [
        copy
        for attempt, copied in attempts.items()
        if (copy := _continued(truck, attempt, copied, record, schema_store)) is not None
        and reader.oldest() <= copy.start
    ]
    # A truck that begins has one position: that of one snapshot.
    return max(copies, key=lambda copy: len(copy.cursors), default=None)


def _continued(
    truck: Truck,
    attempt: str,
    copied: Mapping[TableId, Collection[int]],
    record: CopyRecord,
    schema_store: SchemaStore,
) -> InterruptedCopy | None:
    plan = record.get(attempt)
    if plan is None:
        return None
    cursors, steps = {}, steps_digest(truck.config)
    for table, parts in copied.items():
        planned, written = plan.copies.get((truck.name, table)), schema_store.get(truck.name, table)
        if planned is None or written is None or not truck.continues(table):
            continue
        if planned.serves(truck.tables[table], written, steps):
            cursors[table] = planned.cursor(parts)
    return InterruptedCopy(attempt, plan.lsn, cursors) if cursors else None
