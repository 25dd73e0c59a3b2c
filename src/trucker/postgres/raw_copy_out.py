"""Reads COPY TO STDOUT directly from the socket: libpq returns one row at a time.

Only what is in the clear can be read so: neither TLS nor GSSAPI is around it. What libpq has not seen it waits for: a
connection that has been read from in this way is good for nothing else and must be closed.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
from psycopg import OperationalError, errors, pq

_BUFFER_BYTES: Final = 512 << 10
# A server sends 8 KiB at a time: much is waited for, though not for long, since the last of it is little.
_MUCH: Final = 128 << 10
_NOT_LONG: Final = 2.0
# Fewer bytes are gone through one frame at a time.
_FEW: Final = 4096
_HEAD: Final = 5
_LENGTH: Final = struct.Struct(">I")

_COPY_DATA: Final = ord("d")
_COPY_DONE: Final = ord("c")
_COPY_OUT: Final = ord("H")
_COMPLETE: Final = ord("C")
_ERROR: Final = ord("E")
_READY: Final = ord("Z")


class CopyOut:
    """One COPY of a connection in the clear. `rows` is how many the server says there were, at the end."""

    def __init__(self, clear: socket.socket) -> None:
        self.rows: int | None = None
        self._socket = clear
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._begun = False

    @classmethod
    def begin(cls, pgconn: pq.abc.PGconn, statement: bytes) -> CopyOut | None:
        """Run the statement; None where libpq has to read what comes, as it would any answer."""
        pgconn.send_query(statement)
        while pgconn.flush():
            _wait(pgconn.socket, select.POLLOUT)
        if pgconn.ssl_in_use:
            return None
        _wait(pgconn.socket, select.POLLIN)
        clear = socket.socket(fileno=os.dup(pgconn.socket))
        clear.setblocking(False)
        with suppress(BlockingIOError):
            if clear.recv(1, socket.MSG_PEEK) == bytes([_COPY_OUT]):
                clear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUCH)
                return cls(clear)
        clear.close()
        return None

    def frames(self) -> Iterator[memoryview]:
        """The rows as whole CopyData messages, many at a time; each is good until the next is asked for."""
        try:
            while True:
                end = end_of_rows(memoryview(self._buffer)[: self._filled]) if self._begun else 0
                if end:
                    yield memoryview(self._buffer)[:end]
                before = self._filled
                if self._others(end):
                    return
                if self._filled == before:
                    self._receive()
        finally:
            self.close()

    def close(self) -> None:
        """Leave the rest unread."""
        self._socket.close()

    def _receive(self) -> None:
        """Take what has come, at least something."""
        while True:
            try:
                received = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
            except BlockingIOError:
                _wait(self._socket.fileno(), select.POLLIN, _NOT_LONG)
                continue
            except OSError as error:
                raise OperationalError(f"the connection is lost: {error.strerror or error}") from None
            if not received:
                raise OperationalError("the server closed the connection unexpectedly")
            self._filled += received
            return

    def _others(self, at: int) -> bool:
        """Go through what comes after the rows in hand, and keep what is not whole; whether all has been said."""
        data = bytes(memoryview(self._buffer)[at : self._filled])
        done, over = 0, False
        while not over and len(data) - done >= _HEAD and data[done] != _COPY_DATA:
            end = done + 1 + _LENGTH.unpack_from(data, done + 1)[0]
            if end > len(data):
                break
            over = self._other(data[done], data[done + _HEAD : end])
            done = end
        self._keep(data[done:])
        return over

    def _other(self, kind: int, content: bytes) -> bool:
        if kind == _ERROR:
            raise _error_in(content)
        if kind == _COPY_OUT:
            self._begun = True
        elif kind == _COMPLETE:
            self.rows = int(content.rstrip(b"\0").split()[-1])
        return kind == _READY

    def _keep(self, rest: bytes) -> None:
        """What is left stays, with room for the rest of it."""
        needed = 1 + _LENGTH.unpack_from(rest, 1)[0] if len(rest) >= _HEAD else 0
        if max(needed, _BUFFER_BYTES) != len(self._buffer):
            self._buffer = bytearray(max(needed, _BUFFER_BYTES))
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)


def end_of_rows(data: bytes | memoryview) -> int:
    """Where the first message begins that is not a whole CopyData. `data` begins with a message."""
    at, raw = 0, np.frombuffer(data, np.uint8)
    while True:
        linked = at + _linked(raw[at:])
        stepped = _stepped(data, linked, _FEW)
        if stepped in (at, linked):
            return stepped
        at = stepped


def _linked(data: npt.NDArray[np.uint8]) -> int:
    """As `end_of_rows`, as far as it is seen at once: places that could begin a CopyData, each of which ends where the
    next one begins, from the first byte on, do begin one."""
    if len(data) < _FEW:
        return 0
    could = data[:-4] == _COPY_DATA
    could &= data[1:-3] == 0
    starts = np.flatnonzero(could)
    lengths: npt.NDArray[np.uint32] = np.ndarray((len(data) - 4,), ">u4", data, 1, strides=(1,))
    ends = starts + 1 + lengths[starts].astype(np.int64)
    inside = ends < len(could)
    inside[inside] = could[ends[inside]]
    starts, ends = starts[inside], ends[inside]
    right = np.empty(len(starts), np.bool_)
    right[:1] = starts[:1] == 0
    right[1:] = starts[1:] == ends[:-1]
    count = len(starts) if right.all() else int(right.argmin())
    return int(ends[count - 1]) if count else 0


def _stepped(data: bytes | memoryview, at: int, most: int) -> int:
    """As `end_of_rows` from a message at `at` on, one after the other, so many at the most."""
    length = _LENGTH.unpack_from
    for _ in range(most):
        if at + _HEAD > len(data) or data[at] != _COPY_DATA:
            break
        end = at + 1 + length(data, at + 1)[0]
        if end > len(data):
            break
        at = end
    return at


def _wait(descriptor: int, events: int, milliseconds: float | None = None) -> None:
    poll = select.poll()
    poll.register(descriptor, events)
    poll.poll(milliseconds)


def _error_in(content: bytes) -> errors.Error:
    """An ErrorResponse's fields: each a letter and a text that ends with a zero byte."""
    fields: dict[int, bytes | None] = {part[0]: part[1:] for part in content.split(b"\0") if part}
    text = (fields.get(ord("M")) or b"").decode(errors="replace")
    state = (fields.get(ord("C")) or b"XX000").decode(errors="replace")
    try:
        kind = errors.lookup(state)
    except KeyError:
        kind = OperationalError
    return kind(text, info=fields)
