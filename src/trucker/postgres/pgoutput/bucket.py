"""Spreading rows over tasks by their key, the same in every process and for every batch.

The hash is over the key's text, eight bytes at a time, mixed with SplitMix64's finaliser; Python's own `hash` is
salted per process and would not do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trucker.change import Mask, TableId
from trucker.postgres.pgoutput.tuples import Cells
from trucker.postgres.pgoutput.wire import Bytes, words_at

Hashes = npt.NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_LOW_BYTES: Final = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)


@dataclass(frozen=True)
class Bucket:
    """Share `index` of `count`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"bucket {self.index} of {self.count}")

    def holds_table(self, table: TableId) -> bool:
        """Whether a table that is not spread belongs here."""
        name = f"{table.schema}\0{table.name}".encode()
        return zlib.crc32(name) % self.count == self.index

    def holds(self, buffer: Bytes, key: Sequence[Cells]) -> Mask:
        """Which rows belong here; `key` has the cells of one key column each."""
        mine: Mask = hash_cells(buffer, key) % np.uint64(self.count) == np.uint64(self.index)
        return mine


def hash_cells(buffer: Bytes, key: Sequence[Cells]) -> Hashes:
    """A stable hash of each row's cells: of their text, their lengths and where they are NULL."""
    hashes = np.zeros(len(key[0].starts), np.uint64)
    for cells in key:
        lengths = cells.ends - cells.starts
        marks = np.where(cells.null, 0, lengths + 1).astype(np.uint64)
        hashes = _mix(hashes + marks * _GOLDEN)
        for offset in range(0, int(lengths.max(initial=0)), 8):
            longer = lengths > offset
            rows = slice(None) if longer.all() else np.flatnonzero(longer)
            words = words_at(buffer, cells.starts[rows] + offset)
            words &= _LOW_BYTES[np.minimum(lengths[rows] - offset, 8)]
            hashes[rows] = _mix((hashes[rows] ^ words) + _GOLDEN)
    return hashes


def _mix(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed
