"""Many requests at once, in order for each key.

Events are dealt to lanes by key, a lane for each request that may be under way, and a lane sends what it has one
request after the other. Events of a table without key share a lane. What concerns more than one key (a truncate, the
mark of a transaction, an update that changes a key) waits for all that came before it, and all that comes after waits
for it.

A request that fails for now is repeated by its lane, after a pause that the receiver may name; then the others pause,
too. An array that is refused is halved until single events are, which are then *refused*; 413 (too large) also makes
further arrays smaller.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote
from zlib import crc32

from trucker.adapters.webhook import WebhookConnection, signing_keys
from trucker.config.name_template import name_of
from trucker.errors import DataError, SinkError, SinkRefused, SinkUnavailable
from trucker.process.backoff import Backoff
from trucker.sinks.event import Event, event_headers
from trucker.sinks.webhook.http_sender import Answer, HttpSender, now
from trucker.sinks.webhook.signature import header_text, request_id, signed_headers
from trucker.table import TableId

log = logging.getLogger("trucker.webhook")

# The receiver is not to blame the events for these.
_PASSING: Final = frozenset({408, 425, 429})
_CREDENTIALS: Final = frozenset({401, 403, 407})
_TOO_LARGE: Final = 413
_OF_MANY: Final = frozenset({"truncate", "begin", "end"})
_OLD_ROW: Final = b'"old":{'
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


@dataclass(slots=True)
class SendOutcome:
    """What became of events, by number. `error` is set where some were neither taken nor refused."""

    taken: set[int] = field(default_factory=set)
    refused: dict[int, DataError] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass(slots=True)
class ReceiverLimits:
    """What the receiver has said of itself: no request before `open_at`, on the monotonic clock, and no array of more
    than `most_bytes`."""

    open_at: float = -math.inf
    most_bytes: float = math.inf


class _Interrupted(Exception):
    """Another lane has failed."""


class Courier:
    """Sends events to one receiver. One thread at a time calls it."""

    def __init__(self, connection: WebhookConnection, limits: ReceiverLimits) -> None:
        self._connection = connection
        self._sender = HttpSender(connection)
        self._keys = signing_keys(connection.secret) if connection.secret else []
        self._threads: ThreadPoolExecutor | None = None
        self._limits = limits

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._sender.close()

    def look(self) -> Answer:
        return self._sender.look()

    def deliver(self, truck: str, events: Sequence[tuple[int, Event]], room: int) -> SendOutcome:
        """Send numbered events; not all of them where more than `room` are refused."""
        outcome = SendOutcome()
        delivery = _Delivery(self, truck, room, outcome)
        for run in _runs(events):
            delivery.send(self._lanes(run))
            if outcome.error is not None or len(outcome.refused) > room:
                break
        return outcome

    def _lanes(self, events: Sequence[tuple[int, Event]]) -> list[list[tuple[int, Event]]]:
        if len(events) == 1 or self._connection.parallel == 1:
            return [list(events)]
        by_url = "{{" in self._connection.url.get_secret_value()
        lanes: dict[tuple[TableId | None, int], list[tuple[int, Event]]] = {}
        for number, event in events:
            key = b"\0".join((event.table.schema.encode(), event.table.name.encode(), event.key or b""))
            # An array has one URL: a lane of several tables would be cut at each change of the table.
            lane = event.table if by_url else None, crc32(key) % self._connection.parallel
            lanes.setdefault(lane, []).append((number, event))
        return list(lanes.values())

    def submit(self, delivery: _Delivery, lanes: Sequence[list[tuple[int, Event]]]) -> list[Future[None]]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connection.parallel, thread_name_prefix="trucker-webhook")
        return [self._threads.submit(delivery.send_lane, lane) for lane in lanes]

    @property
    def most_bytes(self) -> float:
        """How large an array may be."""
        return min(self._connection.batch.bytes, self._limits.most_bytes)

    # -- requests, by any thread -----------------------------------------------------------------------------------

    def requests(self, truck: str, lane: Sequence[tuple[int, Event]]) -> Iterator[list[tuple[int, Event]]]:
        """Cut a lane into requests."""
        rows = self._connection.batch.rows
        parcel: list[tuple[int, Event]] = []
        size, place = 0, ""
        for item in lane:
            length, url = len(item[1].value or b"") + 1, self._url(truck, item[1].table)
            full = len(parcel) >= rows or size + length > self.most_bytes or url != place
            if parcel and full:
                yield parcel
                parcel, size = [], 0
            parcel.append(item)
            size, place = size + length, url
        if parcel:
            yield parcel

    def post(self, truck: str, events: Sequence[Event], stop: threading.Event) -> Answer:
        """Send these events as one request until there is an answer that is about them."""
        body, headers = self._content(events)
        name = request_id([event.id for event in events])
        url = self._url(truck, events[0].table)
        until = time.monotonic() + self._connection.timeouts.retry
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            self._wait(until, stop)
            if stop.is_set():
                raise _Interrupted
            failure: SinkError
            try:
                answer = self._sender.post(url, body, headers | signed_headers(name, now(), body, self._keys))
            except SinkUnavailable as error:
                failure = error
            else:
                lasting = self._explain(answer)
                if lasting is None:
                    return answer
                failure = lasting
                if not failure.transient or isinstance(failure, SinkRefused):
                    raise failure
                self._limits.open_at = max(self._limits.open_at, time.monotonic() + answer.retry_after)
            if time.monotonic() >= until:
                raise failure
            pauses.wait(stop)

    def _wait(self, until: float, stop: threading.Event) -> None:
        """Until the time that the receiver named is over."""
        rest = self._limits.open_at - time.monotonic()
        if rest > 0 and self._limits.open_at > until:
            raise SinkUnavailable(
                f"{self._connection.place}: the receiver asks for a pause (Retry-After)",
                remedy="none needed: trucker goes on when it is over",
                code="TRK712",
            )
        if rest > 0:
            stop.wait(rest)

    def _content(self, events: Sequence[Event]) -> tuple[bytes, dict[str, str]]:
        if self._connection.batch.rows == 1:
            (event,) = events
            return event.value or b"null", {name: header_text(text) for name, text in event_headers(event)}
        body = b"[" + b",".join(map(_with_id, events)) + b"]"
        return body, {
            "trucker-count": str(len(events)),
            "trucker-first-id": header_text(events[0].id),
            "trucker-last-id": header_text(events[-1].id),
        }

    def _url(self, truck: str, table: TableId) -> str:
        template = self._connection.url.get_secret_value()
        if "{{" not in template:
            return template
        url: str = name_of(template, TableId(quote(table.schema, ""), quote(table.name, "")), quote(truck, ""))
        return url

    def _explain(self, answer: Answer) -> SinkError | None:
        """Why a request has to be repeated or cannot be sent at all; None for an answer about its events."""
        place, status = self._connection.place, answer.status
        if status in _PASSING or status >= 500:
            return SinkUnavailable(
                f"{place}: the receiver answers HTTP {status}",
                remedy="see the receiver's log; trucker retries",
                code="TRK712",
            )
        if status in _CREDENTIALS:
            return SinkRefused(
                f"{place}: the receiver refuses the credentials (HTTP {status})",
                remedy="correct headers, secret or ssl.certificate; the files of headers_path and secret_path are read "
                "again at each try",
                code="TRK713",
            )
        if status < 200 or 300 <= status < 400:
            where = f" to {answer.location}" if answer.location else ""
            return SinkError(
                f"{place}: the receiver redirects{where} (HTTP {status}), which trucker does not follow",
                remedy="write the URL that the receiver redirects to as url, if it is the right one",
                code="TRK714",
            )
        return None

    def smaller(self, nbytes: int) -> None:
        """Arrays of so many bytes are too large."""
        limit = max(nbytes // 2, 1)
        if limit < self.most_bytes:
            self._limits.most_bytes = limit
            facts = {"connection": self._connection.name, "bytes": limit}
            log.info("the receiver takes smaller arrays only", extra=facts)


class _Delivery:
    """The lanes of one call of `deliver`."""

    def __init__(self, courier: Courier, truck: str, room: int, outcome: SendOutcome) -> None:
        self._courier = courier
        self._truck = truck
        self._room = room
        self._outcome = outcome
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def send(self, lanes: Sequence[list[tuple[int, Event]]]) -> None:
        """Returns when no request is under way any more."""
        if len(lanes) == 1:
            self.send_lane(lanes[0])
            return
        for future in self._courier.submit(self, lanes):
            future.result()

    def send_lane(self, lane: Sequence[tuple[int, Event]]) -> None:
        try:
            for parcel in self._courier.requests(self._truck, lane):
                self._send(parcel)
        except _Interrupted:
            pass
        except BaseException as error:
            with self._lock:
                self._outcome.error = self._outcome.error or error
            self._stop.set()

    def _send(self, parcel: Sequence[tuple[int, Event]]) -> None:
        size = sum(len(event.value or b"") + 1 for _, event in parcel)
        if len(parcel) > 1 and size > self._courier.most_bytes:
            self._halve(parcel)
            return
        answer = self._courier.post(self._truck, [event for _, event in parcel], self._stop)
        if 200 <= answer.status < 300:
            with self._lock:
                self._outcome.taken.update(number for number, _ in parcel)
            return
        if len(parcel) > 1:
            if answer.status == _TOO_LARGE:
                self._courier.smaller(size)
            self._halve(parcel)
            return
        ((number, event),) = parcel
        with self._lock:
            self._outcome.refused[number] = refusal(answer, event)
            if len(self._outcome.refused) > self._room:
                self._stop.set()

    def _halve(self, parcel: Sequence[tuple[int, Event]]) -> None:
        half = len(parcel) // 2
        self._send(parcel[:half])
        self._send(parcel[half:])


def _with_id(event: Event) -> bytes:
    """An event as an element of an array: its first member is the id, which is a header where it is sent alone."""
    return b'{"_event_id":%s,%s' % (json.dumps(event.id).encode(), (event.value or b"{}")[1:])


def refusal(answer: Answer, event: Event) -> DataError:
    """The receiver takes any event but this one."""
    size = len(event.value or b"")
    if answer.status == _TOO_LARGE:
        what = f"it has {size} bytes, and the receiver answers HTTP {answer.status} (too large)"
        remedy = "raise the receiver's limit, or exclude large columns with a rule"
    else:
        what, remedy = f"the receiver answers HTTP {answer.status}", "see the receiver's log for the event's id"
    return DataError(what, remedy=remedy, code="TRK717", sqlstate=str(answer.status))


def _runs(events: Sequence[tuple[int, Event]]) -> Iterator[Sequence[tuple[int, Event]]]:
    """The events in runs within which only those of one key must be in order."""
    begin = 0
    for at, (_, event) in enumerate(events):
        if _concerns_many(event):
            if begin < at:
                yield events[begin:at]
            yield events[at : at + 1]
            begin = at + 1
    if begin < len(events):
        yield events[begin:]


def _concerns_many(event: Event) -> bool:
    return event.operation in _OF_MANY or (event.operation == "update" and _moves(event))


def _moves(event: Event) -> bool:
    """Whether an update changes the key: it says the row's old key beside the new one. In the other envelopes it is a
    delete and an insert."""
    value, key = event.value or b"", event.key
    if key is None or _OLD_ROW not in value:
        return False
    content, new = json.loads(value), json.loads(key)
    old = content.get("old") if isinstance(content, dict) else None
    return isinstance(old, dict) and any(name in old and old[name] != cell for name, cell in new.items())
