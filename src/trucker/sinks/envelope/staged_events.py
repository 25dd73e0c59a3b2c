"""Events on their way from executors to the one process that writes them, in commit order at the end.

An executor stages the events of one table; an event carries its place in commit order. The driver merges a truck's
tables by that place, with one small piece of every table in memory at a time (I9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import Changes, CopiedRows
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.envelope.envelope import EnvelopeSettings
from trucker.sinks.envelope.event_ids import event_ids
from trucker.sinks.envelope.transaction_marks import TransactionMarks
from trucker.sinks.event import NO_TABLE, Events
from trucker.sinks.spool import Spool
from trucker.table import TableId

_PIECE_ROWS: Final = 8192


def stage_events(
    spool: Spool, settings: EnvelopeSettings, work: Work, changes: Iterator[Changes | CopiedRows]
) -> Receipt:
    """Stage one part's changes as events."""
    count = 0

    def pieces() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for value in changes:
            some = value.to_changes() if isinstance(value, CopiedRows) else value
            if len(some):
                yield from _pieces(settings, work, some, count)
            count += len(some)

    staged = spool.stage(work, pieces())
    return work.receipt(count, staged)


def _pieces(settings: EnvelopeSettings, work: Work, changes: Changes, first: int) -> Iterator[pa.RecordBatch]:
    snapshot = bool(work.batch.snapshot)
    encoded = settings.envelope().encode(changes, work.target, snapshot=snapshot)
    columns: dict[str, pa.Array] = {
        "commit_lsn": pa.array(encoded.changes.commit_lsn),
        "ordinal": pa.array(first + encoded.change if snapshot else encoded.changes.ordinal),
        "operation": pa.array(encoded.operation),
        "value": encoded.value,
    }
    if not settings.lines:
        columns["key"] = encoded.key
        columns["id"] = event_ids(encoded, work, first)
    if settings.transactions and not snapshot:
        columns["xid"] = pa.array(encoded.changes.xid)
        columns["commit_time"] = pa.array(encoded.changes.commit_time)
        if encoded.tail is not None:
            columns["tail"] = encoded.tail
    whole = pa.RecordBatch.from_pydict(columns)
    for start in range(0, whole.num_rows, _PIECE_ROWS):
        yield whole.slice(start, _PIECE_ROWS)


def staged_events(
    spool: Spool,
    settings: EnvelopeSettings,
    batch: Batch,
    receipts: Sequence[Receipt],
    tables: Mapping[TableId, TableId],
) -> Iterator[Events]:
    """One truck's events: of a snapshot table by table, of a stream in commit order across its tables. `tables` has the
    name that each source table goes by."""
    sources = sorted({receipt.table for receipt in receipts})
    names = tuple(tables[source] for source in sources)
    streams = [
        _numbered(number, spool.read_all([receipt for receipt in receipts if receipt.table == source]))
        for number, source in enumerate(sources)
    ]
    pieces = (piece for stream in streams for piece in stream) if batch.snapshot else _merged(streams)
    if settings.transactions and not batch.snapshot:
        truck = receipts[0].truck
        apart = "" if truck in batch.positions else "".join(f"/{source}" for source in sources)
        pieces = TransactionMarks(settings, names, apart).between(pieces)
    for piece in pieces:
        yield _events(piece, (*names, NO_TABLE), snapshot=bool(batch.snapshot))


def _numbered(number: int, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The pieces of a table with its number as a column."""
    for piece in stream:
        yield piece.append_column("table", pa.array(np.full(piece.num_rows, number, np.int32)))


def _events(piece: pa.RecordBatch, tables: tuple[TableId, ...], *, snapshot: bool) -> Events:
    absent = pa.nulls(piece.num_rows, pa.large_string())
    named = "id" in piece.schema.names
    return Events(
        piece.column("value"),
        piece.column("key") if named else absent,
        piece.column("id") if named else absent,
        tables,
        piece.column("table").to_numpy(),
        piece.column("operation").to_numpy(),
        piece.column("commit_lsn").to_numpy(),
        piece.column("ordinal").to_numpy(),
        snapshot,
    )


class _Head:
    """A table's stream of pieces, and the unread rest of the current piece."""

    def __init__(self, stream: Iterator[pa.RecordBatch]) -> None:
        self._stream = stream
        self._take(next(stream, None))

    def _take(self, piece: pa.RecordBatch | None) -> None:
        self.piece = piece
        if piece is not None:
            self._lsn: npt.NDArray[np.uint64] = piece.column("commit_lsn").to_numpy()
            self._ordinal: npt.NDArray[np.int64] = piece.column("ordinal").to_numpy()

    @property
    def last(self) -> tuple[int, int]:
        """The place of the last event in hand."""
        return int(self._lsn[-1]), int(self._ordinal[-1])

    def rest(self) -> pa.RecordBatch:
        """Remove and return the piece."""
        piece = self.piece
        self._take(next(self._stream, None))
        return piece

    def until(self, place: tuple[int, int]) -> pa.RecordBatch:
        """Remove and return the events up to and including `place`."""
        assert self.piece is not None
        lsn, ordinal = np.uint64(place[0]), place[1]
        first, beyond = np.searchsorted(self._lsn, lsn, "left"), np.searchsorted(self._lsn, lsn, "right")
        count = int(first + np.searchsorted(self._ordinal[first:beyond], ordinal, "right"))
        head, rest = self.piece.slice(0, count), self.piece.slice(count)
        self._take(rest if rest.num_rows else next(self._stream, None))
        return head


def _merged(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    heads = [head for stream in streams if (head := _Head(stream)).piece is not None]
    while heads:
        if len(heads) == 1:
            yield heads[0].rest()
        else:
            place = min(head.last for head in heads)
            yield _in_order([head.until(place) for head in heads])
        heads = [head for head in heads if head.piece is not None]


def _in_order(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    filled = [piece for piece in pieces if piece.num_rows]
    whole = pa.concat_batches(filled)
    if len(filled) == 1:
        return whole
    order = np.lexsort((whole.column("ordinal").to_numpy(), whole.column("commit_lsn").to_numpy()))
    return whole.take(pa.array(order))
