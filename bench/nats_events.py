"""Changes into a stream of NATS: how many a second beside the client's own bulk publisher, and from commit to consumer.

Rates are of events that executors have staged: from the call of `commit` until the ledger is stored, against
`publish_async` of the same payloads with an id, until the last is acknowledged. One server on this machine, with its
streams in files.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import nats
import psycopg

from figure import Figure, percentile, ratio_at_least
from harness import TABLE, Bench
from trucker.adapters.nats import NatsConnection
from trucker.lsn import Lsn
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.nats.sink import NatsSink
from trucker.sinks.target import Target
from trucker.table import TableId
from trucker.testing.handmade import changes_of, insert, schema_of
from trucker.testing.jetstream import JetStreamServer

SHARE = 10
PER_SECOND = 100
PIECE = 10_000
CLIENT = "publish_async of nats-py"
_PING = "create table ping (id integer primary key)"
_SCHEMA = schema_of(
    TableId("public", "bench"),
    {"id": "integer not null", "customer": "integer", "name": "text", "note": "text"},
    ["id"],
)


def measure(bench: Bench) -> None:
    """Events per second, and percentiles of the latency at a steady low rate."""
    rows = max(bench.rows // SHARE, PIECE)
    rate = bench.figure("events into NATS", "events/s", ratio_at_least(0.7), CLIENT, rows)
    middle = bench.figure(f"commit to consumer of NATS, {PER_SECOND} transactions/s, p50", "ms")
    tail = bench.figure(f"commit to consumer of NATS, {PER_SECOND} transactions/s, p99", "ms")
    server = JetStreamServer(bench.folder / "nats")
    bench.callback(server.kill)
    server.start()
    _rates(bench, server, rate, rows)
    _latencies(bench, server, middle, tail)


def _rates(bench: Bench, server: JetStreamServer, figure: Figure, rows: int) -> None:
    stream = _Stream(server, bench.folder / "nats-sink", rows)
    bench.callback(stream.close)
    for number in bench.rounds():
        plain = f"plain{number}"

        def trucker() -> None:
            with bench.profiled() as cpu:
                figure.trucker.append(rows / stream.publish())
            figure.trucker_cpu.append(cpu)

        def client(plain: str = plain) -> None:
            payloads = [b"x" * stream.event_bytes] * rows
            with bench.profiled() as cpu:
                figure.reference.append(rows / asyncio.run(_publish_async(server.url, plain, payloads)))
            figure.reference_cpu.append(cpu)

        bench.alternate(number, trucker, client)
        bench.say(f"into NATS: {figure.trucker[-1]:,.0f} events/s, {CLIENT}: {figure.reference[-1]:,.0f}")


class _Stream:
    """A stream that one sink fills, batch after batch of as many rows."""

    def __init__(self, server: JetStreamServer, folder: Path, rows: int) -> None:
        connection = NatsConnection.model_validate(
            {
                "name": "bus",
                "adapter": "nats",
                "servers": server.url,
                "stream": "bench",
                "subject": "bench.{{ schema }}.{{ table }}",
            }
        )
        self._url, self._rows, self._step = server.url, rows, 0
        self._target = Target("main", _SCHEMA, _SCHEMA.table)
        self._sink = Committer(NatsSink(connection, Workspace("bench", folder, near=True)))
        self._sink.open()
        self._sink.prepare(self._target)
        for phase in (Phase.COPYING, Phase.STREAMING):
            state = {self._target.truck_table: TableState(phase, Lsn(1))}
            positions = {} if phase is Phase.COPYING else {"main": Lsn(1)}
            self._sink.commit(Batch(Lsn(1), Lsn(1), positions, state, (self._target,), "first"), [])
        self.publish()

    @property
    def event_bytes(self) -> int:
        """How large an event is, on average."""
        return asyncio.run(_mean_bytes(self._url, "bench"))

    def publish(self) -> float:
        """Publish one batch; the seconds that it took once it was staged."""
        self._step += 1
        start, end = Lsn(self._step * 100), Lsn(self._step * 100 + 100)
        batch = Batch(start, end, {"main": end}, targets=(self._target,))
        pieces = (
            changes_of(_SCHEMA, [_row(first + n) for n in range(PIECE)], lsn=Lsn(start + 1 + first // PIECE))
            for first in range(0, self._rows, PIECE)
        )
        receipt = self._sink.write(Work(batch, self._target, 0), pieces)
        began = time.perf_counter()
        self._sink.commit(batch, [receipt])
        return time.perf_counter() - began

    def close(self) -> None:
        self._sink.close()


def _row(number: int) -> Any:
    return insert({"id": str(number), "customer": str(number % 1000), "name": "a name", "note": "a note " * 10})


async def _publish_async(url: str, stream: str, payloads: list[bytes]) -> float:
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"])
        began = time.perf_counter()
        for number, payload in enumerate(payloads):
            await jetstream.publish_async(f"{stream}.public.bench", payload, headers={"Nats-Msg-Id": str(number)})
        await jetstream.publish_async_completed()
        return time.perf_counter() - began
    finally:
        await client.close()


async def _mean_bytes(url: str, stream: str) -> int:
    client = await nats.connect(url)
    try:
        last = await client.jetstream().get_last_msg(stream, f"{stream}.>")
        return len(last.data or b"")
    finally:
        await client.close()


def _latencies(bench: Bench, server: JetStreamServer, middle: Figure, tail: Figure) -> None:
    source = bench.database(bench.source, "nats_events", TABLE.format(name="bench"), _PING)
    store = {
        "name": "target",
        "adapter": "nats",
        "servers": server.url,
        "stream": "pings",
        "subject": "pings.{{ schema }}.{{ table }}",
    }
    process = bench.run(bench.project("bench_nats", "nats_events", store, ("public.ping",)))
    bench.streams(process)
    consumer = _Consumer(server.url, "pings.public.ping")
    bench.callback(consumer.stop)
    pings = _Pings(bench, source, consumer)
    pings.latencies(1 if bench.quick else 10)
    for _ in bench.rounds():
        latencies = pings.latencies(4 if bench.quick else 8)
        middle.trucker.append(percentile(latencies, 0.5))
        tail.trucker.append(percentile(latencies, 0.99))
        bench.say(f"commit to consumer: p50 {middle.trucker[-1]:.1f} ms, p99 {tail.trucker[-1]:.1f} ms")


class _Pings:
    """Commits small transactions on a schedule, and waits until the consumer has them."""

    def __init__(self, bench: Bench, source: psycopg.Connection[Any], consumer: _Consumer) -> None:
        self._bench, self._source, self._consumer = bench, source, consumer
        self._last = 0

    def latencies(self, seconds: float) -> list[float]:
        """Milliseconds from the return of COMMIT until the message arrived."""
        committed: dict[int, float] = {}
        began = time.perf_counter()
        for turn in range(int(PER_SECOND * seconds)):
            time.sleep(max(0.0, began + turn / PER_SECOND - time.perf_counter()))
            self._last += 1
            self._source.execute(f"insert into ping values ({self._last})".encode())
            committed[self._last] = time.perf_counter()
        self._bench.wait(lambda: committed.keys() <= self._consumer.arrived_at.keys())
        return [(self._consumer.arrived_at[ping] - at) * 1000 for ping, at in committed.items()]


class _Consumer(threading.Thread):
    """Notes when each row arrived."""

    def __init__(self, url: str, subject: str) -> None:
        super().__init__(daemon=True)
        self.arrived_at: dict[int, float] = {}
        self._url, self._subject = url, subject
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        client = await nats.connect(self._url)
        subscription = await client.jetstream().subscribe(self._subject, ordered_consumer=True)
        while not self._ended.is_set():
            try:
                message = await subscription.next_msg(0.2)
            except TimeoutError:
                continue
            number = int(message.data.partition(b'"key":{"id":')[2].partition(b"}")[0])
            self.arrived_at[number] = time.perf_counter()
        await client.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()
