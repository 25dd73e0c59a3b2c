"""Commit to visible: at a hundred small transactions a second, beside a native subscription, and under pgbench.

A transaction's latency is from the return of COMMIT at the source to a notification from a trigger at the destination,
which PostgreSQL sends when the change becomes visible. Transactions are committed on a fixed schedule: a slow one
delays none after it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any

import psycopg

from figure import Figure, at_least, at_most, percentile, ratio_at_most
from harness import TABLE, Bench
from ways import MARKER, Markers, Native, Truck, Way

PER_SECOND = 100
PGBENCH_PER_SECOND = 2_000
PROBES_PER_SECOND = 25
GROWTH = 1.5

_PING = "create table ping (id integer primary key)"
_NOTIFY = """
create or replace function ping_seen() returns trigger language plpgsql as
    $$ begin perform pg_notify('ping', new.id::text); return null; end $$;
create trigger ping_seen after insert on ping for each row execute function ping_seen();
alter table ping enable always trigger ping_seen
"""
# The subscription makes no tables; these are pgbench's.
_PGBENCH_TABLES = (
    "create table pgbench_accounts (aid integer primary key, bid integer, abalance integer, filler character(84))",
    "create table pgbench_branches (bid integer primary key, bbalance integer, filler character(88))",
    "create table pgbench_tellers (tid integer primary key, bid integer, tbalance integer, filler character(84))",
    "create table pgbench_history"
    " (tid integer, bid integer, aid integer, delta integer, mtime timestamp, filler character(22))",
)
_PGBENCH = ("public.pgbench_accounts", "public.pgbench_history")


def measure(bench: Bench) -> None:
    """Percentiles of the latency at a steady low rate and under pgbench, and whether the lag grows."""
    middle = bench.figure(f"commit to visible, {PER_SECOND} transactions/s, p50", "ms", at_most(80), Native.name)
    tail = bench.figure(f"commit to visible, {PER_SECOND} transactions/s, p99", "ms", at_most(250), Native.name)
    busy = bench.figure(
        f"commit to visible, pgbench at {PGBENCH_PER_SECOND:,} transactions/s, p99", "ms", at_most(1000)
    )
    busy_middle = bench.figure(f"commit to visible, pgbench at {PGBENCH_PER_SECOND:,} transactions/s, p50", "ms")
    growth = bench.figure(
        "pgbench: latency in the last third", "ms", ratio_at_most(GROWTH, "does not grow (≤ 1.5 ×)"), "the first third"
    )
    reached = bench.figure(
        "pgbench: transactions/s reached", "transactions/s", at_least(0.95 * PGBENCH_PER_SECOND), rows=1
    )
    source = bench.database(bench.source, "latency", TABLE.format(name="bench"), MARKER, _PING)
    _pgbench(bench, "-i", "-q", "-s", "1" if bench.quick else "10")
    source.execute(b"alter table pgbench_history replica identity full")
    native = Native(bench, source, "latency_native", TABLE.format(name="bench"), MARKER, _PING, *_PGBENCH_TABLES)
    truck = Truck(bench, source, "latency_truck", "public.bench", "public.marker", "public.ping", *_PGBENCH)
    truck.ready()
    for way in (native, truck):
        way.target.execute(_NOTIFY.encode())
    probe = Probe(bench, source)
    markers = Markers(source)
    # Java compiles what is hot within the first few hundred batches.
    probe.latencies(truck, PER_SECOND, 1 if bench.quick else 10)
    for number in bench.rounds():

        def steady(way: Native | Truck) -> None:
            latencies = probe.latencies(way, PER_SECOND, 4 if bench.quick else 8)
            for figure, share in ((middle, 0.5), (tail, 0.99)):
                (figure.trucker if way is truck else figure.reference).append(percentile(latencies, share))
            bench.say(f"{way.name}: p50 {percentile(latencies, 0.5):.1f} ms, p99 {percentile(latencies, 0.99):.1f} ms")

        bench.alternate(number, lambda: alone(steady, truck, native), lambda: alone(steady, native, truck))
    native.hold()
    for _ in bench.rounds(3):
        _under_pgbench(bench, probe, truck, (busy, busy_middle, growth, reached))
    native.release()
    for way in (truck, native):
        way.wait(markers.put())


def alone(steady: Any, way: Way, other: Way) -> None:
    """Measure one way while the other is held."""
    other.hold()
    try:
        steady(way)
    finally:
        other.release()


class Probe:
    """Commits small transactions on a schedule and notes when each is visible."""

    def __init__(self, bench: Bench, source: psycopg.Connection[Any]) -> None:
        self._bench = bench
        self._source = source
        self._pings = 0

    def latencies(self, way: Native | Truck, per_second: float, seconds: float) -> list[float]:
        """Milliseconds from commit to visible of each transaction, in their order."""
        listener = Listener(self._bench, way.target.info.dbname)
        committed: dict[int, float] = {}
        began = time.perf_counter()
        for turn in range(int(per_second * seconds)):
            time.sleep(max(0.0, began + turn / per_second - time.perf_counter()))
            self._pings += 1
            self._source.execute(
                f"insert into bench values ({self._pings}, 1, 2, 3, 4.5, 5.5, 'a name', 'an address', 'a note', true)"
                f" on conflict do nothing; insert into ping values ({self._pings})".encode()
            )
            committed[self._pings] = time.perf_counter()
        try:
            self._bench.wait(lambda: committed.keys() <= listener.visible_at.keys())
        finally:
            listener.stop()
        return [(listener.visible_at[ping] - at) * 1000 for ping, at in committed.items()]


class Listener:
    """Notes when each ping became visible."""

    def __init__(self, bench: Bench, database: str) -> None:
        self.visible_at: dict[int, float] = {}
        self._connection = bench.target.connect(database)
        self._connection.execute("listen ping")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            for notice in self._connection.notifies(timeout=0.2):
                self.visible_at[int(notice.payload)] = time.perf_counter()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


def _pgbench(bench: Bench, *arguments: str) -> str:
    pgbench = subprocess.run(
        [bench.source.bin / "pgbench", *arguments],
        env=bench.source.environment("latency"),
        capture_output=True,
        text=True,
        check=True,
        timeout=bench.patience,
    )
    return pgbench.stdout


def _under_pgbench(bench: Bench, probe: Probe, truck: Truck, figures: tuple[Figure, ...]) -> None:
    """pgbench's simple update (an update, a select, an insert) at a fixed rate, with probes beside it."""
    busy, middle, growth, reached = figures
    seconds = 6 if bench.quick else 21
    outputs: list[str] = []
    arguments = ("-n", "-N", "-M", "prepared", "-c", "8", "-R", str(PGBENCH_PER_SECOND), "-T", str(seconds + 1))
    load = threading.Thread(target=lambda: outputs.append(_pgbench(bench, *arguments)), daemon=True)
    with bench.profiled() as cpu:
        load.start()
        time.sleep(1)
        latencies = probe.latencies(truck, PROBES_PER_SECOND, seconds)
        load.join(bench.patience)
    busy.trucker.append(percentile(latencies, 0.99))
    busy.trucker_cpu.append(cpu)
    busy.rows = PGBENCH_PER_SECOND * 2 * seconds
    middle.trucker.append(percentile(latencies, 0.5))
    third = len(latencies) // 3
    growth.trucker.append(percentile(latencies[-third:], 0.5))
    growth.reference.append(percentile(latencies[:third], 0.5))
    reached.trucker.append(_rate(outputs))
    bench.say(
        f"pgbench at {reached.trucker[-1]:,.0f} transactions/s: p50 {middle.trucker[-1]:.0f} ms,"
        f" p99 {busy.trucker[-1]:.0f} ms, last third {growth.ratios[-1]:.2f} of the first"
    )


def _rate(outputs: list[str]) -> float:
    lines = outputs[0].splitlines() if outputs else []
    return next((float(line.split()[2]) for line in lines if line.startswith("tps = ")), 0.0)
