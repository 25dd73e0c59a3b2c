"""A truck with input.sql and output.sql against the same join and upsert as one statement of PostgreSQL's.

The changes wait in the slot; the clock runs from letting capture go until all of them are visible. What each statement
took is in trucker's log: the sums are figures of their own. The reference has everything in one database, where
nothing has to travel.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg

from figure import Figure, ratio_at_least
from harness import TABLE, Bench, capture_of, fill, flushed, pause, resume, value
from trucker.testing.process import TruckerProcess

CUSTOMERS = (
    "create table customers (id integer primary key, name text, country text)",
    "insert into customers select i, 'customer ' || i, 'c' || i % 200 from generate_series(0, 99999) i",
    "analyze customers",
)
SALES = "create table sales (id integer primary key, customer text, country text, amount bigint, paid boolean)"
PLAIN = SALES.replace("sales", "plain")
UPSERT = (
    "insert into sales (id, customer, country, amount, paid) {0}"
    " on conflict (id) do update set customer = excluded.customer, country = excluded.country,"
    " amount = excluded.amount, paid = excluded.paid"
)
JOIN = "select r.id, c.name as customer, c.country, r.amount, r.paid from {0} join customers c on c.id = r.customer"
FILES = {
    "input.sql": JOIN.format("{{ rows }}"),
    "output.sql": UPSERT.format("select r.id, r.customer, r.country, r.amount, r.paid from {{ rows }}"),
}
STAGES = {"input.sql": "input.sql, sum over tasks", "output.sql": "output.sql, sum"}


def measure(bench: Bench) -> None:
    """Rows per second through the truck and by the one statement, and where the truck's time went."""
    rate = bench.figure(
        "SQL truck, join and upsert", "rows/s", ratio_at_least(0.3), "the same in one statement", bench.rows
    )
    stages = {name: bench.figure(f"SQL truck: {words}", "s") for name, words in STAGES.items()}
    source = bench.database(bench.source, "sql_truck", TABLE.format(name="bench"), *CUSTOMERS)
    target = bench.database(bench.target, "sql_truck", SALES, PLAIN, TABLE.format(name="here"), *CUSTOMERS)
    project = _project(bench)
    process = bench.streaming(project, "--log-format", "json")
    for number in bench.rounds():
        bench.alternate(
            number,
            lambda number=number: _truck(bench, process, project, number, source, target, rate, stages),
            lambda: _reference(bench, target, rate),
        )


def _project(bench: Bench) -> Path:
    settings: dict[str, Any] = {"slow_query_threshold_ms": 0}
    project = bench.project("bench_sql_truck", "sql_truck", "sql_truck", ["public.bench"], **settings)
    for name, text in FILES.items():
        (project / "trucks" / "bench" / name).write_text(text, encoding="utf-8")
    return project


def _truck(
    bench: Bench,
    process: TruckerProcess,
    project: Path,
    number: int,
    source: psycopg.Connection[Any],
    target: psycopg.Connection[Any],
    rate: Figure,
    stages: dict[str, Figure],
) -> None:
    """All rows through the truck into an empty table."""
    goal = flushed(source)
    bench.wait(lambda: process.check() or process.caught_up(goal), 0.05)
    target.execute(b"truncate sales")
    receivers = capture_of(process)
    pause(receivers)
    fill(source, "bench", 1 + number * bench.rows, bench.rows)
    bench.settle()
    spent = _spent(project)
    last = f"select count(*) from sales where id = {(number + 1) * bench.rows}"
    with bench.profiled() as cpu:
        began = time.perf_counter()
        resume(receivers)
        bench.wait(lambda: process.check() or value(target, last))
        seconds = time.perf_counter() - began
    if value(target, "select count(*) from sales") != bench.rows:
        raise RuntimeError("rows are missing")
    rate.trucker.append(bench.rows / seconds)
    rate.trucker_cpu.append(cpu)
    spent_after = _spent(project)
    for name, figure in stages.items():
        figure.trucker.append(spent_after[name] - spent[name])
    bench.say(f"SQL truck: {rate.trucker[-1]:,.0f} rows/s")


def _spent(project: Path) -> dict[str, float]:
    """Seconds that the statements of each file have taken so far, by the log."""
    spent = dict.fromkeys(STAGES, 0.0)
    for line in (project / "trucker.log").read_text(errors="replace").splitlines():
        if "slow query" in line and line.startswith("{"):
            entry = json.loads(line)
            name = str(entry.get("file", "")).rsplit("/", 1)[-1]
            if name in spent:
                spent[name] += float(entry["milliseconds"]) / 1000
    return spent


def _reference(bench: Bench, target: psycopg.Connection[Any], rate: Figure) -> None:
    """The same rows, joined and upserted by one statement; they are in a table of the same database before."""
    target.execute(b"truncate here, plain")
    fill(target, "here", 1, bench.rows, 100_000)
    target.execute(b"vacuum analyze here")
    bench.settle()
    with bench.profiled() as cpu:
        began = time.perf_counter()
        target.execute(UPSERT.format(JOIN.format("here r")).replace("into sales", "into plain").encode())
        seconds = time.perf_counter() - began
    rate.reference.append(bench.rows / seconds)
    rate.reference_cpu.append(cpu)
    bench.say(f"one statement: {rate.reference[-1]:,.0f} rows/s")
