"""Rows per second that `trucker verify` compares, of a table that streams, from the command to its answer.

Into PostgreSQL against a count and a sum of hashes that both servers compute at once; into DuckDB, and of rows that go
through a truck's SQL, without a reference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from figure import at_least
from harness import TABLE, Bench, fill, value
from trucker.project import Project

_NAME = "verify"
_SUMS = "select count(*), sum(hashtextextended(bench::text, 0)) from bench"
_SQL = "select id, customer, upper(name) as name, note from {{ rows }}"


def measure(bench: Bench) -> None:
    """The three ways of a comparison; rows of the source count, and those of the destination do not count again."""
    servers = bench.figure(
        "verify, into PostgreSQL", "rows/s", at_least(400_000), "count and sum of hashes on both sides", bench.rows
    )
    duck = bench.figure("verify, into DuckDB", "rows/s", rows=bench.rows)
    steps = bench.figure("verify, of rows through Spark SQL", "rows/s", rows=bench.rows)
    source = bench.database(bench.source, _NAME, TABLE.format(name="bench"))
    fill(source, "bench", 1, bench.rows, 100_000)
    source.execute(b"vacuum analyze bench")
    target = bench.database(bench.target, _NAME)
    store = {"name": "target", "adapter": "duckdb", "path": "out.duckdb"}
    for figure, name, into in ((servers, _NAME, _NAME), (duck, "verify-duck", store), (steps, "verify-sql", store)):
        folder = _project(bench, name, into, through_sql=figure is steps)
        process = bench.streaming(folder)
        if figure is servers:
            bench.wait(lambda: value(target, "select count(*) from bench") == bench.rows)
            target.execute(b"vacuum analyze bench")
        bench.settle()
        for number in bench.rounds():
            turns = [lambda folder=folder, figure=figure: figure.trucker.append(_verified(bench, folder))]
            if figure is servers:
                turns.append(lambda: servers.reference.append(_summed(bench, source, target)))
            bench.alternate(number, *turns)
            bench.say(f"{figure.name}: {figure.trucker[-1]:,.0f} rows/s")
        process.stop()


def _project(bench: Bench, name: str, into: str | Mapping[str, Any], *, through_sql: bool) -> Path:
    folder = bench.project(name, _NAME, into, ["public.bench"])
    if through_sql:
        (folder / "trucks" / "bench" / "transform.sql").write_text(_SQL, encoding="utf-8")
    return folder


def _verified(bench: Bench, folder: Path) -> float:
    project = Project.load(folder)
    began = time.monotonic()
    (verification,) = project.verify("bench")
    seconds = time.monotonic() - began
    if not verification.equal or verification.source_rows != bench.rows:
        raise RuntimeError(f"not equal: {verification}")
    return bench.rows / seconds


def _summed(bench: Bench, *sides: psycopg.Connection[Any]) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(len(sides)) as pool:
        sums = list(pool.map(lambda side: side.execute(_SUMS.encode()).fetchone(), sides))
    if sums[0] != sums[1]:
        raise RuntimeError("not equal")
    return bench.rows / (time.monotonic() - began)
