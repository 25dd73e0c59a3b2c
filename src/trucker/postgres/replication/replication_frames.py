"""The frames of the walsender's after START_REPLICATION, as libpq gives them (`protocol`).

Read past libpq, straight from a socket without encryption, they cost less CPU and came no faster: decision 0032.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass, field

from psycopg import pq

from trucker.pg.messages import Messages
from trucker.postgres.replication.protocol import XLOG_DATA, XLOG_HEADER

Await = Callable[[int], None]
"""Waits for events of the socket's, as `poll` has them; raises when it has been too long."""


class Ended(Exception):
    """The server ended the stream; with its error's SQLSTATE and words where it gave one."""

    def __init__(self, state: str = "", words: str = "") -> None:
        super().__init__(words)
        self.state, self.words = state, words


@dataclass(slots=True)
class Received:
    """What has come: messages, other frames of the walsender's, all bytes of both; and whether that is all."""

    messages: list[Messages] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    bytes: int = 0
    drained: bool = True


class CopyBoth:
    """The two directions of the stream. None of the methods waits but `halt`, by `wait`."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn

    @property
    def fd(self) -> int:
        return self._pgconn.socket

    def collect(self, budget: int) -> Received:
        """What is at hand, about `budget` bytes at most; `Ended` where the stream has ended."""
        received, messages = Received(), list[memoryview]()
        size = self._take(received, messages, budget)
        while size == 0:
            # Asked even when the socket looks empty: TLS may hold bytes that the socket no longer shows.
            self._pgconn.consume_input()
            before = received.bytes
            size = self._take(received, messages, budget)
            if size == 0 and received.bytes == before:
                break
        received.drained = size == 0
        if messages:
            received.messages.append(Messages.of(messages))
        return received

    def _take(self, received: Received, messages: list[memoryview], budget: int) -> int:
        """Take what libpq has; 0 where it has no more, above that where the budget is used up."""
        get, keep, total = self._pgconn.get_copy_data, messages.append, received.bytes
        size = 1
        while total < budget:
            size, frame = get(1)
            if size <= 0:
                break
            total += size
            if size > XLOG_HEADER and frame[0] == XLOG_DATA:
                keep(frame[XLOG_HEADER:])
            else:
                received.others.append(bytes(frame))
        received.bytes = total
        if size < 0:
            raise self._ended()
        return size

    def send(self, frame: bytes) -> None:
        self._pgconn.put_copy_data(frame)

    def flush(self) -> bool:
        """Send on; whether something is still to be sent."""
        return bool(self._pgconn.flush())

    def halt(self, wait: Await) -> None:
        """End the stream, dropping what is on its way, until the server is ready for something else."""
        pgconn = self._pgconn
        pgconn.put_copy_end()
        while (size := pgconn.get_copy_data(1)[0]) >= 0:
            if not size:
                self._more(wait)
        while True:
            while pgconn.is_busy():
                self._more(wait)
            result = pgconn.get_result()
            if result is None:
                return
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise _error_of(result)

    def _more(self, wait: Await) -> None:
        wait(select.POLLIN | (select.POLLOUT if self._pgconn.flush() else 0))
        self._pgconn.consume_input()

    def _ended(self) -> Ended:
        while (result := self._pgconn.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                return _error_of(result)
        return Ended()


def _error_of(result: pq.abc.PGresult) -> Ended:
    def text(name: pq.DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    return Ended(text(pq.DiagnosticField.SQLSTATE), text(pq.DiagnosticField.MESSAGE_PRIMARY))
