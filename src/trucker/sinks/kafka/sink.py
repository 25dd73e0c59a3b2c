"""Topics of a Kafka cluster.

    <topic>                                        the events of a table, by the template `topic`, partitioned by key
    trucker.transactions.<truck>                   marks of transactions, with `transactions: true`
    trucker.positions.<project>.<connection>       the ledger, compacted (`positions`)

A delivery is one transaction: its events, and the records of the ledger that it changes. Executors stage; the driver
alone produces, as a transaction belongs to one producer.

`open` reads the ledger. Where a transaction is open at its end, as when a process was killed or a commit gave no
answer, it takes over the transactional id first, by which the brokers settle that transaction. The first delivery takes
it over in any case, and looks whether the ledger is still the one that it was planned with: until then an earlier
process may have gone on, from then on it is fenced. So a process that only looks disturbs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import ClassVar, Final

import numpy as np
import pyarrow.compute as pc

from trucker.abilities import Abilities
from trucker.adapters.kafka import KAFKA, KafkaConnection
from trucker.config.name_template import name_of
from trucker.errors import DataError, SinkError, TruckerError, TruckFailed
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.delivery import Delivery, OutdatedLedger
from trucker.sinks.event import NO_TABLE, Event, Events, event_headers
from trucker.sinks.event_letters import LetterEventSink
from trucker.sinks.kafka.failure import KafkaFailures
from trucker.sinks.kafka.message import KafkaHeaders, batch_size, headers
from trucker.sinks.kafka.positions import PARTITION, PositionsReader, ledger_of, records
from trucker.sinks.kafka.producer import TransactionalProducer
from trucker.sinks.kafka.topics import LEGAL, Topics
from trucker.sinks.ledger import Ledger
from trucker.sinks.target import Target
from trucker.table import TableId

# A message with less than this to the limit is measured exactly.
_NEAR_LIMIT: Final = 4096
_NO_LIMIT: Final = 1 << 62
_OF_A_TOPIC: Final = ("TRK724", "TRK725")
_COMPRESSION: Final = ("compression.type", "compression.codec")


class KafkaSink(LetterEventSink):
    """Guarantee: exactly once for consumers that read committed messages, whole transactions, in order per key."""

    name: ClassVar[str] = "kafka"
    abilities: ClassVar[Abilities] = KAFKA.abilities

    def __init__(self, connection: KafkaConnection, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._connection = connection
        self._topics: Topics | None = None
        self._producer: TransactionalProducer | None = None
        self._stored = Ledger()
        self._names: dict[tuple[str, TableId], str] = {}
        self._trucks: dict[str, str] = {}

    @property
    def transactional_id(self) -> str:
        return self._connection.transactional_id or f"trucker.{self._project}.{self._connection.name}"

    @property
    def positions_topic(self) -> str:
        """By default named for project and connection; a project's id may have characters that a topic may not."""
        named = self._connection.positions_topic or f"trucker.positions.{self._project}.{self._connection.name}"
        if LEGAL.fullmatch(named):
            return named
        digest = blake2b(named.encode(), digest_size=6).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9._-]', '_', named)[:230]}.{digest}"

    def topic_of(self, truck: str, table: TableId) -> str:
        """The topic of a table's events; raises `SinkError` where the template gives none that can be."""
        topic = self._names.get((truck, table))
        if topic is None:
            template = self._connection.transaction_topic if table == NO_TABLE else self._connection.topic
            topic = name_of(template, table, truck)
            if not LEGAL.fullmatch(topic) or topic in (".", ".."):
                raise self._failure.unusable_name(topic, str(table))
            if topic == self.positions_topic:
                raise self._failure.positions_taken(topic, str(table))
            self._names[truck, table] = topic
            self._trucks.setdefault(topic, truck)
        return topic

    # -- before a run ----------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Whether the brokers can be reached, and hold positions or may. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            brokers = self._known_topics.cluster()
            refusal = self._known_topics.refusal(self.positions_topic, positions=True)
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        if refusal is not None:
            return [Finding(Level.ERROR, subject, refusal.message, refusal.remedy, refusal.code)]
        return [Finding(Level.OK, subject, f"reachable, {brokers} broker{'s' if brokers != 1 else ''}")]

    def stored(self) -> Mapping[str, TruckState]:
        """Reads beside a process that produces, and does not disturb it."""
        return self._read().states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """Topics that are missing, and may not be written or created; and what the envelope cannot hold."""
        yield from super().examine(targets, due)
        for target in targets:
            for table in self._tables_of(target):
                try:
                    refusal = self._known_topics.refusal(self.topic_of(target.truck, table))
                except SinkError as error:
                    refusal = error
                if refusal is not None:
                    yield target, refusal

    def prepare(self, target: Target) -> frozenset[str]:
        """Have the topics of the table; there are no columns to make."""
        super().prepare(target)
        for table in self._tables_of(target):
            self._known_topics.ensure(self.topic_of(target.truck, table))
        return frozenset()

    def _tables_of(self, target: Target) -> tuple[TableId, ...]:
        return (target.table, NO_TABLE) if self._connection.transactions else (target.table,)

    # -- a delivery ------------------------------------------------------------------------------------------------

    def read_ledger(self) -> Ledger:
        self._leave()
        self._connection = self._connection.refreshed()
        self._known_topics.ensure(self.positions_topic, positions=True)
        self._stored = self._read(settle=self._start)
        return self._stored

    def publish(self, delivery: Delivery) -> None:
        try:
            super().publish(delivery)
        except BaseException:
            if self._producer is not None and not self._producer.abort():
                self._drop_producer()
            raise

    def append(self, truck: str, events: Iterator[Events]) -> None:
        producer = self._begun()
        for piece in events:
            try:
                refused = self._send(producer, truck, piece)
                producer.verify()
            except SinkError as error:
                raise self._blamed(producer, error, truck) from None
            self.refuse(truck, refused)

    def store(self, ledger: Ledger) -> None:
        producer = self._begun()
        topic = self.positions_topic
        try:
            reach("sink.position.before")
            for key, value in records(self._project, self._stored, ledger):
                producer.produce(topic, value, key, partition=PARTITION)
            producer.flush()
        except SinkError as error:
            raise self._blamed(producer, error) from None
        reach("sink.position.after")
        reach("sink.commit.before")
        try:
            producer.commit()
        except SinkError:
            self._drop_producer()  # the outcome is not known: the next one settles it
            raise
        reach("sink.commit.after")
        self._stored = ledger

    def _begun(self) -> TransactionalProducer:
        """The producer, in a transaction. Raises `OutdatedLedger` where another process has gone on meanwhile."""
        if self._producer is None:
            self._start()
            if self._read() != self._stored:
                raise OutdatedLedger
        assert self._producer is not None
        if not self._producer.in_transaction:
            self._producer.begin()
        return self._producer

    def _start(self) -> None:
        """Take over the transactional id."""
        producer = TransactionalProducer(self._connection, self.transactional_id)
        producer.start()
        self._producer = producer

    def _send(self, producer: TransactionalProducer, truck: str, piece: Events) -> list[tuple[Event, DataError]]:
        """Queue the events; those that are larger than their topic takes."""
        used = {*np.unique(piece.table).tolist()}
        topics = [self.topic_of(truck, table) if number in used else "" for number, table in enumerate(piece.tables)]
        if piece.key.null_count:
            self._refuse_keyless(piece, topics)
        refused = self._larger(piece, topics)
        if refused:
            piece = piece.take(np.delete(np.arange(len(piece)), [*refused]))
        to = (topics[table] for table in piece.table.tolist())
        producer.produce_all(zip(to, piece.value.to_pylist(), piece.key.to_pylist(), headers(piece), strict=True))
        return list(refused.values())

    def _refuse_keyless(self, piece: Events, topics: Sequence[str]) -> None:
        without = piece.key.is_null().to_numpy(zero_copy_only=False)
        for number in np.unique(piece.table[without]).tolist():
            if self._known_topics.needs_keys(topics[number]):
                raise self._failure.keyless(topics[number])

    def _larger(self, piece: Events, topics: Sequence[str]) -> dict[int, tuple[Event, DataError]]:
        """The events that are larger than their topic takes, by their number."""
        limits = [self._limit(topic) if topic else None for topic in topics]
        bounds = np.array([_NO_LIMIT if limit is None else limit - _NEAR_LIMIT for limit in limits], np.int64)
        sizes = sum(pc.fill_null(pc.binary_length(each), 0).to_numpy() for each in (piece.value, piece.key))
        refused: dict[int, tuple[Event, DataError]] = {}
        for number in np.flatnonzero(sizes > bounds[piece.table]).tolist():
            event = next(piece.slice(number, number + 1).rows())
            error = self._too_large(topics[piece.table[number]], event)
            if error is not None:
                refused[number] = (event, error)
        return refused

    def _limit(self, topic: str) -> int | None:
        """What a message may be at most; None where only the brokers can tell, as before they are compressed."""
        kinds = [self._connection.settings[name] for name in _COMPRESSION if name in self._connection.settings]
        return None if any(kind != "none" for kind in kinds) else self._known_topics.limit(topic)

    def _too_large(self, topic: str, event: Event) -> DataError | None:
        limit, size = self._limit(topic), batch_size(event.value, event.key, event_headers(event))
        if limit is None or size <= limit:
            return None
        limit = self._known_topics.limit(topic, anew=True)  # it may have been raised meanwhile
        if limit is None or size <= limit:
            return None
        return self._failure.too_large(topic, event.id, size, limit)

    def _blamed(
        self, producer: TransactionalProducer, error: SinkError, truck: str | None = None
    ) -> SinkError | TruckFailed:
        """The error of the truck whose topic it is about; `truck` is the one at hand."""
        truck = self._trucks.get(producer.refused_topic, truck)
        return TruckFailed(truck, error) if truck is not None and error.code in _OF_A_TOPIC else error

    # -- dead letters ----------------------------------------------------------------------------------------------

    def redeliver(self, truck: str, events: Sequence[Event]) -> Sequence[DataError | None]:
        """In a transaction of a producer of its own, beside the one that a run has."""
        producer = TransactionalProducer(self._connection.refreshed(), f"{self.transactional_id}.redrive")
        producer.start()
        try:
            try:
                return self._redelivered(producer, truck, events)
            except DataError:  # by the brokers, which name no message
                producer.abort()
            outcomes: list[DataError | None] = []
            for event in events:
                try:
                    outcomes += self._redelivered(producer, truck, [event])
                except DataError as error:
                    producer.abort()
                    outcomes.append(error)
            return outcomes
        finally:
            producer.abort()
            producer.drop()

    def _redelivered(
        self, producer: TransactionalProducer, truck: str, events: Sequence[Event]
    ) -> list[DataError | None]:
        outcomes: list[DataError | None] = []
        producer.begin()
        for event in events:
            topic = self.topic_of(truck, event.table)
            error = self._too_large(topic, event)
            outcomes.append(error)
            if error is None:
                heads: KafkaHeaders = [*event_headers(event)]
                producer.produce(topic, event.value, event.key, heads)
        producer.flush()
        producer.commit()
        return outcomes

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._producer is not None:
            self._producer.abort()
        self._leave()

    def _leave(self) -> None:
        self._drop_producer()
        self._topics = None

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.drop()
            self._producer = None

    @property
    def _failure(self) -> KafkaFailures:
        return KafkaFailures(self._connection)

    @property
    def _known_topics(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._connection)
        return self._topics

    def _read(self, settle: Callable[[], None] | None = None) -> Ledger:
        """The ledger that counts; empty where its topic is not there yet."""
        topic = self.positions_topic
        if not self._known_topics.look(topic, positions=True):
            return Ledger()
        return ledger_of(PositionsReader(self._connection, topic, settle).read(), self._project, topic)
