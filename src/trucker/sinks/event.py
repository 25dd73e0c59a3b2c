"""Events, which an `EventSink` appends to its store: by column (`Events`), or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.lsn import Lsn
from trucker.table import TableId

EVENT_OPERATIONS: Final = ("insert", "update", "delete", "truncate", "tombstone", "begin", "end")
"""What an event tells. A tombstone follows a delete in Debezium's envelope; begin and end mark a transaction."""

TOMBSTONE: Final = EVENT_OPERATIONS.index("tombstone")
BEGIN: Final = EVENT_OPERATIONS.index("begin")
END: Final = EVENT_OPERATIONS.index("end")

NO_TABLE: Final = TableId("", "")
"""The table of events that mark a transaction."""


class Event(NamedTuple):
    """One event.

    `value` is its JSON without a line feed, None for a tombstone. `key` is JSON of the row's key; None where the table
    has none, for truncates, and for marks of transactions but in Debezium's envelope, which gives these a key of their
    own. `table` is the table as the truck's output names it. `operation` is one of `EVENT_OPERATIONS`; rows of a copy
    (`snapshot`) are inserts.

    `id` is unique within the truck and the same whenever the event comes again: after a retry, after a restart, and
    however batches are cut then. It holds nothing of the row:

        16/B374D848/3            a change: its transaction's commit LSN and its ordinal in it
        16/B374D848/3/public.t   a truncate: the tables of one statement have one place
        16/B374D848/3/delete     of an update that changes the key, in envelopes that split it
        16/B374D848/3/tombstone  behind a delete
        16/B374D848/begin        a mark; for a table that catches up by itself its name follows
        16/B374D848/3/9f3c…      a row that the truck's SQL returned, or that was read again at the source: a digest of
                                 the row tells it from others, as its place depends on where batches are cut
        first-0c1d2e3f4a5b/public.orders/7/12
                                 a row of a copy: the name of the copy, the table, its part, the row's number in it. A
                                 copy that begins anew is another reading of the table, with other ids

    `(commit_lsn, ordinal)` orders the events of a truck's stream; events at the same place are in their order. The
    ordinal of a mark is -1 (begin), or one more than that of the last event of the transaction (end); of a copied row
    it is its number in its part.
    """

    value: bytes | None
    key: bytes | None
    table: TableId
    operation: str
    commit_lsn: int
    ordinal: int
    id: str
    snapshot: bool


@dataclass(frozen=True, slots=True)
class Events:
    """A piece of a truck's events by column, in order; some thousands of rows. The columns are those of `Event`.

    `table` has numbers of `tables`, `operation` numbers of `EVENT_OPERATIONS`. A piece is of a copy as a whole, or of
    the stream. Of a sink whose values end in a line feed `key` and `id` are null.
    """

    value: pa.LargeStringArray
    key: pa.LargeStringArray
    id: pa.LargeStringArray
    tables: tuple[TableId, ...]
    table: npt.NDArray[np.int32]
    operation: npt.NDArray[np.uint8]
    commit_lsn: npt.NDArray[np.uint64]
    ordinal: npt.NDArray[np.int64]
    snapshot: bool

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def nbytes(self) -> int:
        """The bytes of values, keys and ids."""
        return int(self.value.nbytes + self.key.nbytes + self.id.nbytes)

    def slice(self, start: int, stop: int) -> Events:
        """The events from `start` up to and without `stop`; nothing is copied."""
        rows = slice(start, stop)
        return Events(
            self.value[rows],
            self.key[rows],
            self.id[rows],
            self.tables,
            self.table[rows],
            self.operation[rows],
            self.commit_lsn[rows],
            self.ordinal[rows],
            self.snapshot,
        )

    def take(self, rows: npt.NDArray[np.int64]) -> Events:
        """The events of these numbers, in their order."""
        chosen = pa.array(rows, pa.int64())
        return Events(
            self.value.take(chosen),
            self.key.take(chosen),
            self.id.take(chosen),
            self.tables,
            self.table[rows],
            self.operation[rows],
            self.commit_lsn[rows],
            self.ordinal[rows],
            self.snapshot,
        )

    def rows(self) -> Iterator[Event]:
        """The events one by one."""
        columns = (self.value.cast(pa.large_binary()), self.key.cast(pa.large_binary()), self.id)
        numbers = (self.table, self.operation, self.commit_lsn, self.ordinal)
        for value, key, name, table, operation, lsn, ordinal in zip(
            *(column.to_pylist() for column in columns), *(column.tolist() for column in numbers), strict=True
        ):
            known, what = self.tables[table], EVENT_OPERATIONS[operation]
            yield Event(value, key, known, what, lsn, ordinal, name, self.snapshot)


def event_headers(event: Event) -> list[tuple[str, str]]:
    """What stores with headers say of an event beside its value. A mark of a transaction has no table."""
    table = [("trucker-table", str(event.table))] if event.table != NO_TABLE else []
    return [
        *table,
        ("trucker-operation", event.operation),
        ("trucker-lsn", str(Lsn(event.commit_lsn))),
        ("trucker-ordinal", str(event.ordinal)),
        ("trucker-id", event.id),
    ]
