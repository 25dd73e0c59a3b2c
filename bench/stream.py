"""The running stream: throughput and latency against a native subscription; idle CPU, memory and the cold start.

Each side has its own tables, and only one of them runs at a time. A run's clock starts with the load and stops when
a marker, committed after it, is visible at the destination. Latency is from the return of COMMIT at the source to a
notification from a trigger at the destination, which PostgreSQL sends when the change becomes visible.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import psycopg

from harness import TABLE, Bench, Figure, fill, flushed, percentile, touch, value, wait
from trucker.testing.process import TruckerProcess

IDLE_SECONDS = 20.0
SUBSCRIPTION = "bench_native"

_OTHERS = "create table {0}_marker (id integer primary key); create table {0}_ping (id integer primary key)"
_NOTIFY = """
create or replace function ping_seen() returns trigger language plpgsql as
    $$ begin perform pg_notify('ping', new.id::text); return null; end $$;
create trigger ping_seen after insert on {0}_ping for each row execute function ping_seen();
alter table {0}_ping enable always trigger ping_seen
"""


class Side:
    """One way from source to destination, with tables of its own. `start` and `stop` leave it caught up."""

    name: str

    def __init__(self, bench: Bench, source: psycopg.Connection[Any], target: psycopg.Connection[Any]) -> None:
        self.bench = bench
        self.source = source
        self.target = target
        self._markers = 0
        self._pings = 0

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def mark(self) -> None:
        """Commit a marker and wait until the destination shows it."""
        self._markers += 1
        self.source.execute(f"insert into {self.name}_marker values ({self._markers})".encode())
        seen = f"select count(*) from {self.name}_marker where id = {self._markers}"
        wait(lambda: value(self.target, seen))

    def timed(self, load: Callable[[], None]) -> float:
        began = time.perf_counter()
        load()
        self.mark()
        return time.perf_counter() - began

    def latencies(self, count: int) -> list[float]:
        """Milliseconds from commit to visible, for single-row transactions at random times."""
        listener = Listener(self.bench, self.target.info.dbname)
        dice = random.Random(1)
        committed: dict[int, float] = {}
        for _ in range(count):
            time.sleep(dice.uniform(0.03, 0.15))
            self._pings += 1
            self.source.execute(f"insert into {self.name}_ping values ({self._pings})".encode())
            committed[self._pings] = time.perf_counter()
        wait(lambda: len(listener.seen) >= count, 30)
        listener.stop()
        return [(listener.seen[number] - at) * 1000 for number, at in committed.items()]


class Listener:
    """Notes when each ping became visible."""

    def __init__(self, bench: Bench, database: str) -> None:
        self.seen: dict[int, float] = {}
        self._connection = bench.target.connect(database)
        self._connection.execute("listen ping")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            for notice in self._connection.notifies(timeout=0.5):
                self.seen[int(notice.payload)] = time.perf_counter()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


class Native(Side):
    """PostgreSQL's own logical replication."""

    name = "native"

    def prepare(self) -> None:
        self.source.execute(b"create publication bench_native for table native, native_marker, native_ping")
        self.source.execute(f"select pg_create_logical_replication_slot('{SUBSCRIPTION}', 'pgoutput')".encode())
        conninfo = self.bench.source.connection("source", self.source.info.dbname).conninfo()
        text = " ".join(f"{key}={word}" for key, word in conninfo.items())
        self.target.execute(
            f"create subscription {SUBSCRIPTION} connection '{text}' publication bench_native"
            " with (create_slot = false, copy_data = false, enabled = false)".encode()
        )
        self.target.execute(_NOTIFY.format("native").encode())

    def start(self) -> None:
        self.target.execute(f"alter subscription {SUBSCRIPTION} enable".encode())
        self.mark()

    def stop(self) -> None:
        self.target.execute(f"alter subscription {SUBSCRIPTION} disable".encode())
        active = f"select count(*) from pg_replication_slots where slot_name = '{SUBSCRIPTION}' and active"
        wait(lambda: not value(self.source, active), 30)

    def drop(self) -> None:
        self.target.execute(f"alter subscription {SUBSCRIPTION} set (slot_name = none)".encode())
        self.target.execute(f"drop subscription {SUBSCRIPTION}".encode())
        self.source.execute(f"select pg_drop_replication_slot('{SUBSCRIPTION}')".encode())


