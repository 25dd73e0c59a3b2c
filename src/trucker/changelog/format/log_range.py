"""A range of the log, as the heads of its blocks describe it: read once for a batch, and handed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trucker.changelog.format.index import SegmentIndex
from trucker.changelog.format.reference import RUN_BYTES, BlockRef, runs
from trucker.lsn import Lsn


@dataclass(frozen=True, slots=True)
class LogRange:
    """All that is committed in `(start, end]`. `blocks` are those that hold it, each as its index and its number there.

    Good for as long as its segments are kept.
    """

    start: Lsn
    end: Lsn
    blocks: Sequence[tuple[SegmentIndex, int]]

    @property
    def bytes(self) -> int:
        """About how many bytes of log it has."""
        return sum([index.length[at] for index, at in self.blocks])

    @property
    def commit_time(self) -> int | None:
        """When its last commit was made, µs since 1970; None where no block tells."""
        for index, at in reversed(self.blocks):
            if index.commits[at] and index.end[at] <= self.end:
                return index.commit_time[at] or None
        return None

    def references(self, run_bytes: int = RUN_BYTES) -> list[BlockRef]:
        """References to its blocks, in order; small blocks together up to `run_bytes`."""
        return runs(self.blocks, self.end, run_bytes)

    def part(self, start: Lsn, end: Lsn) -> LogRange:
        """The range `(start, end]` of it; without blocks where `start` is not before `end`."""
        if (start, end) == (self.start, self.end):
            return self
        if start >= end:
            return LogRange(start, end, ())
        blocks = [(index, at) for index, at in self.blocks if index.last[at] >= start and index.first[at] < end]
        return LogRange(start, end, blocks)
