"""The first copy of a table with its primary key against `COPY | COPY`, PostgreSQL's own initial synchronisation,
`pg_dump | pg_restore` and Spark's JDBC source and sink.

trucker's time is that of the copy, from the table's being made until it is whole at the destination; what
`run --once` takes, Spark's start included, is a figure of its own. The others' times have their processes' start in
them, but for JDBC: its session has been started and has copied a few rows before, and its rate is that of a tenth of
the rows.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from figure import Figure, ratio_at_least
from harness import TABLE, Bench, FirstCopy, fill, value
from jdbc import JdbcCopier

SHARE = 5
INCREMENTAL = {"connection": "source", "tables": ["public.bench"], "copy": "incremental"}
JDBC_SHARE = 10
SOURCE = "snapshot"
_TRUCKER = (sys.executable, "-m", "trucker")


def measure(bench: Bench) -> None:
    """Rows per second of the first copy, and of each other way in the same round."""
    rows = SHARE * bench.rows
    references: dict[str, tuple[float, Callable[[Bench, str], float]]] = {
        "COPY | COPY, binary": (1.0, _pipe),
        "native initial sync": (1.5, _native),
        "pg_dump | pg_restore": (1.5, _dump),
    }
    figures = {
        name: bench.figure(f"first copy, against {name}", "rows/s", ratio_at_least(bound), name, rows)
        for name, (bound, _) in references.items()
    }
    spark = bench.figure("first copy, against Spark JDBC", "rows/s", ratio_at_least(4.0), "Spark JDBC", rows)
    chunks = bench.figure("first copy, incremental", "rows/s", ratio_at_least(0.6), "first copy, exported", rows)
    whole = bench.figure("first copy, whole of `trucker run --once`", "s", rows=rows)
    source = bench.database(bench.source, SOURCE, TABLE.format(name="bench"))
    fill(source, "bench", 1, rows, 100_000)
    source.execute(b"vacuum analyze bench")
    few = rows // JDBC_SHARE
    with contextlib.ExitStack() as stack:
        jdbc = _jdbc(bench, spark, stack)
        for number in bench.rounds():
            turns: list[Callable[[], None]] = [
                lambda number=number: _trucker(bench, [*figures.values(), spark], whole, chunks, number),
                lambda number=number: _incremental(bench, chunks, number),
            ]
            turns += [
                lambda name=name, copy=copy, number=number: _reference(bench, figures[name], copy, number)
                for name, (_, copy) in references.items()
            ]
            if jdbc is not None:
                turns.append(
                    lambda number=number: _reference(
                        bench, spark, lambda _, database: jdbc.copy(database, few), number, few
                    )
                )
            bench.alternate(number, *turns)


def _jdbc(bench: Bench, figure: Figure, stack: contextlib.ExitStack) -> JdbcCopier | None:
    try:
        copier = stack.enter_context(JdbcCopier(bench, SOURCE))
        _reference(
            bench,
            Figure("", "JDBC, warming up", "", rows=1),
            lambda _, database: copier.copy(database, 10_000),
            0,
            10_000,
        )
        return copier
    except Exception as error:
        figure.missing = f"Spark's JDBC cannot be had here: {' '.join(str(error).split())[:200]}"
        bench.say(figure.missing)
        return None


def _trucker(bench: Bench, figures: list[Figure], whole: Figure, chunks: Figure, number: int) -> None:
    rate, cpu, seconds = _copied(bench, f"snapshot_trucker_{number}", whole.rows)
    whole.trucker.append(seconds)
    for figure in figures:
        if not figure.missing:
            figure.trucker.append(rate)
    figures[0].trucker_cpu.append(cpu)
    chunks.reference.append(rate)
    chunks.reference_cpu.append(cpu)
    bench.say(f"first copy: {rate:,.0f} rows/s")


def _incremental(bench: Bench, chunks: Figure, number: int) -> None:
    rate, cpu, _ = _copied(bench, f"snapshot_chunks_{number}", chunks.rows, truck={"input": INCREMENTAL})
    chunks.trucker.append(rate)
    chunks.trucker_cpu.append(cpu)
    bench.say(f"first copy, incremental: {rate:,.0f} rows/s")


def _copied(
    bench: Bench, name: str, rows: int, *, truck: Mapping[str, Any] | None = None
) -> tuple[float, dict[str, float], float]:
    """One first copy: its rate, what it cost, and the seconds of the whole command."""
    target = bench.database(bench.target, name)
    project = bench.project(f"bench_{name}", SOURCE, name, ["public.bench"], truck=truck)
    bench.settle()
    began = time.perf_counter()
    process = bench.run(project, "--once")
    copy = FirstCopy(bench, process, target, 1)
    copy.begin()
    with bench.profiled() as cpu:
        seconds = copy.end()
    if process.wait(bench.patience) != 0:
        raise RuntimeError(process.last_words())
    whole = time.perf_counter() - began
    if value(target, "select count(*) from bench") != rows:
        raise RuntimeError("the copy is not whole")
    subprocess.run([*_TRUCKER, "reset", "--yes", project], check=True, stdout=subprocess.DEVNULL)
    target.close()
    bench.drop_database(bench.target, name)
    return rows / seconds, cpu, whole


def _reference(bench: Bench, figure: Figure, copy: Callable[[Bench, str], float], number: int, rows: int = 0) -> None:
    """`rows` is how many are copied, where that is not the whole table."""
    name = f"snapshot_reference_{number}"
    bench.database(bench.target, name).close()
    bench.settle()
    try:
        with bench.profiled() as cpu:
            seconds = copy(bench, name)
        figure.reference.append((rows or figure.rows) / seconds)
        scale = figure.rows / (rows or figure.rows)
        figure.reference_cpu.append({group: spent * scale for group, spent in cpu.items()})
        bench.say(f"{figure.against or figure.name}: {figure.reference[-1]:,.0f} rows/s")
    finally:
        bench.drop_database(bench.target, name)


def _table(bench: Bench, database: str) -> None:
    with bench.target.connect(database) as target:
        target.execute(TABLE.format(name="bench").encode())


def _pipe(bench: Bench, database: str) -> float:
    _table(bench, database)
    psql = bench.source.bin / "psql"
    return _piped(
        bench,
        [psql, "-qc", "copy bench to stdout (format binary)"],
        [psql, "-qc", "copy bench from stdin (format binary)"],
        database,
    )


def _dump(bench: Bench, database: str) -> float:
    """The table with its key, which is made when the rows are there."""
    return _piped(
        bench,
        [bench.source.bin / "pg_dump", "-Fc", "-t", "bench", "--no-publications"],
        [bench.source.bin / "pg_restore", "--no-owner", "-d", database],
        database,
    )


def _piped(bench: Bench, read: list[object], write: list[object], database: str) -> float:
    began = time.perf_counter()
    reader = subprocess.Popen(
        [str(part) for part in read], env=bench.source.environment(SOURCE), stdout=subprocess.PIPE
    )
    subprocess.run(
        [str(part) for part in write],
        env=bench.target.environment(database),
        stdin=reader.stdout,
        check=True,
        timeout=bench.patience,
    )
    if reader.wait() != 0:
        raise RuntimeError(f"{read[0]} failed")
    return time.perf_counter() - began


def _native(bench: Bench, database: str) -> float:
    """Until the subscription says that the table is synchronised."""
    _table(bench, database)
    conninfo = bench.source.connection("source", SOURCE).conninfo()
    text = " ".join(f"{key}={word}" for key, word in conninfo.items())
    with bench.source.connect(SOURCE) as source, bench.target.connect(database) as target:
        source.execute("create publication bench_sync for table bench")
        try:
            began = time.perf_counter()
            target.execute(f"create subscription bench_sync connection '{text}' publication bench_sync".encode())
            bench.wait(lambda: value(target, "select bool_and(srsubstate in ('s', 'r')) from pg_subscription_rel"))
            seconds = time.perf_counter() - began
            bench.wait(lambda: value(target, "select bool_and(srsubstate = 'r') from pg_subscription_rel"))
            target.execute("drop subscription bench_sync")
            return seconds
        finally:
            source.execute("drop publication bench_sync")
