"""An index of the blocks of one segment in memory, read from their heads: about sixty bytes per block."""

from __future__ import annotations

from array import array

from trucker.changelog.format.block import RelationEntry
from trucker.changelog.format.scan import heads
from trucker.changelog.format.segment import Content, SegmentId


class SegmentIndex:
    """A segment's blocks up to `size`."""

    def __init__(self, key: SegmentId) -> None:
        self.id = key
        self.size = 0
        self.offset = array("Q")
        self.length = array("Q")
        self.first = array("Q")
        self.last = array("Q")
        self.end = array("Q")
        self.commit_time = array("q")
        self.commits = array("I")
        self.flags = array("H")
        self.relations: list[tuple[RelationEntry, ...]] = []
        # Equal tuples once: most blocks of a segment name the same relations.
        self._shared_relations: dict[tuple[RelationEntry, ...], tuple[RelationEntry, ...]] = {}

    def __len__(self) -> int:
        return len(self.offset)

    def extend(self, content: Content, limit: int) -> None:
        """Read on to `limit`; `DamagedError` at the first block that is not whole, with those before it kept."""
        for offset, head in heads(content, self.size, limit):
            self.offset.append(offset)
            length = head.bytes
            self.length.append(length)
            self.first.append(head.first)
            self.last.append(head.last)
            self.end.append(head.end)
            self.commit_time.append(head.commit_time)
            self.commits.append(head.commits)
            self.flags.append(head.flags)
            self.relations.append(self._shared_relations.setdefault(head.relations, head.relations))
            self.size = offset + length
