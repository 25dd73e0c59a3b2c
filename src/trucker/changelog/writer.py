"""Writing the change log: one writer, at capture.

    append … append   into memory; cut into blocks of about 4 MiB, written but not promised
    flush             everything up to the last commit is on disk, published to readers, and may be acknowledged
    see               nothing of interest below an LSN; as durable as a commit
    rollback          back to the durable end, as when the source will send again what came after it

A block is cut at a commit, or inside a transaction that is too large for one (then it holds nothing but that
transaction), and before a relation's new description. A segment is sealed when no transaction is open in it any more.
Relation and Type messages that say what is known already are dropped; a new segment gets those it needs written into
it anew.

When the disk is full (or a quota reached) `ChangeLogFull` is raised, which is transient: after `rollback` the log is
as it was at the durable end, nothing after it has been acknowledged, and the source keeps it. Any other failure to
write is a `ChangeLogError`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trucker.changelog.block import (
    COMMIT,
    MESSAGE,
    RELATION,
    TYPE,
    Open,
    RelationEntry,
    encode,
    head_size,
    summarise,
    used_relations,
)
from trucker.changelog.durable import Durable, DurableFile
from trucker.changelog.recovery import recover
from trucker.changelog.relation import Descriptions
from trucker.changelog.segment import Folder, Segment, SegmentId, start_writing_back, write_all
from trucker.changelog.source import SourceIdentity, check_source
from trucker.errors import ChangeLogError, ChangeLogFull, LockedError
from trucker.failpoint import reach
from trucker.lsn import Lsn

BLOCK_BYTES: Final = 4 << 20
SEGMENT_BYTES: Final = 64 << 20
LOCK_FILE: Final = "writer.lock"
_DESCRIBING = frozenset({RELATION, TYPE})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class _OpenSegment:
    """A segment being written, and the descriptions it has got: where each relation's message in force lies in it."""

    id: SegmentId
    fd: int
    size: int = 0
    dirty: bool = False
    described: dict[bytes, RelationEntry] = field(default_factory=dict)

    def sync(self) -> None:
        if self.dirty:
            os.fdatasync(self.fd)
            self.dirty = False

    def finish(self) -> None:
        """Full: what is in it goes to the disk now. A transaction may fill more segments than files may be open."""
        self.sync()
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LogWriter:
    """See the module. Not for use by several threads at once."""

    def __init__(
        self,
        folder: Path,
        source: SourceIdentity,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        block_bytes: int = BLOCK_BYTES,
        lock_seconds: float = 0.0,
    ) -> None:
        """Open the log `create_log` made, put its end right, and keep others from writing it.

        `lock_seconds` is how long to wait for another writer, which may be on its way out, before `LockedError`.
        """
        check_source(folder, source)
        self._storage = Folder(folder)
        self._segment_bytes = segment_bytes
        self._block_bytes = block_bytes
        self._lock = _lock(folder / LOCK_FILE, lock_seconds)
        self._file = DurableFile(folder, write=True)
        self._segments: list[_OpenSegment] = []
        self._new_names = False
        self._descriptions = Descriptions()
        self._written: Durable
        try:
            self.durable = recover(self._storage, self._file.read())
            self._file.write(self.durable, sync=True)
        except BaseException:
            self.close()
            raise
        self._last_id = self._newest()
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

    # -- out ------------------------------------------------------------------------------------------------------

    def flush(self) -> Durable:
        """Make every finished transaction durable and publish it."""
        with self._writing():
            self._write_complete()
            if self._written != self.durable:
                self._publish(self._written)
        return self.durable

    def see(self, lsn: Lsn) -> Durable:
        """Nothing of interest is missing below `lsn`. Inside a transaction that is not known, and nothing changes."""
        self.flush()
        if lsn > self.durable.seen_lsn and not self.in_transaction:
            with self._writing():
                self._written = replace(self._written, seen_lsn=lsn)
                self._publish(self._written)
        return self.durable

    def rollback(self) -> None:
        """Forget everything after the durable end; what follows comes from there again, descriptions too."""
        self._forget()
        # A new segment begins in any case: which descriptions are in force, and which the last segment has, may
        # have been told apart by what is forgotten here.
        with self._writing():
            self._cut_back()
            self._storage.sync()
        self._descriptions = Descriptions()
        self._last_id = self._newest()

    def _cut_back(self) -> None:
        """Delete backwards, seal forwards: a crash in between leaves what recovery understands."""
        while self._segments and (self._segments[-1].id > self.durable.segment or not self.durable.offset):
            segment = self._segments.pop()
            segment.close()
            self._storage.delete(Segment(segment.id))
        while self._segments:
            segment = self._segments[0]
            if segment.id == self.durable.segment:
                self._storage.truncate(Segment(segment.id), self.durable.offset)
            self._storage.seal(Segment(segment.id), self.durable.commit_lsn)
            self._segments.pop(0).close()

    def close(self) -> None:
        """Give the log back. What has not been flushed is forgotten; the next writer cuts it off."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._file.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The state at the durable end."""
        self._messages: list[bytes] = []
        self._bytes = 0
        self._complete = 0
        self._open: Open | None = None
        self._written = self.durable

    def _cut(self, at_least: int) -> None:
        """Write the finished transactions as a block, and of an unfinished one what is more than `at_least` bytes."""
        with self._writing():
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

    def _write_block(self, messages: list[bytes]) -> None:
        """Append one block to the segment; the durable end does not move."""
        started = self._open
        summary = summarise(messages, started, self._written.commit_lsn, self._written.commit_time)
        segment = self._segment()
        messages, described, relations = self._with_descriptions(messages, segment)
        new_shape = not segment.described.keys().isdisjoint(described)
        head, body = encode(messages, summary, started, relations, new_shape=new_shape)
        segment.dirty = True
        reach("capture.write.before")
        written = write_all(segment.fd, head, body)
        reach("capture.write.after")
        if summary.open:
            start_writing_back(segment.fd, segment.size, written)
        segment.size += written
        segment.described.update(described)
        self._open = summary.open
        if summary.open is None:
            end = Lsn(summary.end)
            self._written = Durable(
                end, max(end, self._written.seen_lsn), summary.commit_time, segment.id, segment.size
            )

    def _with_descriptions(
        self, messages: list[bytes], segment: _OpenSegment
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

    def _segment(self) -> _OpenSegment:
        """The segment to write to; a new one where there is none or the last is full."""
        if self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        if self._segments:
            self._segments[-1].finish()
        base = int(self._written.commit_lsn)
        last = self._last_id
        key = SegmentId(base, 0) if last is None or base > last.base else SegmentId(last.base, last.part + 1)
        segment = _OpenSegment(key, self._storage.create(key))
        self._last_id = key
        self._segments.append(segment)
        self._new_names = True
        return segment

    def _newest(self) -> SegmentId | None:
        return max((segment.id for segment in self._storage.segments()), default=None)

    def _publish(self, durable: Durable) -> None:
        """Sync what was written, then say so; then seal the segments in which nothing is unfinished."""
        reach("capture.fsync.before")
        for segment in self._segments:
            segment.sync()
        if self._new_names:
            self._storage.sync()
            self._new_names = False
        reach("capture.fsync.after")
        reach("capture.publish.before")
        # A commit can be found again in the segments; progress without one is told by this file alone.
        self._file.write(durable, sync=durable.commit_lsn == self.durable.commit_lsn)
        self.durable = durable
        reach("capture.publish.after")
        self._seal_finished()

    def _seal_finished(self) -> None:
        """Seal all segments but the last; the last too when it is full and no transaction is open in it."""
        keep = 0 if self._segments and self._segments[-1].size >= self._segment_bytes and self._open is None else 1
        finished = self._segments[: len(self._segments) - keep]
        if self._open is not None:
            finished = [segment for segment in finished if segment.id < self.durable.segment]
        for segment in finished:
            reach("capture.seal.before")
            self._storage.seal(Segment(segment.id), self.durable.commit_lsn)
            reach("capture.seal.after")
            segment.close()
            self._segments.remove(segment)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"the change log in {self._storage.path} cannot be written: {os.strerror(error.errno or 0)}"
            if error.errno in _FULL:
                raise ChangeLogFull(reason, remedy="make room on that disk; capture goes on by itself") from error
            raise ChangeLogError(reason, code="TRK306", remedy="check the disk and the folder's permissions") from error


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


def _lock(path: Path, seconds: float) -> int:
    """Hold the writer's lock; the file says who does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
                os.close(fd)
                raise LockedError(
                    f"the change log in {path.parent} is being written by process {holder}",
                    remedy="stop the other trucker on this project",
                ) from None
            time.sleep(0.02)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
