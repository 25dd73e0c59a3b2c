"""A truck with input.sql and output.sql against the same join and upsert as one statement of PostgreSQL's.

The changes are there before trucker is started; the clock runs from the first batch that is seen at the destination,
with capture at work beside it. What each statement took is in trucker's log: the sums are figures of their own. The
reference has everything in one database, where nothing has to travel.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg

from harness import TABLE, Bench, Figure, fill, value, wait

CUSTOMERS = (
    "create table customers (id integer primary key, name text, country text)",
    "insert into customers select i, 'customer ' || i, 'c' || i % 200 from generate_series(0, 99999) i",
    "analyze customers",
)
SALES = "create table sales (id integer primary key, customer text, country text, amount bigint, paid boolean)"
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


def measure(bench: Bench) -> list[Figure]:
    """Rows per second through the truck and by the one statement, and where the truck's time went."""
    source = bench.database(bench.source, "sql_truck", TABLE.format(name="bench"), *CUSTOMERS)
    target = bench.database(bench.target, "sql_truck", SALES, TABLE.format(name="here"), *CUSTOMERS)
    project = _project(bench)
    _run_once(bench, project)
    rates: list[float] = []
    references: list[float] = []
    stages: dict[str, list[float]] = {name: [] for name in STAGES}
    for number in range(bench.repeat):

        def truck(number: int = number) -> None:
            seconds, spent = _truck(bench, project, source, target, number)
            rates.append(bench.rows / seconds)
            for name, taken in spent.items():
                stages[name].append(taken)

        def reference(number: int = number) -> None:
            references.append(bench.rows / _reference(target, 1 + number * bench.rows, bench.rows))

        bench.alternate(number, truck, reference)
        bench.say(f"SQL truck: {rates[-1]:,.0f} rows/s, one statement {references[-1]:,.0f}")
    return [
        Figure("SQL truck, join and upsert", "rows/s", rates, references, "the same in one statement"),
        *(Figure(f"of it {STAGES[name]}", "s", taken) for name, taken in stages.items()),
    ]


def _project(bench: Bench) -> Path:
    settings: dict[str, Any] = {"slow_query_threshold_ms": 0, "batch": {"max_bytes": "8 MiB"}}
    project = bench.project("bench_sql_truck", "sql_truck", "sql_truck", ["public.bench"], **settings)
    for name, text in FILES.items():
        (project / "trucks" / "bench" / name).write_text(text, encoding="utf-8")
    return project


def _run_once(bench: Bench, project: Path) -> None:
    process = bench.run(project, "--once")
    if process.wait(600) != 0:
        raise RuntimeError(process.last_words())


def _truck(
    bench: Bench, project: Path, source: psycopg.Connection[Any], target: psycopg.Connection[Any], number: int
) -> tuple[float, dict[str, float]]:
    """Seconds for all rows, by those from the first batch that is seen to the last; what the statements took of it."""
    fill(source, "bench", 1 + number * bench.rows, bench.rows)
    before, spent = value(target, "select count(*) from sales"), _spent(project)
    process = bench.run(project, "--log-format", "json")
    count = "select count(*) from sales"
    wait(lambda: process.check() or value(target, count) > before, 300, 0.01)
    began, first = time.perf_counter(), value(target, count) - before
    last = f"select count(*) from sales where id = {(number + 1) * bench.rows}"
    wait(lambda: process.check() or value(target, last), 3600, 0.02)
    seconds = time.perf_counter() - began
    if value(target, count) != (number + 1) * bench.rows or first == bench.rows:
        raise RuntimeError("rows are missing, or there are too few of them to measure")
    process.stop()
    after = _spent(project)
    return seconds * bench.rows / (bench.rows - first), {name: after[name] - spent[name] for name in STAGES}


def _spent(project: Path) -> dict[str, float]:
    """Seconds that the statements of each file have taken so far, by the log."""
    spent = dict.fromkeys(STAGES, 0.0)
    for line in (project / "trucker.log").read_text(errors="replace").splitlines():
        if "slow query" in line and line.startswith("{"):
            said = json.loads(line)
            name = str(said.get("file", "")).rsplit("/", 1)[-1]
            if name in spent:
                spent[name] += float(said["milliseconds"]) / 1000
    return spent


def _reference(target: psycopg.Connection[Any], first: int, rows: int) -> float:
    """The same rows, joined and upserted by one statement; they are in a table of the same database before."""
    target.execute(b"truncate here")
    fill(target, "here", first, rows)
    target.execute(b"create table if not exists plain (like sales including all)")
    target.execute(b"vacuum analyze here")
    began = time.perf_counter()
    target.execute(UPSERT.format(JOIN.format("here r")).replace("into sales", "into plain").encode())
    return time.perf_counter() - began
