"""The block: the change log's unit of writing, of checksums and of reading.

All numbers are little-endian. A block is a head, the lengths of its messages and the messages, nothing between them.

    offset  size  field
    0       4     magic "TRKB"
    4       2     version, 1
    6       2     flags: 1 ends inside a transaction · 2 begins inside one · 4 begins a new description of a relation
                  that the segment has described already (readers do not join it with the block before)
    8       4     CRC-32 of the head (its bytes 0–7 and from 12 to its end, the relations included)
    12      4     CRC-32 of the body (lengths and messages)
    16      4     bytes of the head
    20      4     bytes of the body
    24      4     number of messages
    28      4     number of relations
    32      8     first: commit LSN of the first transaction in the block
    40      8     last: commit LSN of the last transaction in the block, finished or not
    48      8     end: end LSN of the last commit in the block, or before it where it has none
    56      8     commit time of that commit, µs since 1970
    64      8     open transaction at the start: its commit LSN
    72      8       its commit time, µs since 1970
    80      8       the number of changes before this block
    88      4       its xid
    92      4     number of commits
    96      20 ×  relations whose rows are in the block: oid (4), and of the Relation message in force its
                  length (4), offset in the segment's file (8) and CRC-32 (4)
    …       4 ×   length of each message
    …             the messages, pgoutput as it came

"Commit LSN" is Begin's final LSN, the start of the commit record; "end LSN" is Commit's, the position after it. A
non-transactional logical message counts as a transaction whose commit LSN is the message's own LSN. A block that ends
inside a transaction holds nothing but that transaction, so what a crash leaves unfinished can be cut off by the
block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trucker.pg.messages import BEGIN, COMMIT, MESSAGE, Messages

MAGIC: Final = b"TRKB"
VERSION: Final = 1
ENDS_OPEN: Final = 1
STARTS_OPEN: Final = 2
NEW_SHAPE: Final = 4

FIXED: Final = struct.Struct("<4sHHIIIIIIQQQqQqQII")
ENTRY: Final = struct.Struct("<IIQI")
HEAD_BYTES: Final = FIXED.size

# PostgreSQL counts microseconds from 2000-01-01.
EPOCH: Final = 946_684_800_000_000

_BEGIN = struct.Struct(">xQqI")
_COMMIT = struct.Struct(">xxQQq")
_MESSAGE = struct.Struct(">xBQ")


class DamagedError(Exception):
    """Bytes that are not a block. `torn` where they are too few, as at the end of a file after a crash."""

    def __init__(self, reason: str, *, torn: bool = False) -> None:
        super().__init__(reason)
        self.torn = torn


class RelationEntry(NamedTuple):
    """Where the Relation message in force lies in the segment's file."""

    oid: int
    length: int
    offset: int
    crc: int


class Open(NamedTuple):
    """The transaction a block begins inside of, and the number of its changes before the block."""

    commit_lsn: int
    commit_time: int
    ordinal: int
    xid: int


