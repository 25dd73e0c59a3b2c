"""References to blocks: batches are planned with them, and executors receive them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trucker.changelog.format.block import NEW_SHAPE
from trucker.changelog.format.index import SegmentIndex
from trucker.changelog.format.segment import SegmentId
from trucker.lsn import Lsn

RUN_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A run of adjacent blocks of one segment; small, and good for as long as the segment is kept.

    `first` and `last` are commit LSNs. `until` is set where the run reaches beyond the range it was asked for:
    transactions from that LSN on are left out when it is read.
    """

    segment: SegmentId
    offset: int
    bytes: int
    first: Lsn
    last: Lsn
    relations: tuple[int, ...]
    until: Lsn | None = None


def runs(blocks: Iterable[tuple[SegmentIndex, int]], end: Lsn, run_bytes: int = RUN_BYTES) -> list[BlockRef]:
    """References to blocks, adjacent ones together up to `run_bytes`: many small commits are then decoded at once."""
    refs: list[BlockRef] = []
    for index, at in blocks:
        ref = _reference(index, at, end)
        if refs and _joins(refs[-1], ref, index.flags[at], run_bytes):
            ref = _joined(refs.pop(), ref)
        refs.append(ref)
    return refs


def _reference(index: SegmentIndex, at: int, end: Lsn) -> BlockRef:
    return BlockRef(
        index.id,
        index.offset[at],
        index.length[at],
        Lsn(index.first[at]),
        Lsn(index.last[at]),
        tuple(entry.oid for entry in index.relations[at]),
        end if index.last[at] >= end else None,
    )


def _joins(run: BlockRef, ref: BlockRef, flags: int, run_bytes: int) -> bool:
    return (
        not flags & NEW_SHAPE
        and run.segment == ref.segment
        and run.offset + run.bytes == ref.offset
        and run.bytes + ref.bytes <= run_bytes
    )


def _joined(run: BlockRef, ref: BlockRef) -> BlockRef:
    relations = run.relations if run.relations == ref.relations else tuple(sorted({*run.relations, *ref.relations}))
    return BlockRef(run.segment, run.offset, run.bytes + ref.bytes, run.first, ref.last, relations, ref.until)
