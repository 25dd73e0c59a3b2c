"""Reads a segment block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trucker.changelog.format.block import HEAD_BYTES, DamagedError, Head, check_body, decode_head, peek_head_bytes
from trucker.changelog.format.segment import Content
from trucker.errors import ChangeLogError

_WINDOW: Final = 256 * 1024


class DamagedBlockError(DamagedError):
    """No whole block at `offset`."""

    def __init__(self, offset: int, cause: DamagedError) -> None:
        super().__init__(str(cause), torn=cause.torn)
        self.offset = offset


def heads(content: Content, start: int, limit: int, *, bodies: bool = False) -> Iterator[tuple[int, Head]]:
    """Offset and head of every block between two offsets, the bodies checked too where asked for.

    Raises `DamagedBlockError` at the first that is not whole.
    """
    window = _Window(content, limit)
    offset = start
    while offset < limit:
        try:
            head = decode_head(window.at(offset, peek_head_bytes(window.at(offset, HEAD_BYTES))))
            size = head.bytes
            if offset + size > limit:
                raise DamagedError("the file ends inside a block", torn=True)
            if bodies:
                check_body(head, content.read(offset + head.head_bytes, head.body_bytes))
        except DamagedError as damage:
            raise DamagedBlockError(offset, damage) from None
        yield offset, head
        offset += size


class _Window:
    """Reads ahead, so that many small blocks cost few calls; of a large block little more than its head is read."""

    def __init__(self, content: Content, limit: int) -> None:
        self._content = content
        self._limit = limit
        self._base = 0
        self._data = memoryview(b"")

    def at(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`, fewer where the limit comes first."""
        start = offset - self._base
        if start < 0 or start + length > len(self._data):
            size = min(max(length, _WINDOW), self._limit - offset)
            self._base, self._data, start = offset, memoryview(self._content.read(offset, size)), 0
        return self._data[start : start + length]


def damaged(path: object, offset: int, reason: str) -> ChangeLogError:
    """The error that names a damaged file and the place in it."""
    return ChangeLogError(
        f"{path} is damaged at byte {offset}: {reason}",
        code="TRK303",
        remedy="restore the file from a backup; or run `trucker reset`, then `trucker run`, which copies the "
        "tables again",
    )
