"""The writer of a change log in object storage. Its methods are those of `folder.writer.LogWriter`.

    append, extend    into memory; cut into blocks, and those gathered into an object of about 4 MiB
    flush             begins to store the object gathered so far, if none is on its way and the last was not just now;
                      publishes what has been stored meanwhile
    settle            waits until all that is finished is stored
    see               nothing of interest below an LSN: told to this machine's readers at once, stored now and then
    rollback, refresh back to the end that the storage has, as when the source will send again what came after it

One object is on its way at a time, while the next gathers, so what is stored is always a whole beginning of what came.
Only what is stored is acknowledged to the source (`safe`, I2). That another writer has continued the log, on a
machine that took over or was thought dead, is found when a name is taken: `ChangeLogUnavailable`, which is transient;
after `refresh` this one goes on from the other's end, if the slot lets it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from trucker.changelog.bucket import Bucket, TakenError
from trucker.changelog.format.block_builder import BLOCK_BYTES, Block, BlockBuilder, DescribedSegment
from trucker.changelog.format.descriptions import Descriptions
from trucker.changelog.format.durable import Durable, DurableFile
from trucker.changelog.format.segment import SegmentId
from trucker.changelog.identity import SourceIdentity, check_source
from trucker.changelog.location import ObjectLocation
from trucker.changelog.objects.object_chain import Copies, object_name, seen_name
from trucker.changelog.objects.object_recovery import end_of, read_start
from trucker.changelog.writer_lock import LOCK_FILE, hold_lock
from trucker.errors import ChangeLogError, ChangeLogUnavailable
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.pg.messages import Messages

PUT_EVERY: Final = 0.1
# A mark costs two requests. A server that asks for a reply does not wait for this: `see` stores at once when `urgent`.
SEE_STORED_SECONDS: Final = 10.0
COPY_BYTES: Final = 64 << 20


@dataclass(slots=True)
class _Object(DescribedSegment):
    """An object that gathers: its blocks, and the durable end once it is stored; None while it ends inside a
    transaction."""

    blocks: list[bytes | memoryview] = field(default_factory=list)
    durable: Durable | None = None

    def add(self, block: Block) -> None:
        self.blocks += block.buffers


class ObjectWriter(BlockBuilder):
    """See the module. Not for use by several threads at once; it stores objects in a thread of its own."""

    def __init__(
        self,
        location: ObjectLocation,
        source: SourceIdentity,
        *,
        object_bytes: int = BLOCK_BYTES,
        block_bytes: int = BLOCK_BYTES,
        put_every: float = PUT_EVERY,
        lock_seconds: float = 0.0,
    ) -> None:
        """Open the log `create_log` made. `put_every` is the shortest time between two objects, in seconds.

        The lock excludes a second writer on this machine; on another machine, the names of the objects do.
        """
        assert location.folder is not None
        self._location = location
        self._bucket = Bucket(location)
        check_source(location, source)
        self._start = read_start(location, self._bucket)
        self._object_bytes = object_bytes
        self._put_every = put_every
        self._object: _Object | None = None
        self._put_due = time.monotonic()
        self._stale = False
        self._lock = hold_lock(location.folder / LOCK_FILE, lock_seconds)
        self._file = DurableFile(location.folder, write=True, wide=True)
        self._file.read()  # for the sequence of its records
        self._copies = Copies(location.folder, COPY_BYTES)
        self._upload = _Upload()
        try:
            durable = self._find_end()
            super().__init__(durable, block_bytes)
            self._file.write(durable, sync=False)
        except BaseException:
            self.close()
            raise

    def _find_end(self) -> Durable:
        end = end_of(self._location, self._bucket, self._start)
        self._number = end.number
        self._marks = end.seen
        self._safe = end.durable.seen_lsn
        self._seen_at = time.monotonic() - SEE_STORED_SECONDS
        return end.durable

    # -- what it is at --------------------------------------------------------------------------------------------

    @property
    def safe(self) -> Lsn:
        """The position that may be acknowledged to the source (I2)."""
        return self._safe

    @property
    def pending(self) -> int:
        """Bytes in memory that a flush could begin to store."""
        return super().pending + (self._object.size if self._object else 0)

    @property
    def held(self) -> int:
        """Bytes in memory: what gathers and what is on its way, each about an object's worth at the most."""
        return self._bytes + (self._object.size if self._object else 0) + self._upload.size

    @property
    def landed(self) -> bool:
        """Whether something has been stored, or has failed to be, that `flush` has yet to take note of."""
        return self._upload.finished

    @property
    def landing(self) -> int:
        """A descriptor that becomes readable when that is so."""
        return self._upload.signal

    @property
    def due(self) -> float | None:
        """When `flush` is to be called though nothing comes (monotonic)."""
        return self._put_due if self.pending and not self._upload.busy else None

    # -- out ------------------------------------------------------------------------------------------------------

    def flush(self) -> Durable:
        """Publish what has been stored, and begin to store what has come since, if it is time."""
        self._take_note()
        if not self._upload.busy and time.monotonic() >= self._put_due:
            self._write_complete()
            self._send()
        return self.durable

    def settle(self) -> Durable:
        """Wait until everything up to the last commit is stored and published."""
        self._write_complete()
        self._send()
        self._land()
        return self.durable

    def see(self, lsn: Lsn, *, urgent: bool = False) -> Durable:
        """Nothing of interest is missing below `lsn`; where something is still to be stored, that is not known yet.

        It is published to readers on this machine. It is stored, and may be acknowledged, every ten seconds, or when
        `urgent`.
        """
        self.flush()
        idle = not (self._upload.busy or self._bytes or self._object or self._open)
        if idle and lsn > self.durable.seen_lsn:
            self._publish(replace(self.durable, seen_lsn=lsn))
            self._written = self.durable
        now = time.monotonic()
        if idle and self.durable.seen_lsn > self._safe and (urgent or now - self._seen_at >= SEE_STORED_SECONDS):
            self._seen_at = now
            self._store_seen(self.durable.seen_lsn)
        return self.durable

    def rollback(self) -> None:
        """Forget everything that is not stored; `refresh` finds out what is. Nothing may be appended before."""
        self._upload.give_up()
        self._stale = True

    def refresh(self) -> Durable:
        """The end as the storage has it, after a rollback; a writer before us may have moved it, too."""
        if self._stale:
            self._object = None
            durable = self._find_end()
            self._publish(durable)
            self._descriptions = Descriptions()
            self._forget()
            self._stale = False
        return self.durable

    def close(self) -> None:
        """Give the log back. What has not been stored is forgotten."""
        self._upload.close()
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

    def _write_block(self, messages: Messages) -> None:
        """Add a block to the object. One that leaves a transaction open does not share it with finished ones."""
        summary = self._summary(messages)
        if summary.open is not None and self._open is None:
            self._send()
        target = self._object
        if target is None:
            target = self._object = _Object(SegmentId(int(self._written.commit_lsn), self._number))
            self._number += 1
        block = self._block(messages, summary, target)
        target.add(block)
        self._wrote(block, target)
        target.durable = self._written if self._open is None else None
        if target.size >= self._object_bytes:
            self._send()

    def _send(self) -> None:
        """Begin to store the object, when the one before is stored."""
        if self._object is None:
            return
        self._land()
        full, self._object = self._object, None
        self._put_due = time.monotonic() + self._put_every
        name, data = object_name(full.id), b"".join(full.blocks)
        self._upload.start(len(data), lambda: self._store(name, data), full.durable)

    def _store(self, name: str, data: bytes) -> None:
        """In the storing thread."""
        self._copies.draft(name, data)
        reach("capture.put.before")
        try:
            self._bucket.put_new(name, data)
        except TakenError:
            self._copies.drop(name)
            raise ChangeLogUnavailable(
                f"another writer has continued the change log in {self._location}",
                code="TRK312",
                remedy="stop the other instance if this error repeats; trucker continues from there",
            ) from None
        except BaseException:
            self._copies.drop(name)
            raise
        reach("capture.put.after")
        self._copies.keep(name, len(data))

    def _store_seen(self, lsn: Lsn) -> None:
        name, old = seen_name(self._start.first, lsn), self._marks

        def store() -> None:
            self._bucket.put(name, b"")
            self._bucket.delete([mark for mark in old if mark != name])

        self._marks = (name,)
        self._upload.start(0, store, lsn)

    def _land(self) -> None:
        """Wait for what is on its way."""
        self._upload.wait()
        self._take_note()

    def _take_note(self) -> None:
        """Publish what has been stored; raise why it has not."""
        stored = self._upload.result()
        if isinstance(stored, Lsn):
            self._safe = max(self._safe, stored)
        elif stored is not None:
            durable = replace(stored, seen_lsn=max(stored.seen_lsn, self.durable.seen_lsn))
            self._publish(durable)
            self._safe = max(self._safe, durable.commit_lsn)

    def _publish(self, durable: Durable) -> None:
        reach("capture.publish.before")
        self._file.write(durable, sync=False)
        self.durable = durable
        reach("capture.publish.after")


