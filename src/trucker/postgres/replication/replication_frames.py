"""Splits the data after START_REPLICATION into frames: through libpq, or directly from an unencrypted socket.

libpq hands over one frame at a time, each in memory of its own, and that costs more than all the rest of capture.
Where the server's answer to START_REPLICATION lies on the socket in plain bytes, nothing is encrypted: then the socket
is read here, much at a time, and frames are found without a loop over them. libpq has not read any of it by then, so
nothing is missing. Where the answer cannot be seen (TLS, GSS) libpq goes on as usual.

A message of the protocol is a kind byte, its length (4, itself counted, big-endian) and the rest. `d` is CopyData and
holds one frame of the walsender's (`protocol`); `c` ends the copy, `E` is an error, `Z` says that the server is ready
for another command, and `N` and `S`, a notice or a setting, may come at any time.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from psycopg import pq

from trucker.pg.messages import Messages
from trucker.postgres.replication.protocol import XLOG_DATA, XLOG_HEADER

_COPY_DATA: Final = ord("d")
_COPY_DONE: Final = ord("c")
_ERROR: Final = ord("E")
_READY: Final = ord("Z")
_COPY_BOTH: Final = b"W\x00\x00\x00\x07"
_COPY_BOTH_BYTES: Final = 8
_SKIP: Final = 1 + 4 + XLOG_HEADER  # before a message: kind and length of CopyData, and XLogData's head
_BUFFER_BYTES: Final = 256 << 10
# Bytes up to which frames are found by stepping from one to the next.
_FEW: Final = 4096
_LENGTH = struct.Struct(">I")

FrameOffsets = npt.NDArray[np.int64]
_NOWHERE: Final[FrameOffsets] = np.empty(0, np.int64)

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


class CopyBoth(Protocol):
    """The two directions of the stream. None of the methods waits but `halt`, by `wait`."""

    @property
    def fd(self) -> int: ...

    def collect(self, budget: int) -> Received:
        """What is at hand, about `budget` bytes at most; `Ended` where the stream has ended."""
        ...

    def send(self, frame: bytes) -> None: ...

    def flush(self) -> bool:
        """Send on; whether something is still to be sent."""
        ...

    def halt(self, wait: Await) -> None:
        """End the stream, dropping what is on its way, until the server is ready for something else."""
        ...

    def close(self) -> None: ...


class ThroughLibpq:
    """Frame by frame, as libpq gives them."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn

    @property
    def fd(self) -> int:
        return self._pgconn.socket

    def collect(self, budget: int) -> Received:
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
        return bool(self._pgconn.flush())

    def halt(self, wait: Await) -> None:
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

    def close(self) -> None:
        pass


class InTheClear:
    """Straight from the socket, much at a time."""

    @classmethod
    def take_over(cls, pgconn: pq.abc.PGconn, wait: Await) -> InTheClear | None:
        """The stream that the command just sent begins; None where it is libpq's to read."""
        if pgconn.ssl_in_use:
            return None
        while pgconn.flush():
            wait(select.POLLOUT)
        wait(select.POLLIN)
        clear = socket.socket(fileno=os.dup(pgconn.socket))
        clear.setblocking(False)
        with suppress(BlockingIOError):
            head = clear.recv(_COPY_BOTH_BYTES, socket.MSG_PEEK)
            if len(head) == _COPY_BOTH_BYTES and head.startswith(_COPY_BOTH):
                clear.recv(_COPY_BOTH_BYTES)
                return cls(clear)
        clear.close()
        return None

    def __init__(self, clear: socket.socket) -> None:
        self._socket = clear
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._unsent = b""

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def collect(self, budget: int) -> Received:
        received = Received(drained=False)
        while received.bytes < budget and not received.drained:
            room = len(self._buffer) - self._filled
            count = self._read()
            received.bytes += count
            received.drained = count < room  # else there may be more
            if count:
                self._cut(received)
        return received

    def _read(self) -> int:
        try:
            count = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionResetError("the server closed the connection unexpectedly")
        self._filled += count
        return count

    def _cut(self, received: Received) -> None:
        """Take the whole frames out of the buffer; what is left of them stays, with room for the rest of it."""
        data = bytes(memoryview(self._buffer)[: self._filled])
        frames = cut(data)
        for kind, start, end in frames.others:
            if kind == _COPY_DATA:
                received.others.append(data[start:end])
            elif kind == _ERROR:
                raise _error_in(data[start:end])
            elif kind == _COPY_DONE:
                raise Ended
        if len(frames.messages):
            received.messages.append(frames.messages)
        self._keep(data, frames.rest)

    def _keep(self, data: bytes, rest: int) -> None:
        remainder = len(data) - rest
        needed = 1 + _LENGTH.unpack_from(data, rest + 1)[0] if remainder > 4 else 0
        if max(needed, _BUFFER_BYTES) != len(self._buffer):
            self._buffer = bytearray(max(needed, _BUFFER_BYTES))
        self._buffer[:remainder] = data[rest:]
        self._filled = remainder

    def send(self, frame: bytes) -> None:
        self._unsent += bytes([_COPY_DATA]) + _LENGTH.pack(4 + len(frame)) + frame
        self.flush()

    def flush(self) -> bool:
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return bool(self._unsent)

    def halt(self, wait: Await) -> None:
        self._unsent += bytes([_COPY_DONE]) + _LENGTH.pack(4)
        while True:
            wait(select.POLLIN | (select.POLLOUT if self.flush() else 0))
            if not self._read():
                continue
            data = bytes(memoryview(self._buffer)[: self._filled])
            frames = cut(data)
            for kind, start, end in frames.others:
                if kind == _ERROR:
                    raise _error_in(data[start:end])
                if kind == _READY:
                    return
            self._keep(data, frames.rest)

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """The whole frames at the beginning of some bytes.

    `others` are those that hold no message: kind, and where in the bytes the content starts and ends. `rest` is where
    the first frame begins that is not whole.
    """

    messages: Messages
    others: list[tuple[int, int, int]]
    rest: int


