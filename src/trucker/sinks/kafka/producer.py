"""A transactional producer: one at a time holds a transactional id, and its transactions count whole or not at all.

`start` ends what an earlier process with the id has left: a transaction that it began to commit is committed, any
other is aborted, and the process itself is fenced. A producer whose commit gave no answer, or that failed for good, is
dropped; the next one settles what became of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from trucker.adapters.kafka import KafkaConnection
from trucker.errors import SinkError
from trucker.sinks.kafka.failure import FENCED, KafkaFailures
from trucker.sinks.kafka.library import LibraryLog, Reports, producer_settings
from trucker.sinks.kafka.message import KafkaHeaders
from trucker.sinks.kafka.patience import Patience

_ABORT_SECONDS: Final = 5.0
ANY_PARTITION: Final = -1


class TransactionalProducer:
    """The client of one transactional id. Not for several threads, and not to be handed to a fork."""

    def __init__(self, connection: KafkaConnection, transactional_id: str) -> None:
        self._connection = connection
        self._id = transactional_id
        self._failures = KafkaFailures(connection)
        self._reports = Reports()
        self._began: float | None = None
        settings = {
            **producer_settings(connection, transactional_id),
            "error_cb": self._reports.on_error,
            "on_delivery": self._reports.on_delivery,
        }
        try:
            self._client = Producer(settings, logger=LibraryLog(connection))
        except KafkaException as error:
            raise self._failures.wrong_settings(error.args[0]) from None

    def start(self) -> None:
        """Take over the transactional id."""
        patience = Patience(self._connection.timeout)
        while True:
            try:
                self._client.init_transactions(patience.slice)
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
            with contextlib.suppress(KafkaException):  # the same error
                self._client.poll(0)
            if self._reports.refusal is not None:
                raise self._failures.refused(self._reports.refusal)
            if not reason.retriable():
                raise self._failures.of(reason, "starting transactions")
            if patience.over:
                raise self._failures.away("starting transactions")

    @property
    def in_transaction(self) -> bool:
        return self._began is not None

    def begin(self) -> None:
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            raise self._failure(error.args[0], "beginning a transaction") from None
        self._reports.undelivered.clear()
        self._began = time.monotonic()

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: KafkaHeaders | None = None,
        partition: int = ANY_PARTITION,
    ) -> None:
        """Add a message to the transaction; waits while the queue is full (I9)."""
        try:
            self._client.produce(topic, value, key, partition, headers=headers)
        except BufferError:
            self._wait_for_room(topic, value, key, headers, partition)
        except KafkaException as error:
            raise self._failure(error.args[0], "sending", topic) from None

    def produce_all(self, messages: Iterable[tuple[str, bytes | str | None, bytes | str | None, KafkaHeaders]]) -> None:
        """As `produce`, for many: topic, value, key and headers of each."""
        produce = self._client.produce
        for topic, value, key, headers in messages:
            try:
                produce(topic, value, key, headers=headers)
            except BufferError:
                self._wait_for_room(topic, value, key, headers, ANY_PARTITION)
            except KafkaException as error:
                raise self._failure(error.args[0], "sending", topic) from None

    def _wait_for_room(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: KafkaHeaders | None,
        partition: int,
    ) -> None:
        patience = Patience(self._connection.timeout)
        while True:
            self.verify(0.02)
            try:
                self._client.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                if patience.over:
                    raise self._failures.away("sending") from None
            except KafkaException as error:
                raise self._failure(error.args[0], "sending", topic) from None

    def verify(self, seconds: float = 0) -> None:
        """Raise where a message was refused meanwhile, or the producer failed for good."""
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            raise self._failure(error.args[0], "sending") from None
        if self._reports.undelivered:
            refusal, topic = self._reports.undelivered[0]
            raise self._failure(refusal, "sending", topic)
        if self._reports.refusal is not None:
            raise self._failures.refused(self._reports.refusal)

    @property
    def refused_topic(self) -> str:
        """The topic of the first message that was refused in this transaction."""
        return self._reports.undelivered[0][1] if self._reports.undelivered else ""

    def flush(self) -> None:
        """Wait until the brokers have all messages. As long as they take some, they may take long."""
        patience, least = Patience(self._connection.timeout), self._flushed(0)
        while least:
            left = self._flushed(patience.slice)
            if left < least:
                patience, least = Patience(self._connection.timeout), left
            elif patience.over:
                raise self._failures.away("sending")
        self.verify()

    def _flushed(self, seconds: float) -> int:
        """How many messages the brokers do not have yet."""
        try:
            left: int = self._client.flush(seconds)
        except (KafkaException, SystemError) as error:
            # A fatal error is raised inside `flush`, which goes on as if it were not.
            reason = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(reason, KafkaException):
                raise
            raise self._failure(reason.args[0], "sending") from None
        self.verify()
        return left

    def commit(self) -> None:
        """Commit what was flushed. After any error the outcome is not known before another producer has started."""
        try:
            self._client.commit_transaction(self._connection.timeout)
        except KafkaException as error:
            raise self._failure(error.args[0], "committing") from None
        self._began = None

    def abort(self) -> bool:
        """Take the transaction back; False where the producer cannot go on, and must be dropped."""
        if self._began is None:
            return True
        with contextlib.suppress(KafkaException):
            self._client.abort_transaction(_ABORT_SECONDS)
            self._client.poll(0)
            self._began = None
            return True
        return False

    def drop(self) -> None:
        """Forget what is queued: the client ends at once."""
        with contextlib.suppress(KafkaException):
            self._client.purge()

    def _failure(self, error: KafkaError, doing: str, topic: str = "") -> SinkError:
        if error.code() in FENCED:
            elapsed = time.monotonic() - self._began if self._began is not None else 0.0
            if elapsed >= self._connection.transaction_timeout:
                return self._failures.expired()
            return self._failures.fenced(self._id)
        if self._reports.undelivered:
            error, topic = self._reports.undelivered[0]
        return self._failures.of(error, doing, topic)
