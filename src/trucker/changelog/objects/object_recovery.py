"""Finds the end of a log in object storage from its objects alone.

Nothing is put right: an object is there whole or not at all, and what the chain ends with that was never finished is
passed over by the next object (`object_chain`).
"""

from __future__ import annotations

from dataclasses import dataclass

from trucker.changelog.bucket import Bucket, BucketEntry
from trucker.changelog.format.block import Head
from trucker.changelog.format.durable import Durable
from trucker.changelog.format.scan import DamagedBlockError, damaged, heads
from trucker.changelog.format.segment import Segment
from trucker.changelog.identity import damaged_identity, read_document
from trucker.changelog.location import ObjectLocation
from trucker.changelog.objects.object_chain import ObjectChain, ObjectContent, object_name, of_log, seen_until
from trucker.lsn import Lsn


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where a log begins, as its source.json says."""

    lsn: Lsn
    first: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a log goes, and the number of the next object. `seen` are the marks there are, by name."""

    durable: Durable
    number: int
    seen: tuple[str, ...]


def read_start(location: ObjectLocation, bucket: Bucket) -> LogStart:
    """Where a log of objects begins."""
    raw = read_document(location, bucket)
    try:
        return LogStart(Lsn.parse(raw["start"]), int(raw["first"]))
    except (KeyError, TypeError, ValueError):
        raise damaged_identity(location) from None


def end_of(location: ObjectLocation, bucket: Bucket, start: LogStart) -> LogEnd:
    """List the log and look at its newest object, every checksum checked."""
    entries = bucket.list()
    segments = ObjectChain(of_log(entries, start.first)).segments
    seen = Lsn(max(start.lsn, seen_until(entries, start.first)))
    marks = tuple(entry.name for entry in entries if entry.name.endswith(".seen"))
    if not segments:
        return LogEnd(Durable(start.lsn, seen), start.first, marks)
    number = segments[-1].id.part + 1
    complete, head = _last_complete(location, bucket, segments)
    if complete is None:
        base = Lsn(segments[-1].id.base)
        return LogEnd(Durable(base, max(base, seen)), number, marks)
    end = Lsn(head.end)
    return LogEnd(Durable(end, max(end, seen), head.commit_time, complete.id, complete.bytes), number, marks)


def _last_complete(
    location: ObjectLocation, bucket: Bucket, segments: list[Segment]
) -> tuple[Segment, Head] | tuple[None, Head]:
    """The newest object at whose end no transaction is open, and the last head in it.

    Where a transaction is open at the end of the newest, it is the one before all objects of that base: a transaction
    that does not fit into one object begins a new one.
    """
    newest = segments[-1]
    head = _last_head(location, bucket, newest)
    if not head.ends_open:
        return newest, head
    earlier = [segment for segment in segments if segment.id.base < newest.id.base]
    if not earlier:
        return None, head
    return earlier[-1], _last_head(location, bucket, earlier[-1])


def _last_head(location: ObjectLocation, bucket: Bucket, segment: Segment) -> Head:
    name = object_name(segment.id)
    content = ObjectContent(bucket, name)
    last = None
    try:
        for _, head in heads(content, 0, segment.bytes, bodies=True):
            last = head
    except DamagedBlockError as damage:
        raise damaged(location.sibling(name), damage.offset, str(damage)) from None
    if last is None:
        raise damaged(location.sibling(name), 0, "the object is empty")
    return last


def leftover(entries: list[BucketEntry]) -> int:
    """The number after that of the newest object, whichever log it belongs to: a new log may begin there."""
    return max((int(entry.name[:16], 16) for entry in of_log(entries, 0)), default=-1) + 1
