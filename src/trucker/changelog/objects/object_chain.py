"""A change log in object storage: a chain of immutable objects, one for every flush.

    <uri>/
      source.json                    whose log it is, where it begins, and the number of its first object
      <number>-<base>.log            an object: a row of blocks (`block`), and can be read alone
      <first>-<lsn>.seen             nothing of interest is missing below this LSN; empty, and the greatest counts
      shapes.json                    how tables were when their rows were last written (the engine's)

All hexadecimal. `number` counts objects without gaps, so that a listing alone tells their order and whether one is
missing. `base` is the end LSN of the last commit before the object. Both follow from the object before it: two writers
at the same end of the log want the same name, and the storage lets one of them have it (`If-None-Match: *`).

A transaction that is larger than an object begins an object of its own, and goes on in the ones after it, which have
the same base. One that never finished, because the stream was interrupted, stays where it is: the next object does not
go on inside it, by which readers know that it counts for nothing. Nothing at the end of the chain is ever deleted, so a
writer that comes too late, from a machine that was thought dead, always meets a name that is taken; or, when its place
was pruned long ago, leaves an object that no chain leads to.

Objects before a gap are not part of the log: what is left of a deletion that was interrupted, such a latecomer's, or
what was before somebody deleted an object. Whoever needs a position before the gap is refused.
"""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from trucker import private
from trucker.changelog.bucket import Bucket, BucketEntry
from trucker.changelog.format.segment import Content, Segment, SegmentFile, SegmentId
from trucker.changelog.location import ObjectLocation
from trucker.failpoint import reach

COPIES: Final = "objects"
SOURCE: Final = "source.json"
_OBJECT = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})\.log")
_SEEN = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})\.seen")
_READ_BYTES: Final = 1 << 20
_LIST_SECONDS: Final = 1.0
# After so many objects taken from the copies the bucket is listed: another writer's objects, and deletions, show there.
_LIST_AGAIN: Final = 1000
_MOST_COPIES: Final = 256


def object_name(key: SegmentId) -> str:
    return f"{key.part:016X}-{key.base:016X}.log"


def object_id(name: str) -> SegmentId | None:
    """Which object a name means; None where it is something else."""
    match = _OBJECT.fullmatch(name)
    return SegmentId(int(match[2], 16), int(match[1], 16)) if match else None


def seen_name(first: int, lsn: int) -> str:
    return f"{first:016X}-{lsn:016X}.seen"


def first_of(source: bytes) -> int:
    """The number of a log's first object, by its source.json."""
    return int(json.loads(source)["first"])


class ObjectChain:
    """The objects of a listing that follow each other without a gap up to the newest, as segments.

    A segment's `last` is the base of the next object with another one: there everything in it has been applied. The
    newest have none, and `begin` and retention leave them alone.
    """

    def __init__(self, entries: Sequence[BucketEntry] = ()) -> None:
        self.segments: list[Segment] = []
        self.modified: dict[SegmentId, float] = {}
        self.cut_off: list[str] = []
        self._ending = 0
        for entry in entries:
            self.add(entry)

    def add(self, entry: BucketEntry) -> None:
        """The next object of a listing; what came before a gap is cut off."""
        key = object_id(entry.name)
        if key is None:
            return
        if self.segments and key.part != self.segments[-1].id.part + 1:
            self.cut_off += [object_name(segment.id) for segment in self.segments]
            self.segments, self._ending = [], 0
        if self.segments and key.base > self.segments[-1].id.base:
            for at in range(self._ending, len(self.segments)):
                self.segments[at] = replace(self.segments[at], last=key.base)
            self._ending = len(self.segments)
        self.segments.append(Segment(key, None, entry.bytes))
        self.modified[key] = entry.modified

    def drop(self, deleted: Sequence[Segment]) -> None:
        """The oldest have been deleted."""
        self.segments = self.segments[len(deleted) :]
        self._ending = max(0, self._ending - len(deleted))
        for segment in deleted:
            self.modified.pop(segment.id, None)

    @property
    def newest(self) -> int:
        """The number of the newest object; -1 where there is none."""
        return self.segments[-1].id.part if self.segments else -1


def seen_until(entries: Sequence[BucketEntry], first: int) -> int:
    """The greatest LSN below which nothing is missing, as far as it was noted for the log that begins with `first`."""
    marks = [_SEEN.fullmatch(entry.name) for entry in entries]
    return max((int(mark[2], 16) for mark in marks if mark and int(mark[1], 16) == first), default=0)


def of_log(entries: Sequence[BucketEntry], first: int) -> list[BucketEntry]:
    """The objects of the log that begins with number `first`, and not of one that was there before it."""
    return [entry for entry in entries if (key := object_id(entry.name)) is not None and key.part >= first]


