"""Many tables in one truck: what one of them costs, copied and streamed, and that a batch is one Spark job.

Every table has a thousand rows, and then a thousand changes in a transaction of its own. Spark's event log, which is
on for this measure, has the jobs.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

from figure import at_most, ratio_at_most
from harness import Bench, FirstCopy, capture_of, pause, resume, value
from trucker.testing.process import TruckerProcess

ROWS = 1_000
GROWTH = 1.1


def measure(bench: Bench) -> None:
    """Milliseconds per table with many tables against with fewer; Spark jobs per batch."""
    one, some, many = (1, 8, 40) if bench.quick else (1, 50, 500)
    words = f"does not grow (≤ {GROWTH} ×)"
    copied = bench.figure(
        f"{many} tables, first copy, per table", "ms", ratio_at_most(GROWTH, words), f"with {some} tables"
    )
    streamed = bench.figure(
        f"{many} tables, stream, per table", "ms", ratio_at_most(GROWTH, words), f"with {some} tables"
    )
    jobs = bench.figure(f"{many} tables: Spark jobs per batch", "jobs", at_most(1.0, "one"))
    alone = bench.figure("1 table, first copy", "ms")
    alone_streamed = bench.figure("1 table, stream", "ms")
    if bench.quick:
        alone.missing = alone_streamed.missing = "only in a whole run"
    for number in bench.rounds():
        counts = (some, many) if number % 2 == 0 else (many, some)
        for count in (*counts, one) if number == 0 and not bench.quick else counts:
            copy, stream, ratio = _tables(bench, count, number)
            bench.say(
                f"{count} tables: {copy:.1f} ms each copied, {stream:.1f} ms each streamed, {ratio:.2f} jobs a batch"
            )
            if count == one:
                alone.trucker.append(copy)
                alone_streamed.trucker.append(stream)
            elif count == some:
                copied.reference.append(copy)
                streamed.reference.append(stream)
            else:
                copied.trucker.append(copy)
                streamed.trucker.append(stream)
                jobs.trucker.append(ratio)


def _tables(bench: Bench, count: int, number: int) -> tuple[float, float, float]:
    """Milliseconds per table copied and streamed, and Spark jobs per batch of the stream."""
    name = f"tables_{count}_{number}"
    source = bench.database(bench.source, name)
    for table in range(count):
        source.execute(f"create table t{table} (id integer primary key, name text, amount bigint)".encode())
        source.execute(f"insert into t{table} select i, 'row ' || i, i from generate_series(1, {ROWS}) i".encode())
    target = bench.database(bench.target, name)
    events = bench.folder / f"events-{name}"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    process = bench.run(bench.project(name, name, name, ["public.*"], spark={"settings": settings}))
    copying = FirstCopy(bench, process, target, count)
    copying.begin()
    copy = copying.end()
    stream, jobs = _stream(bench, process, source, target, count, events)
    process.kill_tree()
    for server in (bench.source, bench.target):
        bench.drop_database(server, name)
    return copy * 1000 / count, stream * 1000 / count, jobs


def _stream(
    bench: Bench,
    process: TruckerProcess,
    source: psycopg.Connection[tuple[object, ...]],
    target: psycopg.Connection[tuple[object, ...]],
    count: int,
    events: Path,
) -> tuple[float, float]:
    """Seconds until every table's changes are visible, and Spark jobs per batch meanwhile."""
    batches_before, jobs = _batches(bench, process), _jobs(events)
    receivers = capture_of(process)
    pause(receivers)
    for table in range(count):
        source.execute(f"update t{table} set amount = -amount".encode())
    last = f"select count(*) from t{count - 1} where amount < 0"
    began = time.perf_counter()
    resume(receivers)
    bench.wait(lambda: process.check() or value(target, last))
    seconds = time.perf_counter() - began
    if value(target, last) != ROWS or value(target, "select count(*) from t0 where amount < 0") != ROWS:
        raise RuntimeError("changes are missing")
    return seconds, (_jobs(events) - jobs) / max(1, _batches(bench, process) - batches_before)


def _batches(bench: Bench, process: TruckerProcess) -> int:
    """Batches so far, by a status that is not older than this question."""
    requested_at = time.time()
    counts: list[int] = []

    def read() -> bool:
        status = process.status()
        if status is not None and status.updated > requested_at:
            counts.append(status.trucks[0].batches)
        return bool(counts)

    bench.wait(read, 0.05)
    return counts[0]


def _jobs(events: Path) -> int:
    """Spark jobs that were started, by its event log."""
    jobs = 0
    for file in events.rglob("*"):
        if file.is_file():
            jobs += file.read_text(errors="replace").count('"Event":"SparkListenerJobStart"')
    return jobs
