"""Checks that a server's history is the one that the change log was written from.

A server that was restored to an earlier state, or a standby that was promoted before it had everything, is the same
system with the same slot, and once it has written enough of its own its WAL reaches as far as before. What tells: it is
asked to send again what the log ends with. The last transaction of the log must be there, committed at the same LSN and
the same moment, and nothing after it up to the LSN below which the log knows of no more.

The check runs only where the slot is behind the log, as it is after a crash of the server or of capture: where the slot
has confirmed all that the log has, the server had all of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from trucker.errors import SourceError
from trucker.lsn import Lsn
from trucker.pg.messages import COMMIT, Messages
from trucker.postgres.replication.protocol import EPOCH
from trucker.postgres.replication.stream import Interrupted, ReplicationStream

# The record of a commit is rarely longer: asked from so far back, few other transactions come before it.
_NEAR: Final = 1 << 20
_BUDGET: Final = 1 << 20
_WAIT_SECONDS: Final = 1.0
_COMMIT: Final = struct.Struct(">cBQQq")


class LogTail:
    """What the log ends with: `commit` and its time (µs since 1970, 0 where not known), and `seen`, never below it."""

    def __init__(self, commit: Lsn, commit_time: int, seen: Lsn, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._commit = commit
        self._time = commit_time
        self._seen = seen
        self._met = False
        self._beyond = False

    def check(self, connect: Callable[[], ReplicationStream], confirmed: Lsn) -> None:
        """Compare, on connections of its own; `SourceError` where it differs, `Interrupted` when it is time to stop.

        `confirmed` is where the slot is, which must not be read from meanwhile. Nothing is acknowledged.
        """
        if confirmed >= self._seen:
            return
        self._look(connect, Lsn(max(self._commit - _NEAR, 0)), confirmed)
        if confirmed < self._commit and not self._met:
            self._look(connect, confirmed, confirmed)
            if not self._met:
                raise self._differs(f"the transaction that ended at {self._commit} is missing")

    def _look(self, connect: Callable[[], ReplicationStream], start: Lsn, confirmed: Lsn) -> None:
        self._beyond = False
        # A connection of its own: the server does not start a second stream on one that has ended one.
        with closing(connect()) as stream:
            stream.start(start)
            self._read(stream, confirmed)
            stream.halt()

    def _read(self, stream: ReplicationStream, confirmed: Lsn) -> None:
        while not self._beyond and stream.wal_end < self._seen:
            if self._stopping():
                raise Interrupted
            drained = stream.receive(self._take, _BUDGET)
            ask = stream.listen(time.monotonic())
            if stream.reply_wanted or ask:
                stream.acknowledge(confirmed, ask=ask)
            if drained and not self._beyond:
                stream.wait(_WAIT_SECONDS)

    def _take(self, messages: Messages) -> None:
        for index in messages.places(COMMIT):
            if not self._beyond:
                self._judge(messages.message(index))

    def _judge(self, commit: bytes) -> None:
        _, _, _, end, stamp = _COMMIT.unpack_from(commit)
        if end > self._seen:
            self._beyond = True
        elif end == self._commit:
            self._met = True
            if self._time and stamp + EPOCH != self._time:
                raise self._differs(f"another transaction ended at {self._commit}")
        elif end > self._commit:
            raise self._differs(f"a transaction that ended at {Lsn(end)} is not in the log")

    def _differs(self, what: str) -> SourceError:
        return SourceError(
            f"the server's history is not the one in the change log ({what}): the server was restored to an "
            "earlier state, or failed over to a standby that lagged",
            code="TRK304",
            remedy="point the connection back to the right server; or run `trucker reset`, then `trucker run`, "
            "which copies the tables again",
        )
