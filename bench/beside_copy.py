"""What an incremental copy costs the tables that stream beside it: commit to visible, with the copy and without.

Each round adds a truck that copies a large table to a project that streams; small transactions of another truck are
committed on a fixed schedule before and meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from figure import percentile, ratio_at_most
from harness import TABLE, Bench, fill, value
from latency import Listener
from reload import NOTIFY, PING, add_truck
from trucker.project import Project

PER_SECOND = 100
SHARE = 5
_NAME = "beside_copy"
_COPYING = "select count(*) from trucker.tables where snapshot like '%#%' and source_table = '{}'"


def measure(bench: Bench) -> None:
    """Percentiles in milliseconds, in the same round."""
    rows = SHARE * bench.rows
    words = f"beside an incremental copy, {PER_SECOND} transactions/s"
    middle = bench.figure(f"commit to visible {words}, p50", "ms", None, "without the copy", rows)
    tail = bench.figure(f"commit to visible {words}, p99", "ms", ratio_at_most(2.0), "without the copy", rows)
    source = bench.database(bench.source, _NAME, PING, TABLE.format(name="bench"))
    fill(source, "bench", 1, rows, 100_000)
    source.execute(b"vacuum analyze bench")
    target = bench.database(bench.target, _NAME)
    folder = bench.project(_NAME, _NAME, _NAME, ["public.ping"])
    bench.streaming(folder)
    target.execute(NOTIFY.encode())
    for number in bench.rounds():
        bench.settle()
        deadline = time.perf_counter() + (2 if bench.quick else 10)
        alone = _latencies(bench, source, lambda deadline=deadline: time.perf_counter() < deadline)
        _copy(folder, f"copy_{number}")
        copying = _latencies(bench, source, lambda number=number: not _copied(target, f"copy_{number}", rows))
        for figure, share in ((middle, 0.5), (tail, 0.99)):
            figure.trucker.append(percentile(copying, share))
            figure.reference.append(percentile(alone, share))
        bench.say(f"p99 {tail.trucker[-1]:.0f} ms beside the copy, {tail.reference[-1]:.0f} ms without")


def _copy(folder: Path, name: str) -> None:
    """Have another truck copy the table, into a table of its own."""
    add_truck(folder, name, {"tables": ["public.bench"], "copy": "incremental"}, {"table": f"public.{name}"})
    Project.load(folder).reload()


def _copied(target: psycopg.Connection[Any], name: str, rows: int) -> bool:
    if value(target, f"select to_regclass('public.{name}') is null") or value(target, _COPYING.format("bench")):
        return False
    return bool(value(target, f"select count(*) from {name}") == rows)


def _latencies(bench: Bench, source: psycopg.Connection[Any], goes_on: Callable[[], bool]) -> list[float]:
    """Milliseconds from commit to visible of transactions on a schedule."""
    listener = Listener(bench, _NAME)
    committed: dict[int, float] = {}
    began = time.perf_counter()
    try:
        while len(committed) % PER_SECOND or goes_on():
            time.sleep(max(0.0, began + len(committed) / PER_SECOND - time.perf_counter()))
            number = value(source, "insert into ping default values returning id")
            committed[number] = time.perf_counter()
        bench.wait(lambda: committed.keys() <= listener.visible_at.keys())
    finally:
        listener.stop()
    return [(listener.visible_at[number] - at) * 1000 for number, at in committed.items()]
