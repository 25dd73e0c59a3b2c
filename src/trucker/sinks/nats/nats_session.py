"""A connection to a NATS server and what the sink asks of JetStream, as plain functions.

The connection is never made again by the client: what was under way when it broke is not known, so whoever uses a
session that has failed opens another one, and looks at the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from base64 import b64decode
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import nats.errors
from nats.aio.client import Client, RawCredentials

from trucker.adapters.nats import NatsConnection
from trucker.errors import SinkError
from trucker.sinks.nats.fenced_publisher import FencedPublisher, OutgoingMessage
from trucker.sinks.nats.header_reader import PIECE, HeaderReader, StoredHeaders
from trucker.sinks.nats.loop_thread import LoopThread
from trucker.sinks.nats.nats_errors import (
    NO_STREAM,
    REFUSED,
    NatsApiError,
    api_failure,
    connect_failure,
    forbidden,
    refused,
    unavailable,
)

T = TypeVar("T")

_NO_MESSAGE: Final = 10037
_GONE: Final = frozenset({10043, 10057, 10037})
_AT_ONCE: Final = 256
_BEHIND: Final = 0.05
_NAME: Final = "trucker"
_NOBODY: Final = {"code": 503, "err_code": 10076, "description": "JetStream is not enabled, or has no leader"}
# A client that is not connected may wait for ever for the end of a handshake.
_CLOSING: Final = 0.5


class StreamStatus(NamedTuple):
    """What the server says of a stream. `created` tells it from another one of the same name."""

    config: Mapping[str, Any]
    created: str
    first: int
    last: int


class StoredValue(NamedTuple):
    """The last message of a subject; `sequence` is 0 where there is none."""

    value: bytes
    sequence: int


class NatsSession:
    """One connection. Everything raises `SinkError`: `SinkUnavailable` where the same may work later."""

    def __init__(self, connection: NatsConnection, place: str) -> None:
        """Connect; `place` is what errors call the server."""
        self._settings = connection
        self._place = place
        self._stream = connection.stream.name
        self._client = Client()
        self._publisher: FencedPublisher | None = None
        self._failure: SinkError | None = None
        self._failed = asyncio.Event()
        self._reported: Exception | None = None
        self._closing = False
        self._loop = LoopThread(f"nats {connection.name}")
        try:
            self._loop.run(self._connect())
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        return self._failure is None and not self._closing

    @property
    def largest(self) -> int:
        """How many bytes a message may have, headers included."""
        return self._client.max_payload

    def close(self) -> None:
        self._closing = True
        try:
            self._loop.run(self._disconnect())
        finally:
            self._loop.close()

    # -- streams ----------------------------------------------------------------------------------------------------

    def stream(self, name: str) -> StreamStatus | None:
        """The stream as it is now; None where there is none."""
        try:
            return _status(self._loop.run(self._ask(f"STREAM.INFO.{name}", {})))
        except NatsApiError as error:
            if error.number == NO_STREAM:
                return None
            raise api_failure(self._place, error, name) from None

    def create_stream(self, config: Mapping[str, Any]) -> StreamStatus:
        try:
            return _status(self._loop.run(self._ask(f"STREAM.CREATE.{config['name']}", config)))
        except NatsApiError as error:
            raise api_failure(self._place, error, str(config["name"])) from None

    def headers(self, first: int, last: int) -> Iterator[Sequence[StoredHeaders]]:
        """The headers of the stream's messages from `first` to `last`, in order, in pieces."""
        reader = self._run(self._consumer(first))
        deadline = time.monotonic() + self._settings.timeout
        try:
            at = first
            while at <= last:
                piece, pending = self._run(self._pull(reader))
                if piece:
                    yield [each for each in piece if each.sequence <= last]
                    at = piece[-1].sequence + 1
                    deadline = time.monotonic() + self._settings.timeout
                if not pending:
                    if self._run(self._has_all(at, last)):
                        return
                    if time.monotonic() > deadline:
                        raise unavailable(self._place, f"stream {self._stream} cannot be read to its end")
        finally:
            self._run(self._remove_consumer(reader))

    def delete(self, sequences: Sequence[int]) -> None:
        """Remove messages from the stream; those that are not there any more do not matter."""
        self._run(self._delete(sequences))

    # -- a value of a subject ---------------------------------------------------------------------------------------

    def stored(self, stream: str, subject: str) -> StoredValue:
        """The last message of the subject."""
        try:
            answer = self._loop.run(self._ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))
        except NatsApiError as error:
            if error.number in (_NO_MESSAGE, NO_STREAM):
                return StoredValue(b"", 0)
            raise api_failure(self._place, error, stream) from None
        message = answer["message"]
        removed = b"KV-Operation" in b64decode(message.get("hdrs") or "")
        return StoredValue(b"" if removed else b64decode(message.get("data") or ""), int(message["seq"]))

    def replace(self, stream: str, subject: str, value: bytes, before: int) -> int:
        """Store another value where the last sequence of the subject is `before`; its sequence. Raises `NatsApiError`
        (of `WRONG_LAST`) where it is another one."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(before)}
        answer = self._loop.run(self._request(subject, value, headers))
        if "error" in answer:
            raise NatsApiError(answer["error"])
        return int(answer["seq"])

    # -- publishing -------------------------------------------------------------------------------------------------

    def begin_publishing(self, last: int, *, knows_end: bool) -> None:
        """Publish from now on behind this sequence; see `FencedPublisher`."""
        settings = self._settings
        self._publisher = FencedPublisher(
            self._client,
            place=self._place,
            stream=self._stream,
            last=last,
            most=settings.in_flight,
            most_bytes=settings.in_flight_bytes,
            timeout=settings.timeout,
            knows_end=knows_end,
        )
        self._run(self._publisher.open())

    def publish(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send behind what was sent before, without waiting for the last of them."""
        assert self._publisher is not None
        self._run(self._publisher.send(messages))

    def settle(self) -> int:
        """Wait until the stream has all that was sent; its last sequence."""
        assert self._publisher is not None
        self._run(self._publisher.settle())
        return self._publisher.last

    def publish_late(self, message: OutgoingMessage) -> None:
        """Publish one message behind whatever is there, and wait until the stream has it."""
        answer = self._run(self._request(message.subject, message.payload, message.headers))
        if "error" in answer:
            raise api_failure(self._place, NatsApiError(answer["error"]), self._stream)

    # -- in the loop ------------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(coroutine)
        except NatsApiError as error:
            raise api_failure(self._place, error, self._stream) from None
        except SinkError:
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self._failure or connect_failure(self._place, error) from None

    async def _connect(self) -> None:
        """To the first of the servers that lets it in."""
        failure: SinkError | None = None
        for server in self._settings.servers:
            try:
                await asyncio.wait_for(self._connect_to(server), 2 * self._settings.timeout)
            except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
                # The client gives up with an error that says nothing, and reports the cause beforehand.
                failure = connect_failure(self._place, self._reported or error)
                await self._disconnect()
            else:
                self._failure = None
                return
        assert failure is not None
        raise failure from None

    async def _connect_to(self, server: str) -> None:
        timeout = self._settings.timeout
        self._client, self._reported = Client(), None
        await self._client.connect(
            server,
            name=_NAME,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, int(timeout)),
            ping_interval=max(1, int(timeout / 2)),
            max_outstanding_pings=1,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            closed_cb=self._on_disconnect,
            **self._credentials(),
            **self._encryption(),
        )

    def _credentials(self) -> dict[str, Any]:
        settings = self._settings
        if settings.creds is not None:
            return {"user_credentials": RawCredentials(settings.creds.get_secret_value())}
        if settings.nkey is not None:
            return {"nkeys_seed_str": settings.nkey.get_secret_value()}
        if settings.token is not None:
            return {"token": settings.token.get_secret_value()}
        if settings.user is not None:
            return {"user": settings.user, "password": settings.password.get_secret_value()}
        return {}

    def _encryption(self) -> dict[str, Any]:
        tls = self._settings.tls
        if tls is None and not any(server.startswith("tls:") for server in self._settings.servers):
            return {}
        context = ssl.create_default_context(cafile=str(tls.root_certificate) if tls and tls.root_certificate else None)
        if tls is not None and tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
        return {"tls": context}

    async def _disconnect(self) -> None:
        with contextlib.suppress(Exception):  # it is closed one way or the other
            connected = self._client.is_connected
            await asyncio.wait_for(self._client.close(), self._settings.timeout if connected else _CLOSING)

    async def _on_error(self, error: Exception) -> None:
        self._reported = error
        text = str(error).removeprefix("nats: ").strip("'\" ")
        low = text.lower()
        if "permissions violation" in low:
            self._fail(forbidden(self._place, text))
        elif any(word in low for word in ("authoriz", "authenticat", "expired", "revoked")):
            self._fail(refused(self._place, text))

    async def _on_disconnect(self) -> None:
        if not self._closing:
            cause = connect_failure(self._place, self._client.last_error or ConnectionError())
            lost = unavailable(self._place, "the connection was lost")
            self._fail(cause if cause.code == REFUSED else lost)

    def _fail(self, error: SinkError) -> None:
        self._failure = self._failure or error
        self._failed.set()
        if self._publisher is not None:
            self._publisher.fail(error)

    async def _ask(self, subject: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """A request to the API. Raises `NatsApiError` for an answer that is an error."""
        answer = await self._request(f"$JS.API.{subject}", json.dumps(content).encode())
        if "error" in answer:
            raise NatsApiError(answer["error"])
        return answer

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """The answer to a request, as soon as it is there or the session has failed."""
        if self._failure is not None:
            raise self._failure
        request = asyncio.ensure_future(self._client.request(subject, payload, self._settings.timeout, headers=headers))
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({request, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done() and self._failure is not None:
                raise self._failure
            return dict(json.loads((await request).data))
        except nats.errors.NoRespondersError:
            raise NatsApiError(_NOBODY) from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self._failure or connect_failure(self._place, error) from None
        finally:
            request.cancel()
            failed.cancel()

    async def _consumer(self, first: int) -> HeaderReader:
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(60e9),
        }
        answer = await self._ask(f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config})
        reader = HeaderReader(str(answer["name"]), self._client.new_inbox())
        await self._client.subscribe(reader.inbox, cb=reader.take)
        return reader

    async def _has_all(self, at: int, last: int) -> bool:
        """Whether the stream has no message from `at` to `last`. Its leader says so; a consumer may be behind."""
        try:
            answer = await self._ask(f"STREAM.MSG.GET.{self._stream}", {"seq": at, "next_by_subj": ">"})
            missing = int(answer["message"]["seq"]) <= last
        except NatsApiError as error:
            if error.number != _NO_MESSAGE:
                raise
            state = (await self._ask(f"STREAM.INFO.{self._stream}", {}))["state"]
            missing = int(state["last_seq"]) < last
        if missing:
            await asyncio.sleep(_BEHIND)
        return not missing

    async def _pull(self, reader: HeaderReader) -> tuple[list[StoredHeaders], bool]:
        """The next messages, and whether there are more."""
        request = json.dumps({"batch": PIECE, "no_wait": True}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{reader.name}"
        await self._client.publish(subject, request, reader.inbox)
        return await reader.piece(self._settings.timeout)

    async def _remove_consumer(self, reader: HeaderReader) -> None:
        if self._failure is None:  # it goes by itself, too
            with contextlib.suppress(NatsApiError):
                await self._ask(f"CONSUMER.DELETE.{self._stream}.{reader.name}", {})

    async def _delete(self, sequences: Sequence[int]) -> None:
        for start in range(0, len(sequences), _AT_ONCE):
            requests = [
                self._ask(f"STREAM.MSG.DELETE.{self._stream}", {"seq": sequence, "no_erase": True})
                for sequence in sequences[start : start + _AT_ONCE]
            ]
            for result in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(result, NatsApiError) and result.number in _GONE:
                    continue
                if isinstance(result, BaseException):
                    raise result


def _status(answer: Mapping[str, Any]) -> StreamStatus:
    state = answer["state"]
    return StreamStatus(answer["config"], str(answer["created"]), int(state["first_seq"]), int(state["last_seq"]))
