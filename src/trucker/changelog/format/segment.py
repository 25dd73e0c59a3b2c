"""Segments: their names, the storage interface that readers use, and its implementation for a folder.

Objects in a bucket are another `Storage` (`object_chain`); positions, blocks and indexes know no paths.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from trucker import private
from trucker.errors import ChangeLogError
from trucker.failpoint import reach

_NAME = re.compile(r"([0-9A-F]{16})\.([0-9A-F]{4,8})(?:\.open|-([0-9A-F]{16})\.([0-9A-F]+)\.segment)")
_TRIES: Final = 5
_SYNC_FILE_RANGE_WRITE: Final = 2
# Twice the longest tick of Linux (CONFIG_HZ=100), the resolution of file times.
_TICK_NS: Final = 20_000_000
# Linux only; elsewhere the system writes back when it likes.
_sync_file_range: Final[Any] = getattr(ctypes.CDLL(None), "sync_file_range", None)


class SegmentId(NamedTuple):
    """Which segment: the end of the last commit before it, and its number among those of that base; in log order."""

    base: int
    part: int

    @property
    def stem(self) -> str:
        return f"{self.base:016X}.{self.part:04X}"


NOWHERE: Final = SegmentId(0, 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file. While it is written `last` is None and `bytes` unknown."""

    id: SegmentId
    last: int | None = None
    bytes: int = 0

    @property
    def name(self) -> str:
        if self.last is None:
            return f"{self.id.stem}.open"
        return f"{self.id.stem}-{self.last:016X}.{self.bytes:X}.segment"


class Content(Protocol):
    """What is in a segment."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes, or fewer where the segment ends."""

    def size(self) -> int:
        """Bytes at this moment."""

    def close(self) -> None: ...


class Storage(Protocol):
    """Where segments are, for those who read and for those who delete."""

    def segments(self, until: SegmentId | None = None) -> list[Segment]:
        """All segments of the log, in its order; up to `until` at least, if there is such a one."""

    def stamp(self) -> int:
        """Another number when the segments may be others than before."""

    def open(self, key: SegmentId) -> Content:
        """A segment's content; FileNotFoundError when it is gone."""

    def where(self, key: SegmentId) -> str:
        """What to call a segment in a message."""

    def begin(self, segments: Sequence[Segment], start: int) -> int:
        """The place in the list before which no segment has anything from position `start` on."""

    def modified(self, segment: Segment) -> float:
        """When it was last written, in seconds since 1970."""

    def delete_all(self, segments: Sequence[Segment], before: int) -> None:
        """Delete these, the oldest there are, durably; no truck needs anything that ends at `before` or earlier."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment in a file that is open for reading; it outlives the file's renaming."""

    fd: int

    def read(self, offset: int, length: int) -> bytes:
        return read_exactly(self.fd, offset, length)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        os.close(self.fd)


class Folder:
    """Segments in a folder: list, read, append, sync, truncate, seal, delete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def segments(self, until: SegmentId | None = None) -> list[Segment]:
        """All segments in log order. During a rename a segment may be met under either name, never both."""
        by_id: dict[SegmentId, Segment] = {}
        for path in self.path.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                key = SegmentId(int(match[1], 16), int(match[2], 16))
                segment = Segment(key, int(match[3], 16), int(match[4], 16)) if match[3] else Segment(key)
                # A listing that runs beside a rename may give both names; the sealed one is the later.
                if segment.last is not None or segment.id not in by_id:
                    by_id[segment.id] = segment
        return [by_id[key] for key in sorted(by_id)]

    def stamp(self) -> int:
        """The time of the folder's last change: files created, deleted or renamed.

        Two changes within one tick of the file system's clock leave the same time, so while that time is too recent
        each call returns another number.
        """
        changed = self.path.stat().st_mtime_ns
        return changed if time.time_ns() - changed > _TICK_NS else -time.monotonic_ns()

    def open(self, key: SegmentId) -> SegmentFile:
        """For reading, whatever the segment is called at the moment; FileNotFoundError when it is gone."""
        # The writer may seal, and so rename, the segment between the listing and the open.
        for _ in range(_TRIES):
            try:
                return SegmentFile(os.open(self.path / f"{key.stem}.open", os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                pass
            for segment in self.segments():
                if segment.id == key:
                    try:
                        return SegmentFile(os.open(self.path / segment.name, os.O_RDONLY | os.O_CLOEXEC))
                    except FileNotFoundError:
                        break
        raise FileNotFoundError(f"segment {key.stem}")

    def where(self, key: SegmentId) -> str:
        names = {segment.id: segment.name for segment in self.segments()}
        return str(self.path / names.get(key, key.stem))

    def begin(self, segments: Sequence[Segment], start: int) -> int:
        return 0

    def create(self, key: SegmentId) -> int:
        """A new segment, open for appending. It is durable by name once the folder is synced."""
        return private.open_file(self.path / Segment(key).name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def size(self, segment: Segment) -> int:
        return (self.path / segment.name).stat().st_size

    def modified(self, segment: Segment) -> float:
        return (self.path / segment.name).stat().st_mtime

    def truncate(self, segment: Segment, size: int) -> None:
        """Cut the end off, durably."""
        fd = os.open(self.path / segment.name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def seal(self, segment: Segment, last: int) -> Segment:
        """Give a segment its final name, which tells its length, so that a file cut short is noticed."""
        sealed = Segment(segment.id, last, self.size(segment))
        (self.path / segment.name).rename(self.path / sealed.name)
        return sealed

    def delete(self, segment: Segment) -> None:
        (self.path / segment.name).unlink()

    def delete_all(self, segments: Sequence[Segment], before: int) -> None:
        for segment in segments:
            reach("log.prune.before")
            self.delete(segment)
            reach("log.prune.after")
        self.sync()

    def sync(self) -> None:
        """Make creations, renames and deletions durable."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_chain(folder: object, segments: Sequence[Segment]) -> None:
    """Refuse a log with a segment missing in the middle. What is missing at its beginning was pruned."""
    for before, after in pairwise(segments):
        same = after.id == SegmentId(before.id.base, before.id.part + 1)
        next_base = after.id.part == 0 and (before.last is None or after.id.base <= before.last)
        if not (same or next_base):
            raise ChangeLogError(
                f"a segment is missing in {folder} between {before.name} and {after.name}",
                code="TRK303",
                remedy="restore the file; or run `trucker reset`, then `trucker run`, which copies the tables again",
            )


def check_reaches(folder: object, segments: Sequence[Segment], durable: SegmentId | None) -> None:
    """Refuse a log whose last segments are missing. All of them may be: then they have been applied and pruned."""
    if durable is not None and segments and segments[-1].id < durable:
        raise ChangeLogError(
            f"segment {durable.stem} is missing in {folder}",
            code="TRK303",
            remedy="restore the file; or run `trucker reset`, then `trucker run`, which copies the tables again",
        )


def read_exactly(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes, or fewer where the file ends."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    received = len(data)
    while received < length:
        data = os.pread(fd, length - received, offset + received)
        if not data:
            break
        parts.append(data)
        received += len(data)
    return b"".join(parts)


def start_writing_back(fd: int, offset: int, length: int) -> None:
    """Let the system begin to put these bytes on disk, without waiting: the sync at the commit is short then."""
    if _sync_file_range is not None:
        _sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def write_all(fd: int, *buffers: bytes | memoryview) -> int:
    """Write every byte of the buffers in order, also where the system writes them in parts. Returns their number."""
    total = sum(map(len, buffers))
    written = os.writev(fd, buffers)
    if written < total:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(fd, rest) :]
    return total
