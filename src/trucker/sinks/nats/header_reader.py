"""Headers of a stream's messages, as a consumer gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

PIECE: Final = 4096
"""How many messages are asked for at once."""


class StoredHeaders(NamedTuple):
    """A message of the stream, without its payload."""

    sequence: int
    headers: Mapping[str, str]


class HeaderReader:
    """What a consumer of the stream sends to its inbox."""

    def __init__(self, name: str, inbox: str) -> None:
        self.name = name
        self.inbox = inbox
        self._arrived: list[StoredHeaders] = []
        self._ended = asyncio.Event()
        self._more = False

    async def take(self, message: Msg) -> None:
        headers = message.headers or {}
        if "Status" in headers:
            self._end(more=False)
            return
        about = message.metadata
        self._arrived.append(StoredHeaders(about.sequence.stream, headers))
        if not about.num_pending or len(self._arrived) >= PIECE:
            self._end(more=about.num_pending > 0)

    def _end(self, *, more: bool) -> None:
        self._more = more
        self._ended.set()

    async def piece(self, timeout: float) -> tuple[list[StoredHeaders], bool]:
        """The messages that were asked for, and whether there are more."""
        await asyncio.wait_for(self._ended.wait(), timeout)
        self._ended.clear()
        piece, self._arrived = self._arrived, []
        return piece, self._more
