"""trucker when there is little to do, and when there is one very large transaction: start, idle CPU, memory.

Memory is the sum of the resident sizes of all of trucker's processes, which counts a page that several of them share
once for each: the strict figure. The proportional size, where such a page counts once, is reported beside it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psycopg

from figure import at_least, at_most
from harness import TABLE, Bench, fill, flushed, value
from processes import PeakMemory, cpu_seconds, proportional, resident
from trucker.testing.process import TruckerProcess
from ways import MARKER, TABLES, Markers

LARGE_SHARE = 5


def measure(bench: Bench) -> None:
    """Start to first row; idle CPU and the slot's advance; memory at rest and during one large transaction."""
    start = bench.figure("start of `trucker run` to first row, warm cache", "s", at_most(6.0))
    idle = bench.figure("idle CPU, all processes", "% of a core", at_most(2.0))
    moved = bench.figure("idle: bytes the slot advances", "bytes", at_least(1, "advances"))
    rest = bench.figure("memory at rest, resident", "MiB", at_most(1.2 * 1024))
    shared = bench.figure("memory at rest, proportional", "MiB")
    large = LARGE_SHARE * bench.rows
    peak = bench.figure(f"memory during a transaction of {large:,} rows, resident", "MiB", at_most(2048.0), rows=large)

    tables = (TABLE.format(name="bench"), MARKER)
    source = bench.database(bench.source, "rest", *tables)
    target = bench.database(bench.target, "rest")
    project = bench.project("bench_rest", "rest", "rest", TABLES)
    markers = Markers(source)
    bench.run_once(project)
    process: TruckerProcess | None = None
    for _ in bench.rounds():
        if process is not None:
            process.stop()
        marker = markers.put()
        began = time.perf_counter()
        process = bench.run(project)
        _await_marker(bench, target, marker)
        start.trucker.append(time.perf_counter() - began)
        bench.say(f"start: {start.trucker[-1]:.1f} s")
    assert process is not None
    goal = flushed(source)
    running = process
    bench.wait(lambda: running.check() or running.caught_up(goal), every=0.05)
    time.sleep(2 if bench.quick else 10)
    for _ in bench.rounds(2):
        _idle(bench, source, process, idle.trucker, moved.trucker)
    groups = resident(process.process.pid)
    rest.trucker.append(sum(groups.values()))
    rest.note = "MiB: " + ", ".join(f"{group} {size:.0f}" for group, size in sorted(groups.items()))
    shared.trucker.append(proportional(process.process.pid))
    bench.say(f"idle: {idle.trucker[-1]:.2f} % of a core; memory {rest.trucker[-1]:.0f} MiB ({rest.note})")

    with PeakMemory(process.process.pid) as memory, bench.profiled(source) as cpu:
        fill(source, "bench", 1, large, large)
        _await_marker(bench, target, markers.put())
    peak.trucker.append(memory.mebibytes)
    peak.trucker_cpu.append(cpu)
    peak.note = "MiB: " + ", ".join(f"{group} {size:.0f}" for group, size in sorted(memory.groups.items()))
    bench.say(f"memory during a transaction of {large:,} rows: {memory.mebibytes:.0f} MiB ({peak.note})")


def _await_marker(bench: Bench, target: psycopg.Connection[Any], marker: int) -> None:
    query = f"select count(*) from marker where id = {marker}"

    def visible() -> bool:
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            return bool(value(target, query))
        return False

    bench.wait(visible)


def _idle(
    bench: Bench, source: psycopg.Connection[Any], process: TruckerProcess, idle: list[float], moved: list[float]
) -> None:
    seconds = 11.0 if bench.quick else 20.0
    confirmed = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where database = 'rest'"
    cpu, position = cpu_seconds(process.process.pid), value(source, confirmed)
    began = time.perf_counter()
    time.sleep(seconds)
    idle.append((cpu_seconds(process.process.pid) - cpu) / (time.perf_counter() - began) * 100)
    moved.append(float(value(source, confirmed) - position))