class Trucker(Side):
    """The project in the bench's folder, through the command line."""

    name = "truck"

    def prepare(self) -> None:
        tables = ["public.truck", "public.truck_marker", "public.truck_ping"]
        database = self.source.info.dbname
        self.project = self.bench.project("bench_stream", database, self.target.info.dbname, tables)
        self.start()
        self.target.execute(_NOTIFY.format("truck").encode())
        self.stop()

    def start(self) -> None:
        self.process: TruckerProcess = self.bench.run(self.project)
        goal = flushed(self.source)
        wait(lambda: self.process.check() or self.process.caught_up(goal), 120, 0.05)
        self.mark()

    def stop(self) -> None:
        self.process.stop()

    def cold_start(self) -> float:
        """Seconds from the start of the process until a row that waits for it is visible."""
        self._markers += 1
        self.source.execute(f"insert into truck_marker values ({self._markers})".encode())
        seen = f"select count(*) from truck_marker where id = {self._markers}"
        began = time.perf_counter()
        self.process = self.bench.run(self.project)
        wait(lambda: value(self.target, seen), 120, 0.01)
        return time.perf_counter() - began


def measure(bench: Bench) -> list[Figure]:
    tables = [TABLE.format(name=name) for name in ("native", "truck")]
    others = [_OTHERS.format(name) for name in ("native", "truck")]
    source = bench.database(bench.source, "stream", *tables, *others)
    target = bench.database(bench.target, "stream", tables[0], others[0])
    native, trucker = Native(bench, source, target), Trucker(bench, source, target)
    native.prepare()
    trucker.prepare()
    rates: dict[tuple[str, str], list[float]] = {}
    times: dict[str, list[float]] = {"truck": [], "native": []}
    for number in range(bench.repeat):
        bench.alternate(
            number,
            lambda n=number: _round(bench, native, n, rates, times),
            lambda n=number: _round(bench, trucker, n, rates, times),
        )
    native.drop()
    return [
        *(_against(f"stream {kind}", "rows/s", rates["truck", kind], rates["native", kind]) for kind in _LOADS),
        *(
            _against(f"latency p{share * 100:.0f}", "ms", *([percentile(times[side], share)] for side in times))
            for share in (0.5, 0.99)
        ),
        *_at_rest(bench, trucker, rates["peak", "memory"]),
    ]


def _against(name: str, unit: str, ours: list[float], theirs: list[float]) -> Figure:
    return Figure(name, unit, ours, theirs, "native subscription")


_LOADS = {"inserts": fill, "updates": touch}


def _round(
    bench: Bench, side: Side, number: int, rates: dict[tuple[str, str], list[float]], times: dict[str, list[float]]
) -> None:
    side.start()
    for kind, load in _LOADS.items():
        seconds = side.timed(lambda load=load: load(side.source, side.name, 1 + number * bench.rows, bench.rows))
        rates.setdefault((side.name, kind), []).append(bench.rows / seconds)
        bench.say(f"stream {kind}, {side.name}: {bench.rows / seconds:,.0f} rows/s")
    if isinstance(side, Trucker):
        rates.setdefault(("peak", "memory"), []).append(_memory(side.process)[0])
    times[side.name] += side.latencies(200 // bench.repeat + 1)
    bench.say(f"latency, {side.name}: p50 {percentile(times[side.name], 0.5):.1f} ms")
    side.stop()


def _at_rest(bench: Bench, trucker: Trucker, busy: list[float]) -> list[Figure]:
    cold = []
    for _ in range(bench.repeat):
        cold.append(trucker.cold_start())
        bench.say(f"cold start: {cold[-1]:.1f} s")
        trucker.stop()
    trucker.start()
    time.sleep(5)
    before = _cpu(trucker.process)
    time.sleep(IDLE_SECONDS)
    idle = (_cpu(trucker.process) - before) / IDLE_SECONDS * 100
    rss, pss = _memory(trucker.process)
    trucker.stop()
    return [
        Figure("cold start to first row", "s", cold),
        Figure("trucker --help", "s", [_help() for _ in range(bench.repeat)]),
        Figure("idle CPU", "% of a core", [idle]),
        Figure("memory at rest, resident", "MiB", [rss]),
        Figure("memory at rest, proportional", "MiB", [pss]),
        Figure("memory after load, resident", "MiB", busy),
    ]


def _help() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trucker", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _cpu(process: TruckerProcess) -> float:
    """Seconds of CPU used by all processes of the tree so far."""
    return sum(times.user + times.system for times in (member.cpu_times() for member in process.tree()))


def _memory(process: TruckerProcess) -> tuple[float, float]:
    """Resident and proportional set size of the tree in MiB; the first counts shared pages once per process."""
    found = [_full_info(member) for member in process.tree()]
    return sum(rss for rss, _ in found) / (1 << 20), sum(pss for _, pss in found) / (1 << 20)


def _full_info(member: psutil.Process) -> tuple[int, int]:
    try:
        info = member.memory_full_info()
    except psutil.NoSuchProcess:
        return 0, 0
    return info.rss, getattr(info, "pss", info.rss)
