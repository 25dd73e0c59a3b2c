"""Streams of events: what a sink appends and commits a second, against its own client's bulk producer; and how long one
event takes.

Each store is a class of the table `STORES`: it starts its server, makes a sink, and sends the same messages by its
client alone. The events are staged before the clock starts, as executors do it; the clock covers what the driver does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from figure import Figure, at_most, percentile, ratio_at_least
from harness import Bench
from trucker.adapters.jsonl import JsonLinesConnection
from trucker.change import Changes
from trucker.lsn import Lsn
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.committer import Committer
from trucker.sinks.event import Event, event_headers
from trucker.sinks.lines.jsonl import JsonLinesSink
from trucker.sinks.target import Target
from trucker.table import TableId
from trucker.testing.handmade import changes_of, insert, schema_of
from trucker.testing.memory_events import MemoryEventSink

TABLE = schema_of(
    TableId("public", "bench"),
    {"id": "integer not null", "customer": "integer", "amount": "bigint", "name": "text", "note": "text"},
    ["id"],
)
TARGET = Target("bench", TABLE, TABLE.table)
SHARE = 5
PIECE = 5_000
SINGLES = 200


class EventStore(ABC):
    """A store with a server of its own, for as long as it is entered."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027  (optional)
        """End the server."""

    @abstractmethod
    def sink(self) -> Sink:
        """A new sink."""

    def messages(self, events: Sequence[Event]) -> Sequence[Any]:
        """The events in the client's own form, before the clock starts."""
        return events

    @abstractmethod
    def send(self, messages: Sequence[Any]) -> None:
        """Send these by the store's own client as fast as it can, with the sink's guarantee; durable at the end."""


