"""A stream of NATS JetStream.

    stream  <stream>              one message per event, in commit order truck by truck
    bucket  trucker_<stream>      the ledger, see `nats_ledger`

Three things make it exactly once, whatever time passes:

- *The fence.* Each message is accepted only behind the one before it (`fenced_publisher`). There is no gap in what is
  there, and what an earlier process still had under way is not accepted any more.
- *The ledger* says up to which sequence of the stream messages count. It is replaced only where it is the one that was
  read (`Nats-Expected-Last-Subject-Sequence`).
- *The tail.* What is behind that sequence was written by a delivery that was not finished. It is read back at `open`,
  and what comes again is not published a second time (`stream_tail`).

`Nats-Msg-Id` is set as well: consumers, mirrors and other tools recognize an event by it. Nothing here depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import ClassVar, Final

from trucker.abilities import Abilities
from trucker.adapters.nats import NATS, NatsConnection, Retention
from trucker.errors import DataError, SinkError, SinkUnavailable, TruckerError
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.delivery import Delivery, OutdatedLedger
from trucker.sinks.event import NO_TABLE, Event, Events, event_headers
from trucker.sinks.event_letters import LetterEventSink
from trucker.sinks.ledger import Ledger
from trucker.sinks.nats.fenced_publisher import ID, OutgoingMessage
from trucker.sinks.nats.nats_errors import OTHER_WRITER, TOO_LARGE, NatsApiError, api_failure
from trucker.sinks.nats.nats_ledger import StreamLedger, from_value, ledger_stream, ledger_subject, to_value
from trucker.sinks.nats.nats_session import NatsSession, StreamStatus
from trucker.sinks.nats.stream_setup import (
    bucket_config,
    differences,
    different_stream,
    is_behind,
    stream_config,
    untaken,
)
from trucker.sinks.nats.stream_tail import COPIED, REDRIVEN, TRUCK, StreamTail
from trucker.sinks.nats.subjects import subject_of
from trucker.sinks.nats.tail_events import is_stable
from trucker.sinks.target import Target
from trucker.table import TableId

_AT_ONCE: Final = 1024
# The seconds for which a new leader of the stream may be behind, and between two looks.
_PATIENCE, _BETWEEN = 2.0, 0.1
# What separates a header's name from its value, and headers; the first line and the header of the fence.
_SEPARATORS, _LINE_AND_FENCE = 4, 80


class NatsSink(LetterEventSink):
    """Guarantee: exactly once, every change in commit order, whatever the stream's duplicate window."""

    name: ClassVar[str] = "nats"
    abilities: ClassVar[Abilities] = NATS.abilities

    def __init__(self, connection: NatsConnection, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._connection = connection
        self._session: NatsSession | None = None
        self._stream: StreamStatus | None = None
        self._stored = StreamLedger()
        self._tail: StreamTail | None = None
        self._first_sequence = 0
        self._interrupted = False
        self._subjects: dict[tuple[str, TableId], str] = {}

    # -- before the start -------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Whether the server, the stream and its ledger can be used. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            with self._connected() as session:
                stream = self._look(session)[2]
                if stream is None:
                    return [Finding(Level.OK, subject, f"stream {self._stream_name} will be created")]
                if self._connection.transactions:
                    self._check_subject(stream.config.get("subjects") or [], self._connection.mark_subject)
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code, waits=error.transient)]
        found = Finding(Level.OK, subject, f"stream {self._stream_name} has {stream.last} messages so far")
        return [found, *differences(self._connection, stream)]

    def stored(self) -> Mapping[str, TruckState]:
        with self._connected() as session:
            return self._look(session)[0].ledger.states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """Tables whose events the stream does not take, too."""
        yield from super().examine(targets, due)
        with self._connected() as session:
            stream = session.stream(self._stream_name)
        config = stream_config(self._connection) if stream is None else stream.config
        for target in targets:
            try:
                self._check_subject(config.get("subjects") or [], self._subject(target.truck, target.table))
            except SinkError as error:
                yield target, error

    def prepare(self, target: Target) -> frozenset[str]:
        columns = super().prepare(target)
        assert self._stream is not None, "the sink was not opened"
        self._check_subject(self._stream.config.get("subjects") or [], self._subject(target.truck, target.table))
        return columns

    # -- the ledger -------------------------------------------------------------------------------------------------

    def read_ledger(self) -> Ledger:
        self.close()
        self._session = session = NatsSession(self._connection.refreshed(), self._place)
        stored, revision, stream = self._look(session)
        if stream is None:
            stream = session.create_stream(stream_config(self._connection))
        self._stream = stream
        if not stored.created:
            if session.stream(ledger_stream(self._stream_name)) is None:
                session.create_stream(bucket_config(stream))
            stored = StreamLedger(created=stream.created, last=stream.last)
            revision = self._replace(stored, revision)
        if self._tail is None or not self._tail.continues(stored, revision):
            self._tail = StreamTail(stored, revision)
        knows_end = stream.config.get("retention") == Retention.LIMITS.value
        if knows_end:
            self._tail.read(session, stream.first, stream.last, partial(self._replace, stored))
        session.begin_publishing(stream.last, knows_end=knows_end)
        self._stored, self._first_sequence, self._interrupted = stored, stream.last + 1, False
        return stored.ledger

    def publish(self, delivery: Delivery) -> None:
        lost = self._session is None or not self._session.is_usable  # as while nothing was to be published
        if (self._interrupted or lost) and self.read_ledger() != delivery.before:
            raise OutdatedLedger
        self._interrupted = True
        super().publish(delivery)
        self._interrupted = False

    def append(self, truck: str, events: Iterator[Events]) -> None:
        assert self._session is not None
        assert self._tail is not None
        limit = self._limit(self._session, self._stream)
        for piece in events:
            for start in range(0, len(piece), _AT_ONCE):
                messages: list[OutgoingMessage] = []
                refused: list[tuple[Event, DataError]] = []
                for event in piece.slice(start, min(start + _AT_ONCE, len(piece))).rows():
                    if self._tail.has(truck, event.id):
                        continue
                    message = self._message(truck, event)
                    if message.size > limit:
                        refused.append((event, _too_large(message.size, limit)))
                    else:
                        messages.append(message)
                self.refuse(truck, refused)
                self._session.publish(messages)

    def redeliver(self, truck: str, events: Sequence[Event]) -> Sequence[DataError | None]:
        """A running instance finds these messages behind its own, and goes on behind them."""
        errors: list[DataError | None] = []
        with self._connected() as session:
            stream = self._look(session)[2]
            limit = self._limit(session, stream)
            for event in events:
                message = self._message(truck, event)
                message.headers[REDRIVEN] = "true"
                errors.append(_too_large(message.size, limit) if message.size > limit else None)
                if errors[-1] is None:
                    session.publish_late(message)
        return errors

    def store(self, ledger: Ledger) -> None:
        assert self._session is not None
        assert self._tail is not None
        reach("sink.position.before")
        last = self._session.settle()
        reach("sink.position.after")
        stored = StreamLedger(ledger, self._stored.created, last, self._tail.settle(ledger))
        reach("sink.commit.before")
        try:
            revision = self._replace(stored, self._tail.revision)
        except SinkUnavailable as error:
            if error.code == OTHER_WRITER:
                raise OutdatedLedger from None
            raise
        reach("sink.commit.after")
        self._tail.stored(last, revision)
        self._stored = stored

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _stream_name(self) -> str:
        return self._connection.stream.name

    @property
    def _place(self) -> str:
        return f"connection {self._connection.name} ({', '.join(self._connection.servers)})"

    def _connected(self) -> closing[NatsSession]:
        """A session for a look."""
        return closing(NatsSession(self._connection.refreshed(), self._place))

    def _look(self, session: NatsSession) -> tuple[StreamLedger, int, StreamStatus | None]:
        """What is stored, its revision, and the stream. Raises where the stream is not the one that it is about.

        The stream is looked at last: another instance may be publishing. A server that has just become the stream's
        leader may not know of its last messages yet.
        """
        value, revision = session.stored(ledger_stream(self._stream_name), ledger_subject(self._stream_name))
        stream = session.stream(self._stream_name)
        if not value:
            return StreamLedger(), revision, stream
        stored = from_value(value, project=self._project, connection=self._connection.name, stream=self._stream_name)
        began = time.monotonic()
        while is_behind(stored, stream) and time.monotonic() - began < _PATIENCE:
            time.sleep(_BETWEEN)
            stream = session.stream(self._stream_name)
        if (different := different_stream(stored, stream, self._stream_name)) is not None:
            raise different
        return stored, revision, stream

    def _replace(self, stored: StreamLedger, revision: int) -> int:
        assert self._session is not None
        name = self._stream_name
        value = to_value(stored, project=self._project, connection=self._connection.name, stream=name)
        try:
            return self._session.replace(ledger_stream(name), ledger_subject(name), value, revision)
        except NatsApiError as error:
            raise api_failure(self._place, error, ledger_stream(name)) from None

    def _check_subject(self, subjects: Sequence[str], subject: str) -> None:
        if (error := untaken(self._stream_name, subjects, subject)) is not None:
            raise error

    def _subject(self, truck: str, table: TableId) -> str:
        subject = self._subjects.get((truck, table))
        if subject is None:
            marks = self._connection.mark_subject
            subject = marks if table == NO_TABLE else subject_of(self._connection.subject, table, truck)
            self._subjects[truck, table] = subject
        return subject

    def _message(self, truck: str, event: Event) -> OutgoingMessage:
        payload = event.value or b""
        headers = dict(event_headers(event))
        headers[TRUCK] = truck
        if event.snapshot:
            headers[COPIED] = "true"
        # An event with another id at its next attempt is removed if this one fails, so this attempt is part of its id:
        # the server would recognize the one that was removed.
        attempt = "" if is_stable(event.id, snapshot=event.snapshot) else f"/{self._first_sequence}"
        headers[ID] = f"{self._project}/{truck}/{event.id}{attempt}"
        return OutgoingMessage(self._subject(truck, event.table), payload, headers, _size(payload, headers))

    def _limit(self, session: NatsSession, stream: StreamStatus | None) -> int:
        """How many bytes a message may have, headers included."""
        limit = -1 if stream is None else int(stream.config.get("max_msg_size", -1))
        return session.largest if limit < 0 else min(limit, session.largest)


def _size(payload: bytes, headers: Mapping[str, str]) -> int:
    """The bytes of a message as the server counts them, at the most."""
    return (
        len(payload)
        + sum([len(name) + len(value) * (1 if value.isascii() else 4) + _SEPARATORS for name, value in headers.items()])
        + _LINE_AND_FENCE
    )


def _too_large(size: int, limit: int) -> DataError:
    return DataError(
        f"it is {size} bytes large, and the server takes {limit}",
        remedy="raise max_payload in the server's configuration (and max_msg_size of the stream), or leave the large "
        "column out (except_columns)",
        code=TOO_LARGE,
    )
