"""The file that holds the durable end of a log: the writer overwrites it, readers watch it.

Two records of 64 bytes, at 0 and 512, written in turn, so that a torn write leaves the one before. Little-endian:

    offset  size  field
    0       8     sequence, from 1; the record with the greater one counts
    8       8     commit: end LSN of the last durable commit
    16      8     seen: nothing of interest is missing below this LSN
    24      8     commit time, µs since 1970
    32      8     segment's base
    40      4     segment's part
    44      8     offset in that segment at which the durable blocks end
    52      4     CRC-32 of the 52 bytes before

A log in object storage has such a file too, on the machine where capture and the driver run (`object_chain`). There it
only carries messages from one to the other, and its segment's part has 8 bytes (later fields are moved by four bytes).

The file is never replaced, so a reader's watch on it stays good. What a record says is on disk before it is written;
the record itself is only flushed where nothing else could tell it after a crash of the machine (`seen`), see
`writer`.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trucker import private
from trucker.changelog.format.segment import NOWHERE, SegmentId
from trucker.errors import ChangeLogError
from trucker.file_errors import file_error
from trucker.lsn import Lsn

FILE: Final = "durable"
_RECORD = struct.Struct("<QQQqQIQ")
_WIDE_RECORD = struct.Struct("<QQQqQQQ")
# A sector: a torn write of one record does not touch the other.
_STRIDE = 512
_IN_MODIFY = 0x2
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_POLL_SECONDS = 0.01
# inotify reports nothing on network file systems, so the file is read again after this time without an event.
_RECHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Durable:
    """How far the log is durable: `commit_lsn` is the end of the last commit, `seen_lsn` is never below it."""

    commit_lsn: Lsn
    seen_lsn: Lsn
    commit_time: int = 0
    segment: SegmentId = NOWHERE
    offset: int = 0


class DurableFile:
    """The file, open for reading or for writing too. Reading is safe beside a writer."""

    def __init__(self, folder: Path, *, write: bool = False, wide: bool = False) -> None:
        """`wide`: as a log of objects has it."""
        self._record = _WIDE_RECORD if wide else _RECORD
        self._fd = private.open_file(folder / FILE, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
        self._sequence = 0

    def read(self) -> Durable | None:
        """The newest record; None where neither is whole."""
        size = self._record.size + 4
        data = os.pread(self._fd, _STRIDE + size, 0)
        best: tuple[int, ...] | None = None
        for start in (0, _STRIDE):
            record = data[start : start + size]
            if len(record) < size:
                continue
            if zlib.crc32(record[:-4]) != int.from_bytes(record[-4:], "little"):
                continue
            fields = self._record.unpack_from(record)
            if best is None or fields[0] > best[0]:
                best = fields
        if best is None:
            return None
        self._sequence, commit, seen, commit_time, base, part, offset = best
        return Durable(Lsn(commit), Lsn(seen), commit_time, SegmentId(base, part), offset)

    def write(self, durable: Durable, *, sync: bool) -> None:
        """Publish; readers that wait are woken by it."""
        self._sequence += 1
        record = self._record.pack(
            self._sequence,
            durable.commit_lsn,
            durable.seen_lsn,
            durable.commit_time,
            durable.segment.base,
            durable.segment.part,
            durable.offset,
        )
        record += zlib.crc32(record).to_bytes(4, "little")
        os.pwrite(self._fd, record, self._sequence % 2 * _STRIDE)
        if sync:
            os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_durable(folder: Path, *, wide: bool = False) -> Durable:
    """The durable end of the log in `folder`; `ChangeLogError` where there is no log, or it cannot be read."""
    try:
        with DurableFile(folder, wide=wide) as file:
            durable = file.read()
    except FileNotFoundError:
        raise missing(folder) from None
    except OSError as error:
        raise file_error(error, "reading", folder / FILE, ChangeLogError, code="TRK306") from error
    if durable is None:
        raise unreadable(folder)
    return durable


def missing(location: object) -> ChangeLogError:
    return ChangeLogError(
        f"the change log in {location} does not exist",
        code="TRK301",
        remedy="move it back; or run `trucker reset`, then `trucker run`, which copies the tables again",
    )


def unreadable(folder: Path) -> ChangeLogError:
    return ChangeLogError(
        f"{folder / FILE} is damaged: none of its records is complete",
        code="TRK303",
        remedy="restore it from a backup; or run `trucker reset`, then `trucker run`, which copies the tables again",
    )


class Watch:
    """Sleeps until the durable file is written: by inotify, or by polling where there is none."""

    def __init__(self, folder: Path) -> None:
        self._fd = _inotify(folder / FILE)

    def wait(self, deadline: float) -> None:
        """Return after the next write, at `deadline` (monotonic) at the latest; may return earlier without a write."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        if self._fd < 0:
            time.sleep(min(remaining, _POLL_SECONDS))
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(min(remaining, _RECHECK_SECONDS) * 1000):
            self._drain()

    def _drain(self) -> None:
        with suppress(BlockingIOError):  # what one read leaves wakes the next wait
            os.read(self._fd, 4096)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _inotify(path: Path) -> int:
    """An inotify descriptor that becomes readable when `path` is written; -1 where the system has none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(_NONBLOCK_CLOEXEC))
    except (OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY)) < 0:
        os.close(fd)
        return -1
    return fd
