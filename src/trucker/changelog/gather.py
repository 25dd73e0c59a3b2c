"""Messages gathered into blocks, the same for every kind of storage: where a block is cut, and what it must carry.

A block is cut at a commit, or inside a transaction that is too large for one (then it holds nothing but that
transaction), and before a relation's new description. Relation and Type messages that say what is known already are
dropped; a new segment gets those it needs written into it anew.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from trucker.changelog.block import (
    COMMIT,
    MESSAGE,
    RELATION,
    TYPE,
    Open,
    RelationEntry,
    Summary,
    encode,
    head_size,
    summarise,
    used_relations,
)
from trucker.changelog.durable import Durable
from trucker.changelog.relation import Descriptions
from trucker.changelog.segment import SegmentId
from trucker.lsn import Lsn

BLOCK_BYTES: Final = 4 << 20
_DESCRIBING = frozenset({RELATION, TYPE})


@dataclass(slots=True)
class Described:
    """A segment being written, as far as its blocks are concerned: its size, and the descriptions it has got."""

    id: SegmentId
    size: int = 0
    described: dict[bytes, RelationEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """A block ready to be written, and what its messages amount to."""

    head: bytes
    body: bytes
    summary: Summary
    described: dict[bytes, RelationEntry]


class Gatherer(ABC):
    """What a writer does before anything is written. `durable` is the end that may be relied on."""

    def __init__(self, durable: Durable, block_bytes: int) -> None:
        self.durable = durable
        self._block_bytes = block_bytes
        self._descriptions = Descriptions()
        self._forget()

    # -- in -------------------------------------------------------------------------------------------------------

    def append(self, message: bytes) -> None:
        """Take one pgoutput message. Nothing is promised before `flush`."""
        kind = message[0]
        if kind in _DESCRIBING and not self._describe(kind, message):
            return
        self._messages.append(message)
        self._bytes += len(message)
        if kind == COMMIT or (kind == MESSAGE and not message[1] & 1):
            self._complete = len(self._messages)
        if self._bytes >= self._block_bytes:
            self._cut(self._block_bytes // 2)

    def _describe(self, kind: int, message: bytes) -> bool:
        """Take note of a description; False where it says nothing new. What it changes begins a new block."""
        news = self._descriptions.news(kind, message)
        if news is None:
            return False
        if news and used_relations(self._messages):
            self._cut(0)
        self._descriptions.learn(kind, message)
        return True

    @property
    def pending(self) -> int:
        """Bytes in memory that a flush could write."""
        return self._bytes if self._complete else 0

    @property
    def held(self) -> int:
        """Bytes in memory; a block's worth at the most, unless a single message is larger."""
        return self._bytes

    @property
    def in_transaction(self) -> bool:
        """Whether the last message is inside a transaction."""
        return self._complete < len(self._messages) or (not self._messages and self._open is not None)

    # -- for the writers ------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The state at the durable end."""
        self._messages: list[bytes] = []
        self._bytes = 0
        self._complete = 0
        self._open: Open | None = None
        self._written = self.durable

    def _cut(self, at_least: int) -> None:
        """Write the finished transactions as a block, and of an unfinished one what is more than `at_least` bytes."""
        self._write_complete()
        if self._messages and self._bytes >= at_least:
            self._write_block(self._messages)
            self._messages, self._bytes = [], 0

    def _write_complete(self) -> None:
        if self._complete:
            rest = self._messages[self._complete :]
            del self._messages[self._complete :]
            self._write_block(self._messages)
            self._messages, self._bytes, self._complete = rest, sum(map(len, rest)), 0

    @abstractmethod
    def _write_block(self, messages: list[bytes]) -> None:
        """Write one block behind the others; the durable end does not move."""

    def _summary(self, messages: list[bytes]) -> Summary:
        return summarise(messages, self._open, self._written.commit_lsn, self._written.commit_time)

    def _block(self, messages: list[bytes], summary: Summary, segment: Described) -> Block:
        """The block of these messages, as the segment needs it at its end."""
        messages, described, relations = self._with_descriptions(messages, segment)
        new_shape = not segment.described.keys().isdisjoint(described)
        return Block(*encode(messages, summary, self._open, relations, new_shape=new_shape), summary, described)

    def _wrote(self, block: Block, segment: Described) -> None:
        """The block is at the segment's end."""
        segment.size += len(block.head) + len(block.body)
        segment.described.update(block.described)
        self._open = block.summary.open
        if self._open is None:
            end = Lsn(block.summary.end)
            self._written = Durable(
                end, max(end, self._written.seen_lsn), block.summary.commit_time, segment.id, segment.size
            )

    def _with_descriptions(
        self, messages: list[bytes], segment: Described
    ) -> tuple[list[bytes], dict[bytes, RelationEntry], list[RelationEntry]]:
        """The messages, with the descriptions before them that the segment lacks; and the block's relations."""
        used = sorted(used_relations(messages))
        here = {message[1:5] for message in messages if message[0] == RELATION}
        lacking = [oid for oid in used if oid not in here and oid not in segment.described]
        if lacking:
            messages = [*self._descriptions.of(lacking), *messages]
        count = len([oid for oid in used if oid in self._descriptions])
        described = _locate(messages, segment.size + head_size(count) + 4 * len(messages))
        places = {**segment.described, **described}
        return messages, described, [places[oid] for oid in used if oid in places]


def _locate(messages: list[bytes], start: int) -> dict[bytes, RelationEntry]:
    """Where the Relation messages among `messages` will lie in the file, the last one of each relation."""
    found = {}
    offset = start
    for message in messages:
        if message[0] == RELATION:
            oid = message[1:5]
            found[oid] = RelationEntry(int.from_bytes(oid, "big"), len(message), offset, zlib.crc32(message))
        offset += len(message)
    return found