class Objects:
    """Segments as objects, for reading and retention. What this machine has copies of is not asked for."""

    def __init__(self, location: ObjectLocation, bucket: Bucket | None = None) -> None:
        self.location = location
        self._opened = bucket
        self._copies = location.folder / COPIES if location.folder else None
        self._chain: ObjectChain | None = None
        self._added = 0
        self._begins: int | None = None

    @property
    def bucket(self) -> Bucket:
        if self._opened is None:
            self._opened = Bucket(self.location)
        return self._opened

    # -- as a storage ---------------------------------------------------------------------------------------------

    def segments(self, until: SegmentId | None = None) -> list[Segment]:
        """The chain, extended from this machine's copies where they reach far enough, else from a listing."""
        chain = self._chain
        if chain is None or not self._copies or self._added >= max(_LIST_AGAIN, len(chain.segments)):
            chain = self._chain = ObjectChain(of_log(self.bucket.list(), self._first()))
            self._added = 0
        elif not self._extend_from_copies(chain) or (until is not None and chain.newest < until.part):
            after = object_name(chain.segments[-1].id) if chain.segments else ""
            for entry in of_log(self.bucket.list(after), self._first()):
                chain.add(entry)
        return list(chain.segments)

    def stamp(self) -> int:
        """The time of the copies' folder, which changes with each object; without copies a number per second."""
        try:
            if self._copies is not None:
                return self._copies.stat().st_mtime_ns
        except FileNotFoundError:
            pass
        return int(time.monotonic() / _LIST_SECONDS)

    def open(self, key: SegmentId) -> Content:
        """From this machine's copy, or piece by piece from the bucket."""
        if self._copies is not None:
            try:
                return SegmentFile(os.open(self._copies / object_name(key), os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                pass
        return ObjectContent(self.bucket, object_name(key))

    def where(self, key: SegmentId) -> str:
        return self.location.sibling(object_name(key))

    def begin(self, segments: Sequence[Segment], start: int) -> int:
        """No transaction is in two objects of different bases, so what ends at a base is whole before it."""
        at = bisect_right(segments, start, key=lambda segment: segment.id.base) - 1
        while at > 0 and segments[at - 1].id.base == segments[at].id.base:
            at -= 1
        return max(at, 0)

    def modified(self, segment: Segment) -> float:
        return self._chain.modified[segment.id] if self._chain else 0.0

    def delete_all(self, segments: Sequence[Segment], before: int) -> None:
        """Also removes what was cut off before, once no reader can need it."""
        assert self._chain is not None
        names = [object_name(segment.id) for segment in segments]
        rest = self._chain.segments[len(segments) :]
        if rest and self._chain.cut_off and before >= self._chain.segments[0].id.base:
            names, self._chain.cut_off = [*self._chain.cut_off, *names], []
        reach("log.prune.before")
        self.bucket.delete(names)
        reach("log.prune.after")
        self._chain.drop(segments)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _first(self) -> int:
        """The number of the log's first object."""
        if self._begins is None:
            self._begins = first_of(self.bucket.get(SOURCE))
        return self._begins

    def _extend_from_copies(self, chain: ObjectChain) -> bool:
        """Add what follows the chain from the copies. False, and nothing added, where a copy is missing."""
        assert self._copies is not None
        try:
            with os.scandir(self._copies) as folder:
                copies = {key.part: (key, entry) for entry in folder if (key := object_id(entry.name)) is not None}
        except FileNotFoundError:
            return False
        newest = max(copies, default=-1)
        fresh = range(chain.newest + 1, newest + 1)
        if not chain.segments or newest < chain.newest or not all(number in copies for number in fresh):
            return False
        for number in fresh:
            key, entry = copies[number]
            status = entry.stat()
            chain.add(BucketEntry(object_name(key), status.st_size, status.st_mtime))
        self._added += len(fresh)
        return True


class ObjectContent:
    """An object read from the bucket, at least a mebibyte at a time: heads and descriptions lie close together."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._offset = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        start = offset - self._offset
        if not 0 <= start <= start + length <= len(self._data):
            self._data = self._bucket.get_range(self._name, offset, max(length, _READ_BYTES))
            self._offset, start = offset, 0
        return self._data[start : start + length]

    def size(self) -> int:
        return self._bucket.size(self._name)

    def close(self) -> None:
        self._data = b""


class Copies:
    """This machine's copies of the newest objects, at most `room` bytes; a missing one is read from the bucket.

    A copy gets its name when the object is made, so that none is of an object that never was. Nothing is synced: what
    is there at the next start is thrown away.
    """

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder / COPIES
        self._room = room
        self._copied_bytes = 0
        self._files: deque[tuple[Path, int]] = deque()
        private.make_folder(self._folder)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    def draft(self, name: str, data: bytes) -> None:
        try:
            private.write_bytes(self._folder / f"{name}.new", data)
        except OSError:  # no room: then there is no copy
            (self._folder / f"{name}.new").unlink(missing_ok=True)

    def keep(self, name: str, size: int) -> None:
        path = self._folder / name
        try:
            path.with_name(f"{name}.new").rename(path)
        except OSError:
            return
        self._files.append((path, size))
        self._copied_bytes += size
        while len(self._files) > _MOST_COPIES or (len(self._files) > 1 and self._copied_bytes > self._room):
            oldest, oldest_bytes = self._files.popleft()
            oldest.unlink(missing_ok=True)
            self._copied_bytes -= oldest_bytes

    def drop(self, name: str) -> None:
        (self._folder / f"{name}.new").unlink(missing_ok=True)
