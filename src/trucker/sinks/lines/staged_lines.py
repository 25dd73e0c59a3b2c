"""Lines of JSON on their way from executors to the one process that writes them, in commit order at the end.

An executor stages the lines of one table; a line carries its place in commit order. The driver merges a truck's
tables by that place, with one small piece of every table in memory at a time (I9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import Changes, CopiedRows
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.lines.json_lines import lines
from trucker.sinks.spool import Spool

_PIECE_ROWS: Final = 8192


def stage_lines(spool: Spool, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Stage one part's changes as lines."""
    count = 0

    def pieces() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for value in changes:
            count += value.rows if isinstance(value, CopiedRows) else len(value)
            yield from _pieces(work, value)

    staged = spool.stage(work, pieces())
    return work.receipt(count, staged)


def _pieces(work: Work, value: Changes | CopiedRows) -> Iterator[pa.RecordBatch]:
    changes = value.to_changes() if isinstance(value, CopiedRows) else value
    text = lines(changes, work.target, snapshot=bool(work.batch.snapshot))
    columns = [pa.array(changes.commit_lsn), pa.array(changes.ordinal), text]
    whole = pa.RecordBatch.from_arrays(columns, names=["commit_lsn", "ordinal", "line"])
    for start in range(0, len(changes), _PIECE_ROWS):
        yield whole.slice(start, _PIECE_ROWS)


def staged_lines(spool: Spool, batch: Batch, receipts: Sequence[Receipt]) -> Iterator[pa.LargeStringArray]:
    """One truck's lines: of a snapshot table by table, of a stream in commit order across its tables."""
    tables = sorted({receipt.table for receipt in receipts})
    streams = [spool.read_all([receipt for receipt in receipts if receipt.table == table]) for table in tables]
    if not batch.snapshot:
        yield from _merged(streams)
        return
    for stream in streams:
        for piece in stream:
            yield piece.column("line")


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
        """The place of the last line in hand."""
        return int(self._lsn[-1]), int(self._ordinal[-1])

    def until(self, place: tuple[int, int]) -> pa.RecordBatch:
        """Remove and return the lines up to and including `place`."""
        assert self.piece is not None
        lsn, ordinal = np.uint64(place[0]), place[1]
        first, beyond = np.searchsorted(self._lsn, lsn, "left"), np.searchsorted(self._lsn, lsn, "right")
        count = int(first + np.searchsorted(self._ordinal[first:beyond], ordinal, "right"))
        head, rest = self.piece.slice(0, count), self.piece.slice(count)
        self._take(rest if rest.num_rows else next(self._stream, None))
        return head


def _merged(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.LargeStringArray]:
    heads = [head for stream in streams if (head := _Head(stream)).piece is not None]
    while heads:
        if len(heads) == 1:
            place = heads[0].last
            yield heads[0].until(place).column("line")
        else:
            place = min(head.last for head in heads)
            yield _in_order([head.until(place) for head in heads])
        heads = [head for head in heads if head.piece is not None]


def _in_order(pieces: Sequence[pa.RecordBatch]) -> pa.LargeStringArray:
    filled = [piece for piece in pieces if piece.num_rows]
    whole = pa.concat_batches(filled)
    if len(filled) == 1:
        return whole.column("line")
    order = np.lexsort((whole.column("ordinal").to_numpy(), whole.column("commit_lsn").to_numpy()))
    return whole.column("line").take(pa.array(order))
