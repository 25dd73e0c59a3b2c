"""Messages on their way to a stream, many at once, each accepted only behind the one before it.

Every message says what the stream's last sequence must be (`Nats-Expected-Last-Sequence`), which is known beforehand as
nobody else writes to the stream. So when one is refused or lost, all that were sent behind it are refused as well:
there is never a gap, nor another order. And what an earlier connection still had under way cannot come between or
behind.

The server drops a message whose `Nats-Msg-Id` it recognizes, and then refuses those that were sent behind it, as it
took no sequence. Where the end of the stream was read beforehand (`knows_end`), the event is not there: it only has the
id of another, as when a database was restored and its LSNs come again. It is sent again with another id. Otherwise it
is taken to be there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from trucker.errors import SinkError
from trucker.sinks.nats.nats_errors import NOBODY, WRONG_LAST, NatsApiError, api_failure, unavailable

_FENCE: Final = "Nats-Expected-Last-Sequence"
ID: Final = "Nats-Msg-Id"
_UNTAKEN: Final = {"err_code": NOBODY, "description": "no stream takes the subject"}
_RECOGNIZED: Final = {"err_code": -1, "description": "the server recognizes the id"}
_PASSING: Final = WRONG_LAST | {-1}


class OutgoingMessage(NamedTuple):
    subject: str
    payload: bytes
    headers: dict[str, str]
    size: int


class FencedPublisher:
    """Publishes to one stream whose last sequence is `last`. All methods run in the client's loop."""

    def __init__(
        self,
        client: Client,
        *,
        place: str,
        stream: str,
        last: int,
        most: int,
        most_bytes: int,
        timeout: float,
        knows_end: bool,
    ) -> None:
        self._client = client
        self._place, self._stream = place, stream
        self._last = last
        self._most, self._most_bytes = most, most_bytes
        self._timeout = timeout
        self._knows_end = knows_end
        self._number = 0
        self._flying: dict[int, OutgoingMessage] = {}
        self._bytes = 0
        self._refused: dict[int, tuple[OutgoingMessage, NatsApiError]] = {}
        self._recognized = False
        self._lost: SinkError | None = None
        self._answered = asyncio.Event()
        self._until = 0
        self._inbox = client.new_inbox()

    @property
    def last(self) -> int:
        """The stream's last sequence, as far as messages are acknowledged."""
        return self._last

    async def open(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take_answer)

    def fail(self, error: SinkError) -> None:
        """The connection is lost, or the server refuses: what is under way has no answer."""
        self._lost = self._lost or error
        self._answered.set()

    async def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send the messages behind those that were sent before. They need not have arrived when this returns. Raises
        `SinkError` for any message so far that was not accepted."""
        for message in messages:
            if self._halted:
                await self.settle()
            if len(self._flying) >= self._most or (self._flying and self._bytes + message.size > self._most_bytes):
                await self._wait(until=len(self._flying) // 2)
                if self._halted:
                    await self.settle()
            await self._publish(message)

    async def settle(self) -> None:
        """Wait until the stream has all messages that were sent. Raises `SinkError` where it does not take one."""
        while True:
            await self._wait(until=0)
            if not self._refused:
                self._recognized = False
                return
            refused = [self._refused[number] for number in sorted(self._refused)]
            if not self._recognized or any(error.number not in _PASSING for _, error in refused):
                raise api_failure(self._place, refused[0][1], self._stream)
            self._refused.clear()
            self._recognized = False
            for message, _ in refused:
                await self._publish(message)

    @property
    def _halted(self) -> bool:
        return bool(self._refused) or self._recognized

    async def _publish(self, message: OutgoingMessage) -> None:
        if self._lost is not None:
            raise self._lost
        self._number += 1
        headers = {**message.headers, _FENCE: str(self._last + len(self._flying))}
        self._flying[self._number] = message
        self._bytes += message.size
        await self._client.publish(message.subject, message.payload, f"{self._inbox}.{self._number}", headers)

    async def _wait(self, until: int) -> None:
        """Until no more messages than that are without an answer; all of them, where one was refused."""
        while self._lost is None and len(self._flying) > (0 if self._halted else until):
            before, self._until = len(self._flying), until
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), self._timeout)
            except TimeoutError:
                if len(self._flying) == before and self._lost is None:
                    raise unavailable(self._place, f"no answer within {self._timeout:g} s") from None
        if self._lost is not None:
            raise self._lost

    async def _take_answer(self, answer: Msg) -> None:
        number = int(answer.subject[len(self._inbox) + 1 :])
        message = self._flying.pop(number, None)
        if message is None:
            return
        self._bytes -= message.size
        data = answer.data
        if b'"error"' in data or b'"duplicate"' in data or not data:
            self._take_trouble(number, message, data)
        else:
            self._last += 1
        if len(self._flying) <= (0 if self._halted else self._until):
            self._answered.set()

    def _take_trouble(self, number: int, message: OutgoingMessage, data: bytes) -> None:
        content = json.loads(data) if data else {"error": _UNTAKEN}
        if "error" in content:
            self._refused[number] = (message, NatsApiError(content["error"]))
            return
        self._recognized = True
        if self._knows_end:
            headers = {**message.headers, ID: f"{message.headers[ID]}/{self._last}-{number}"}
            self._refused[number] = (message._replace(headers=headers), NatsApiError(_RECOGNIZED))