def cut(data: bytes) -> FrameBatch:
    """Find the frames in `data`, which begins with one."""
    starts, ends = _message_frames(data) if len(data) > _FEW else (_NOWHERE, _NOWHERE)
    more, others, rest = _step(data, int(ends[-1]) if len(ends) else 0)
    if more:
        starts, ends = np.concatenate([(starts, ends), np.array(more, np.int64).T], axis=1)
    starts = starts + _SKIP
    pieces = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return FrameBatch(Messages.of(pieces, ends - starts), others, rest)


def _message_frames(data: bytes) -> tuple[FrameOffsets, FrameOffsets]:
    """Starts and ends of the frames at the beginning of `data` that hold messages, up to the first that does not.

    Looked for are places that could begin one: CopyData, the length's first byte zero, XLogData. That each ends where
    the next begins, from the first byte on, proves that they are frames.
    """
    raw = np.frombuffer(data, np.uint8)
    likely = raw[:-_SKIP] == _COPY_DATA
    likely &= raw[1 : 1 - _SKIP] == 0
    likely &= raw[5 : 5 - _SKIP] == XLOG_DATA
    starts = np.flatnonzero(likely)
    lengths: npt.NDArray[np.uint32] = np.ndarray((len(data) - 4,), ">u4", data, 1, strides=(1,))
    ends = starts + 1 + lengths[starts].astype(np.int64)
    right = (ends - starts > _SKIP) & (ends <= len(data))
    right[:1] &= starts[:1] == 0
    right[1:] &= starts[1:] == ends[:-1]
    count = len(starts) if right.all() else int(right.argmin())
    return starts[:count], ends[:count]


def _step(data: bytes, at: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]], int]:
    """Step from frame to frame: the frames with messages, the others, and the offset of the first that is not whole."""
    messages, others, length = list[tuple[int, int]](), list[tuple[int, int, int]](), _LENGTH.unpack_from
    while at + 5 <= len(data):
        end = at + 1 + length(data, at + 1)[0]
        if end > len(data):
            break
        if data[at] == _COPY_DATA and end - at > _SKIP and data[at + 5] == XLOG_DATA:
            messages.append((at, end))
        else:
            others.append((data[at], at + 5, end))
        at = end
    return messages, others, at


def _error_in(content: bytes) -> Ended:
    """An ErrorResponse's fields: each a letter and a text that ends with a zero byte."""
    fields = {part[:1]: part[1:].decode(errors="replace") for part in content.split(b"\0") if part}
    return Ended(fields.get(b"C", ""), fields.get(b"M", ""))


def _error_of(result: pq.abc.PGresult) -> Ended:
    def text(name: pq.DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    return Ended(text(pq.DiagnosticField.SQLSTATE), text(pq.DiagnosticField.MESSAGE_PRIMARY))