@dataclass(frozen=True, slots=True)
class Head:
    """A block's head; see the module for the fields."""

    flags: int
    body_crc: int
    head_bytes: int
    body_bytes: int
    messages: int
    first: int
    last: int
    end: int
    commit_time: int
    open: Open | None
    commits: int
    relations: tuple[RelationEntry, ...]

    @property
    def bytes(self) -> int:
        return self.head_bytes + self.body_bytes

    @property
    def ends_open(self) -> bool:
        return bool(self.flags & ENDS_OPEN)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of messages amounts to. `open` is the transaction left unfinished at its end."""

    first: int
    last: int
    end: int
    commit_time: int
    commits: int
    open: Open | None


def summarise(messages: Messages, started: Open | None, end: int, commit_time: int) -> Summary:
    """Follow the transactions through `messages`; `end` and `commit_time` are those of the last commit before."""
    kinds = messages.kinds
    # Only the first and the last transaction matter, and searches in `kinds` are fast: no loop over the messages.
    begins = [at for at in {kinds.find(BEGIN), kinds.rfind(BEGIN)} if at >= 0]
    lsns = [_commit_lsn(messages, at) for at in sorted([*begins, *_lone_messages(messages, started)])]
    first = started.commit_lsn if started else lsns[0] if lsns else 0
    last = lsns[-1] if lsns else first
    commit = kinds.rfind(COMMIT)
    if commit >= 0:
        _, end, stamp = _COMMIT.unpack_from(messages.message(commit))
        commit_time = stamp + EPOCH
    return Summary(first, last, end, commit_time, kinds.count(COMMIT), _open_at_end(messages, started))


def _lone_messages(messages: Messages, started: Open | None) -> list[int]:
    """The first and the last of the logical messages outside any transaction, each of which counts as one."""
    kinds, opened, since, lone = messages.kinds, 1 if started else 0, 0, list[int]()
    for at in messages.places(MESSAGE):
        opened += kinds.count(BEGIN, since, at) - kinds.count(COMMIT, since, at)
        since = at
        if opened <= 0:
            lone[1:] = [at]
    return lone


def _commit_lsn(messages: Messages, index: int) -> int:
    """Of a Begin, or of a logical message that is a transaction of its own."""
    message = messages.message(index)
    commit_lsn: int = _BEGIN.unpack_from(message)[0] if message.startswith(BEGIN) else _MESSAGE.unpack_from(message)[1]
    return commit_lsn


def _open_at_end(messages: Messages, started: Open | None) -> Open | None:
    """The transaction that the messages end inside of."""
    begin, commit = messages.kinds.rfind(BEGIN), messages.kinds.rfind(COMMIT)
    if commit > begin:
        return None
    if begin < 0:
        return started and started._replace(ordinal=started.ordinal + messages.changes())
    commit_lsn, stamp, xid = _BEGIN.unpack_from(messages.message(begin))
    return Open(commit_lsn, stamp + EPOCH, messages.changes(begin), xid)


def encode(
    messages: Messages,
    summary: Summary,
    started: Open | None,
    relations: Sequence[RelationEntry],
    *,
    new_shape: bool = False,
) -> tuple[bytes, bytes, memoryview]:
    """A block: its head, the lengths and the messages; they lie one behind the other, and are not copied together."""
    lengths, payload = messages.lengths.tobytes(), messages.payload.data
    flags = (ENDS_OPEN if summary.open else 0) | (STARTS_OPEN if started else 0) | (NEW_SHAPE if new_shape else 0)
    head = bytearray(HEAD_BYTES + ENTRY.size * len(relations))
    opened = started or Open(0, 0, 0, 0)
    FIXED.pack_into(
        head,
        0,
        MAGIC,
        VERSION,
        flags,
        0,
        zlib.crc32(payload, zlib.crc32(lengths)),
        len(head),
        len(lengths) + len(payload),
        len(messages),
        len(relations),
        summary.first,
        summary.last,
        summary.end,
        summary.commit_time,
        opened.commit_lsn,
        opened.commit_time,
        opened.ordinal,
        opened.xid,
        summary.commits,
    )
    for index, entry in enumerate(relations):
        ENTRY.pack_into(head, HEAD_BYTES + index * ENTRY.size, *entry)
    struct.pack_into("<I", head, 8, _head_crc(head))
    return bytes(head), lengths, payload


def head_size(relations: int) -> int:
    """Bytes of a head that names so many relations."""
    return HEAD_BYTES + ENTRY.size * relations


def peek_head_bytes(fixed: bytes | memoryview) -> int:
    """How long the head that begins with these bytes says it is; not checked."""
    return int.from_bytes(fixed[16:20], "little") if len(fixed) == HEAD_BYTES else HEAD_BYTES


def decode_head(data: bytes | memoryview) -> Head:
    """The head that `data` begins with; `DamagedError` where there is none, torn where `data` ends too early."""
    if len(data) < HEAD_BYTES:
        raise DamagedError("the file ends inside the header of a block", torn=True)
    (
        magic,
        version,
        flags,
        head_crc,
        body_crc,
        head_bytes,
        body_bytes,
        messages,
        relations,
        first,
        last,
        end,
        commit_time,
        open_lsn,
        open_time,
        open_ordinal,
        open_xid,
        commits,
    ) = FIXED.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError("no block begins at this byte")
    if head_bytes != head_size(relations):
        raise DamagedError("the header of the block is inconsistent")
    if len(data) < head_bytes:
        raise DamagedError("the file ends inside the header of a block", torn=True)
    view = memoryview(data)[:head_bytes]
    if _head_crc(view) != head_crc:
        raise DamagedError("the checksum of the block header is wrong")
    if version != VERSION:
        raise DamagedError(f"the block has format version {version}, this trucker reads version {VERSION}")
    entries = tuple(
        [RelationEntry(*ENTRY.unpack_from(view, HEAD_BYTES + index * ENTRY.size)) for index in range(relations)]
    )
    started = Open(open_lsn, open_time, open_ordinal, open_xid) if flags & STARTS_OPEN else None
    return Head(
        flags, body_crc, head_bytes, body_bytes, messages, first, last, end, commit_time, started, commits, entries
    )


def check_body(head: Head, body: bytes | memoryview) -> None:
    """`DamagedError` where the body is not what the head says."""
    if len(body) < head.body_bytes:
        raise DamagedError("the file ends inside a block", torn=True)
    if zlib.crc32(body) != head.body_crc:
        raise DamagedError("the checksum of the block is wrong")


def _head_crc(head: bytearray | memoryview) -> int:
    view = memoryview(head)
    return zlib.crc32(view[12:], zlib.crc32(view[:8]))
