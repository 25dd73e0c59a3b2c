"""Builds blocks from messages, for every kind of storage: where a block ends, and which descriptions it carries.

A block is cut at a commit, or inside a transaction that is too large for one (then it holds nothing but that
transaction), and before a relation's new description. Relation and Type messages that say what is known already are
dropped; a new segment gets those it needs written into it anew.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from trucker.changelog.format.block import (
    Open,
    RelationEntry,
    Summary,
    encode,
    head_size,
    summarise,
)
from trucker.changelog.format.descriptions import Descriptions
from trucker.changelog.format.durable import Durable
from trucker.changelog.format.segment import SegmentId
from trucker.lsn import Lsn
from trucker.pg.messages import RELATION, Messages

BLOCK_BYTES: Final = 4 << 20


@dataclass(slots=True)
class DescribedSegment:
    """A segment being written, as far as its blocks are concerned: its size, and the descriptions it has got."""

    id: SegmentId
    size: int = 0
    described: dict[bytes, RelationEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """A block ready to be written, its buffers one behind the other, and what its messages amount to."""

    buffers: tuple[bytes | memoryview, ...]
    summary: Summary
    described: dict[bytes, RelationEntry]


class BlockBuilder(ABC):
    """What a writer does before anything is written. `durable` is the end that may be relied on."""

    def __init__(self, durable: Durable, block_bytes: int) -> None:
        self.durable = durable
        self._block_bytes = block_bytes
        self._descriptions = Descriptions()
        self._finished: list[Messages] = []
        self._unfinished: list[Messages] = []
        self._bytes = 0
        self._forget()

    # -- in -------------------------------------------------------------------------------------------------------

    def append(self, message: bytes) -> None:
        """Take one pgoutput message. Nothing is promised before `flush`."""
        self.extend(Messages.of([message]))

    def extend(self, messages: Messages) -> None:
        """Take many. The log's bytes do not depend on how the messages are split over calls."""
        begin = 0
        for index in messages.descriptions():
            self._add(messages.part(begin, index))
            begin = index if self._describe(messages.message(index)) else index + 1
        self._add(messages.part(begin, len(messages)))

    def _describe(self, message: bytes) -> bool:
        """Record a description; False where it is in force already. One that changes a relation begins a new block."""
        news = self._descriptions.news(message)
        if news is None:
            return False
        if news and any(part.changes() for part in (*self._finished, *self._unfinished)):
            self._cut(0)
        self._descriptions.learn(message)
        return True

    def _add(self, messages: Messages) -> None:
        """Append them to what is in memory, and cut a block as soon as it is large enough."""
        while len(messages):
            fits = messages.until(self._block_bytes - self._bytes)
            part = messages.part(0, fits)
            self._bytes += part.size
            finished = part.finished()
            if finished:
                self._finished += [*self._unfinished, part.part(0, finished)]
                self._unfinished = []
            if finished < len(part):
                self._unfinished.append(part.part(finished, len(part)))
            if self._bytes >= self._block_bytes:
                # A short rest of an open transaction waits for more: else each large commit would leave a small block.
                self._cut(self._block_bytes // 2)
            messages = messages.part(fits, len(messages))

    @property
    def pending(self) -> int:
        """Bytes in memory that a flush could write."""
        return self._bytes if self._finished else 0

    @property
    def held(self) -> int:
        """Bytes in memory; a block's worth at the most, unless a single message is larger."""
        return self._bytes

    @property
    def in_transaction(self) -> bool:
        """Whether the last message is inside a transaction."""
        return bool(self._unfinished) or (not self._finished and self._open is not None)

    @property
    def settled(self) -> bool:
        """Whether all that has come is durable and published, and no transaction is open."""
        return not self.held and not self.in_transaction and self._written == self.durable

    # -- for the writers ------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The state at the durable end."""
        self._finished, self._unfinished, self._bytes = [], [], 0
        self._open: Open | None = None
        self._written = self.durable

    def _cut(self, at_least: int) -> None:
        """Write the finished transactions as a block, and of an unfinished one what is more than `at_least` bytes."""
        self._write_complete()
        if self._unfinished and self._bytes >= at_least:
            self._write_block(Messages.joined(self._unfinished))
            self._unfinished, self._bytes = [], 0

    def _write_complete(self) -> None:
        if self._finished:
            self._write_block(Messages.joined(self._finished))
            self._finished, self._bytes = [], sum(part.size for part in self._unfinished)

    @abstractmethod
    def _write_block(self, messages: Messages) -> None:
        """Write one block behind the others; the durable end does not move."""

    def _summary(self, messages: Messages) -> Summary:
        return summarise(messages, self._open, self._written.commit_lsn, self._written.commit_time)

    def _block(self, messages: Messages, summary: Summary, segment: DescribedSegment) -> Block:
        """The block of these messages, as the segment needs it at its end."""
        messages, described, relations = self._with_descriptions(messages, segment)
        new_shape = not segment.described.keys().isdisjoint(described)
        return Block(encode(messages, summary, self._open, relations, new_shape=new_shape), summary, described)

    def _wrote(self, block: Block, segment: DescribedSegment) -> None:
        """The block is at the segment's end."""
        segment.size += sum(map(len, block.buffers))
        segment.described.update(block.described)
        self._open = block.summary.open
        if self._open is None:
            end = Lsn(block.summary.end)
            self._written = Durable(
                end, max(end, self._written.seen_lsn), block.summary.commit_time, segment.id, segment.size
            )

    def _with_descriptions(
        self, messages: Messages, segment: DescribedSegment
    ) -> tuple[Messages, dict[bytes, RelationEntry], list[RelationEntry]]:
        """The messages, with the descriptions before them that the segment lacks; and the block's relations."""
        used = sorted(messages.relations())
        described_here = {messages.message(index)[1:5] for index in messages.places(RELATION)}
        missing = [oid for oid in used if oid not in described_here and oid not in segment.described]
        if missing:
            messages = Messages.joined([Messages.of(self._descriptions.of(missing)), messages])
        # The offsets depend on the size of the head, which depends on the number of relations: so that comes first.
        count = len([oid for oid in used if oid in self._descriptions])
        described = _locate(messages, segment.size + head_size(count) + 4 * len(messages))
        places = {**segment.described, **described}
        return messages, described, [places[oid] for oid in used if oid in places]


def _locate(messages: Messages, start: int) -> dict[bytes, RelationEntry]:
    """Where the Relation messages among `messages` will lie in the file, the last one of each relation."""
    entries = {}
    for index in messages.places(RELATION):
        message, offset = messages.message(index), start + int(messages.starts[index])
        oid = message[1:5]
        entries[oid] = RelationEntry(int.from_bytes(oid, "big"), len(message), offset, zlib.crc32(message))
    return entries