class Kafka(EventStore):
    """A transaction of a transactional producer, with the same headers."""

    name = "Kafka"

    def __enter__(self) -> Self:
        from confluent_kafka import Producer

        from trucker.testing.kafka_broker import KafkaBroker

        self._broker = KafkaBroker(self.folder / "kafka").start()
        settings = {
            "bootstrap.servers": self._broker.servers,
            "transactional.id": "reference",
            "linger.ms": 5,
            "delivery.report.only.error": True,
        }
        self._producer = Producer(settings)
        self._producer.init_transactions(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.kill()

    def sink(self) -> Sink:
        from trucker.adapters.kafka import KafkaConnection
        from trucker.sinks.kafka.sink import KafkaSink

        connection = KafkaConnection(name="bench", adapter="kafka", servers=(self._broker.servers,))
        return KafkaSink(connection, Workspace("bench", self.folder / "work", near=True))

    def messages(self, events: Sequence[Event]) -> Sequence[Any]:
        return [(event.value, event.key, event_headers(event)) for event in events]

    def send(self, messages: Sequence[Any]) -> None:
        producer = self._producer
        producer.begin_transaction()
        for value, key, headers in messages:
            while True:
                try:
                    producer.produce("public.bench", value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.02)
        producer.commit_transaction()


class JsonLines(EventStore):
    """One write and one fsync."""

    name = "JSON lines"

    def sink(self) -> Sink:
        connection = JsonLinesConnection(name="bench", adapter="jsonl", path=self.folder / "lines")
        return JsonLinesSink(connection, Workspace("bench", self.folder / "work", near=True))

    def messages(self, events: Sequence[Event]) -> Sequence[Any]:
        return [event.value + b"\n" for event in events if event.value is not None]

    def send(self, messages: Sequence[Any]) -> None:
        with (self.folder / "reference.jsonl").open("ab") as file:
            file.writelines(messages)
            file.flush()
            os.fsync(file.fileno())


STORES: tuple[type[EventStore], ...] = (Kafka, JsonLines)


def measure(bench: Bench) -> None:
    """Events per second in one delivery, and the time of a delivery of one event."""
    rows = max(bench.rows // SHARE, PIECE)
    figures = {store: _figures(bench, store.name, rows) for store in STORES}
    changes = _changes(PIECE)
    for store in STORES:
        folder = bench.folder / f"events-{store.name.replace(' ', '-')}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            with store(folder) as entered:
                _measure(bench, entered, figures[store], changes, rows)
        except Exception as error:  # one that cannot be had here takes none of the others with it
            for figure in figures[store]:
                figure.missing = figure.missing or " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _figures(bench: Bench, name: str, rows: int) -> tuple[Figure, Figure, Figure]:
    return (
        bench.figure(f"events into {name}", "events/s", ratio_at_least(0.7), "its client's bulk producer", rows),
        bench.figure(f"one event into {name}, p50", "ms", at_most(50), "its client alone"),
        bench.figure(f"one event into {name}, p99", "ms", at_most(250), "its client alone"),
    )


def _measure(
    bench: Bench, store: EventStore, figures: tuple[Figure, Figure, Figure], changes: Changes, rows: int
) -> None:
    throughput, middle, tail = figures
    with contextlib.closing(Deliveries(store.sink(), store.folder)) as deliveries:
        deliveries.timed([changes])  # connects, and makes what is to be made
        store.send(store.messages(_events([changes], store.folder)))
        for number in bench.rounds():
            many = list(deliveries.numbered(changes, rows))
            same = store.messages(_events(many, store.folder))
            one = store.messages(_events([_changes(1)], store.folder))

            def bulk(many: list[Changes] = many) -> None:
                throughput.trucker.append(rows / deliveries.timed(many))

            def client(same: Sequence[Any] = same) -> None:
                throughput.reference.append(rows / _timed(lambda: store.send(same)))

            def singles() -> None:
                _percentiles([deliveries.timed([_changes(1)]) for _ in range(SINGLES)], middle.trucker, tail.trucker)

            def clients_singles(one: Sequence[Any] = one) -> None:
                seconds = [_timed(lambda: store.send(one)) for _ in range(SINGLES)]
                _percentiles(seconds, middle.reference, tail.reference)

            bench.alternate(number, bulk, client)
            bench.alternate(number, singles, clients_singles)
            bench.say(
                f"{store.name}: {throughput.trucker[-1]:,.0f} events/s ({throughput.ratios[-1]:.2f} of its client),"
                f" one event p50 {middle.trucker[-1]:.1f} ms, p99 {tail.trucker[-1]:.1f} ms"
            )


class Deliveries:
    """Deliveries of one truck to one sink, one after the other."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self._committer = Committer(sink)
        state = self._committer.open().get(TARGET.truck)
        self._end = int(state.lsn) if state is not None else 100
        self._committer.prepare(TARGET)

    def numbered(self, changes: Changes, rows: int) -> Iterator[Changes]:
        """The same changes over and over, as of one transaction after the other."""
        for number in range(rows // len(changes)):
            yield replace(changes, commit_lsn=changes.commit_lsn + self._end + 10 * number)

    def timed(self, many: Sequence[Changes]) -> float:
        """Stage these, and deliver them: the seconds of the delivery."""
        start, self._end = self._end, self._end + 10 * len(many) + 10
        batch = Batch(Lsn(start), Lsn(self._end), {TARGET.truck: Lsn(self._end)}, targets=(TARGET,))
        receipts: list[Receipt] = [self._committer.write(Work(batch, TARGET, 0), iter(many))]
        return _timed(lambda: self._committer.commit(batch, receipts))

    def close(self) -> None:
        self._committer.close()


def _changes(rows: int) -> Changes:
    return changes_of(
        TABLE,
        [
            insert(
                {
                    "id": str(number),
                    "customer": str(number % 1000),
                    "amount": str(number * 977),
                    "name": f"customer {number}",
                    "note": secrets.token_hex(16),
                }
            )
            for number in range(rows)
        ],
        lsn=Lsn(1),
    )


def _events(many: Sequence[Changes], folder: Path) -> list[Event]:
    """The events that a sink would send."""
    place = f"events-{secrets.token_hex(4)}"
    committer = Committer(MemoryEventSink(place, Workspace("bench", folder / "reference", near=True)))
    committer.open()
    for number, changes in enumerate(many, start=1):
        batch = Batch(Lsn(number), Lsn(number + 1), {TARGET.truck: Lsn(number + 1)}, targets=(TARGET,))
        committer.commit(batch, [committer.write(Work(batch, TARGET, 0), iter([changes]))])
    return MemoryEventSink.streams.pop(place).events[TARGET.truck]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _percentiles(seconds: Sequence[float], middle: list[float], tail: list[float]) -> None:
    middle.append(1000 * percentile(seconds, 0.5))
    tail.append(1000 * percentile(seconds, 0.99))
