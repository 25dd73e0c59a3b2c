"""The writer of a change log in a folder. There is one, in the capture process.

    append, extend    into memory; cut into blocks of about 4 MiB, written but not promised (`block_builder`)
    flush             everything up to the last commit is on disk, published to readers, and may be acknowledged
    see               nothing of interest below an LSN; as durable as a commit
    rollback          back to the durable end, as when the source will send again what came after it

A segment is sealed when no transaction is open in it any more. `open_writer` opens the writer of a location: this one,
or `object_writer`'s, which has the same methods.

When the disk is full (or a quota reached) `ChangeLogFull` is raised, which is transient: after `rollback` the log is
as it was at the durable end, nothing after it has been acknowledged, and the source keeps it. Any other failure to
write is a `ChangeLogError`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trucker.changelog.folder.recovery import recover
from trucker.changelog.format.block_builder import BLOCK_BYTES as BLOCK_BYTES
from trucker.changelog.format.block_builder import BlockBuilder, DescribedSegment
from trucker.changelog.format.descriptions import Descriptions
from trucker.changelog.format.durable import Durable, DurableFile
from trucker.changelog.format.segment import Folder, Segment, SegmentId, start_writing_back, write_all
from trucker.changelog.identity import SourceIdentity, check_source
from trucker.changelog.writer_lock import LOCK_FILE, cannot_write, hold_lock
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.pg.messages import Messages

SEGMENT_BYTES: Final = 64 << 20


@dataclass(slots=True)
class _OpenSegment(DescribedSegment):
    """A segment being written, and its file."""

    fd: int = -1
    dirty: bool = False

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


class LogWriter(BlockBuilder):
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
        self._lock = hold_lock(folder / LOCK_FILE, lock_seconds)
        self._segments: list[_OpenSegment] = []
        self._new_names = False
        try:
            self._file = DurableFile(folder, write=True)
        except OSError as error:
            os.close(self._lock)
            raise cannot_write(folder, error) from error
        try:
            with self._writing():
                durable = recover(self._storage, self._file.read())
                self._file.write(durable, sync=True)
        except BaseException:
            self.close()
            raise
        self._last_id = self._newest()
        super().__init__(durable, block_bytes)

    @property
    def safe(self) -> Lsn:
        """The position that may be acknowledged to the source (I2)."""
        return self.durable.seen_lsn

    @property
    def landed(self) -> bool:
        """Whether something has become durable that `flush` has yet to publish: here it does both."""
        return False

    @property
    def landing(self) -> int:
        """A descriptor that becomes readable when that is so."""
        return -1

    @property
    def due(self) -> float | None:
        """When `flush` is to be called though nothing comes (monotonic)."""
        return None

    # -- out ------------------------------------------------------------------------------------------------------

    def flush(self) -> Durable:
        """Make every finished transaction durable and publish it."""
        with self._writing():
            self._write_complete()
            if self._written != self.durable:
                self._publish(self._written)
        return self.durable

    def settle(self) -> Durable:
        """As `flush`, and wait for it."""
        return self.flush()

    def see(self, lsn: Lsn, *, urgent: bool = False) -> Durable:
        """Record that nothing of interest is missing below `lsn`; ignored inside a transaction, whose end is open."""
        self.flush()
        if lsn > self.durable.seen_lsn and not self.in_transaction:
            with self._writing():
                self._written = replace(self._written, seen_lsn=lsn)
                self._publish(self._written)
        return self.durable

    def rollback(self) -> None:
        """Forget everything after the durable end: the source sends it again, with the descriptions."""
        self._forget()
        # A new segment begins in any case: the last one may hold descriptions that the messages forgotten here
        # replaced, and its blocks would refer to them.
        with self._writing():
            self._cut_back()
            self._storage.sync()
        self._descriptions = Descriptions()
        self._last_id = self._newest()

    def refresh(self) -> Durable:
        """The durable end as the storage has it: no other process can have moved it."""
        return self.durable

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

    def _cut(self, at_least: int) -> None:
        with self._writing():
            super()._cut(at_least)

    def _write_block(self, messages: Messages) -> None:
        """Append one block to the segment; the durable end does not move."""
        summary = self._summary(messages)
        segment = self._segment()
        block = self._block(messages, summary, segment)
        segment.dirty = True
        reach("capture.write.before")
        written = write_all(segment.fd, *block.buffers)
        reach("capture.write.after")
        if summary.open:
            start_writing_back(segment.fd, segment.size, written)
        self._wrote(block, segment)

    def _segment(self) -> _OpenSegment:
        """The segment to write to; a new one where there is none or the last is full."""
        if self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        if self._segments:
            self._segments[-1].finish()
        base = int(self._written.commit_lsn)
        last = self._last_id
        key = SegmentId(base, 0) if last is None or base > last.base else SegmentId(last.base, last.part + 1)
        segment = _OpenSegment(key, fd=self._storage.create(key))
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
        # Without fsync after a commit: recovery finds commits in the segments. Progress without a commit is recorded
        # in this file alone, and needs the fsync.
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
            raise cannot_write(self._storage.path, error) from error