class _Upload:
    """Stores one object at a time, in a thread. `signal` becomes readable when that ends."""

    def __init__(self) -> None:
        self.size = 0
        self.signal, self._signaller = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._means: Durable | Lsn | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether work is in progress, or its result has not been taken with `result`."""
        return self._thread is not None

    @property
    def finished(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def start(self, size: int, work: Callable[[], None], means: Durable | Lsn | None) -> None:
        """Do the work; `means` is what it amounts to when it succeeds."""
        assert self._thread is None
        self.size, self._means, self._error = size, means, None

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
            os.write(self._signaller, b".")

        self._thread = threading.Thread(target=run, name="store", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def result(self) -> Durable | Lsn | None:
        """What the work that has ended amounts to, once; its error where it failed. None while it goes on."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        os.read(self.signal, 64)
        self._thread, self.size = None, 0
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, ChangeLogError):
                raise error
            raise ChangeLogError(
                f"an object of the change log could not be stored: {type(error).__name__}",
                code="TRK306",
                remedy="restart trucker; no acknowledged change is lost",
            ) from error
        return self._means

    def give_up(self) -> None:
        """Wait for the work in progress and ignore its outcome."""
        self.wait()
        with suppress(ChangeLogError):
            self.result()

    def close(self) -> None:
        if self.signal >= 0:
            self.give_up()
            os.close(self.signal)
            os.close(self._signaller)
            self.signal = -1
