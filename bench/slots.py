"""Two slots against one: the same load over four tables, captured alone and streamed into PostgreSQL.

The reference is trucker with one slot. The load is there before either starts. With two slots there are two walsenders
at work on the same WAL, each sending two of the tables; the clock stops when both are at the end. What to read beside
the rates is the CPU of the walsenders: together they cost more than the one, because each reads the whole WAL, and each
costs less than the one, which is what a machine with a core for each gains.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg

from figure import Figure
from harness import TABLE, TRANSACTION_ROWS, Bench, fill, flushed, touch, value
from trucker.capture.supervisor import CaptureSpec, CaptureSupervisor
from trucker.changelog.identity import SourceIdentity
from trucker.changelog.log_creation import create_log
from trucker.lsn import Lsn
from trucker.postgres.source import PostgresSource
from ways import Markers, Truck

TABLES = ("bench_1", "bench_2", "bench_3", "bench_4")
HALVES = (TABLES[:2], TABLES[2:])
ONE, TWO = "one slot", "two slots"
DATABASE = "slots"


def measure(bench: Bench) -> None:
    """Rows per second of both, by capture alone and until the rows are visible."""
    capture = bench.figure("two slots, capture alone", "rows/s", None, ONE, bench.rows)
    streams = {
        kind: bench.figure(f"two slots, stream, {kind}", "rows/s", None, ONE, bench.rows)
        for kind in ("inserts", "updates")
    }
    markers = [f"create table marker{end} (id integer primary key)" for end in ("", "_2")]
    source = bench.database(bench.source, DATABASE, *(TABLE.format(name=name) for name in TABLES), *markers)
    _capture(bench, source, capture)
    _stream(bench, source, streams)


def _load(
    source: psycopg.Connection[Any], rows: int, change: Callable[[psycopg.Connection[Any], str, int, int], None]
) -> None:
    """Transactions of a thousand rows, each in the next table."""
    each = rows // len(TABLES)
    for first in range(1, each + 1, TRANSACTION_ROWS):
        for table in TABLES:
            change(source, table, first, min(TRANSACTION_ROWS, each + 1 - first))


# -- capture alone --------------------------------------------------------------------------------------------------


def _capture(bench: Bench, source: psycopg.Connection[Any], figure: Figure) -> None:
    publications = {"bench_all": TABLES, "bench_left": HALVES[0], "bench_right": HALVES[1]}
    for name, tables in publications.items():
        source.execute(f"create publication {name} for table {', '.join(tables)}".encode())
    names = [f"{name}_{number}" for number in bench.rounds() for name in publications]
    source.execute("select pg_create_logical_replication_slot('bench_origin', 'pgoutput')")
    for slot in names:
        source.execute("select pg_copy_logical_replication_slot('bench_origin', %s)", [slot])
    _load(source, bench.rows, fill)
    end = flushed(source)
    bench.settle()
    for number in bench.rounds():
        bench.alternate(
            number,
            lambda number=number: _captured(
                bench, source, figure, TWO, [f"bench_left_{number}", f"bench_right_{number}"], end
            ),
            lambda number=number: _captured(bench, source, figure, ONE, [f"bench_all_{number}"], end),
        )
        bench.say(f"{figure.name}: {figure.ratios[-1]:.2f} of {ONE}")
    for slot in (*names, "bench_origin"):
        source.execute("select pg_drop_replication_slot(%s)", [slot])


def _captured(
    bench: Bench, source: psycopg.Connection[Any], figure: Figure, side: str, slots: Sequence[str], end: Lsn
) -> None:
    specs = [_spec(bench, source, slot) for slot in slots]
    with bench.profiled() as cpu, ExitStack() as stack:
        began = time.perf_counter()
        supervisors = [CaptureSupervisor(spec) for spec in specs]
        for supervisor in supervisors:
            supervisor.start()
            stack.callback(supervisor.stop)
        seen = [supervisor.wait_seen(end, timeout=bench.patience) for supervisor in supervisors]
        seconds = time.perf_counter() - began
    for spec in specs:
        shutil.rmtree(spec.folder, ignore_errors=True)
    if min(each.seen_lsn for each in seen) < end:
        raise TimeoutError("capture did not get to the end")
    _note(bench, figure, side, bench.rows / seconds, cpu)


def _spec(bench: Bench, source: psycopg.Connection[Any], slot: str) -> CaptureSpec:
    publication = slot.rpartition("_")[0]
    system = str(value(source, "select system_identifier from pg_control_system()"))
    identity = SourceIdentity(system, DATABASE, slot, publication)
    folder = bench.folder / f"log-{slot}"
    confirmed = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{slot}'"
    create_log(folder, identity, Lsn.parse(value(source, confirmed)))
    connection = bench.source.connection("source", DATABASE)
    names = {"slot": slot, "publication": publication}
    return CaptureSpec(PostgresSource(connection.model_copy(update=names), ""), folder, identity, heartbeat=0)


# -- until visible --------------------------------------------------------------------------------------------------


class BothMarkers(Markers):
    """A marker for each slot, in one transaction."""

    def put(self) -> int:
        self.last += 1
        for table in ("marker", "marker_2"):
            self._source.execute(f"insert into {table} values ({self.last})".encode())
        return self.last


class SlotsTruck(Truck):
    """trucker with as many slots as there are lists of tables; there when the markers of both halves are."""

    def __init__(self, bench: Bench, source: psycopg.Connection[Any], name: str, slots: Any) -> None:
        database = name.replace(" ", "_")
        entry = {**bench.postgres(bench.source, "source", DATABASE), "slots": slots}
        connections = [entry, bench.postgres(bench.target, "target", database)]
        super().__init__(bench, source, database, "public.*", connections=connections)
        self.name = name

    def shown(self, number: int) -> float | None:
        first = super().shown(number)
        there = first and value(self.target, f"select count(*) from marker_2 where id = {number}")
        return time.time() if there else None


def _stream(bench: Bench, source: psycopg.Connection[Any], figures: dict[str, Figure]) -> None:
    source.execute(f"truncate {', '.join(TABLES)}".encode())
    spread = [[*HALVES[0], "marker"], [*HALVES[1], "marker_2"]]
    sides = (SlotsTruck(bench, source, TWO, spread), SlotsTruck(bench, source, ONE, 1))
    for side in sides:
        side.ready()
    markers = BothMarkers(source)
    for number in bench.rounds():
        source.execute(f"truncate {', '.join(TABLES)}".encode())
        ready = markers.put()
        for side in sides:
            side.wait(ready)
        for kind, change in (("inserts", fill), ("updates", touch)):
            for side in sides:
                side.hold()
            _load(source, bench.rows, change)
            marker = markers.put()
            bench.settle()
            bench.alternate(
                number,
                *(
                    lambda side=side, kind=kind, marker=marker: _timed(bench, figures[kind], side, marker)
                    for side in sides
                ),
            )
        for server, name in ((bench.source, DATABASE), *((bench.target, side.target.info.dbname) for side in sides)):
            with server.connect(name) as connection:
                connection.execute(f"vacuum {', '.join(TABLES)}".encode())


def _timed(bench: Bench, figure: Figure, side: SlotsTruck, marker: int) -> None:
    with bench.profiled() as cpu:
        seconds = side.catch_up(marker)
    _note(bench, figure, side.name, bench.rows / seconds, cpu)


def _note(bench: Bench, figure: Figure, side: str, rate: float, cpu: dict[str, float]) -> None:
    (figure.trucker if side == TWO else figure.reference).append(rate)
    (figure.trucker_cpu if side == TWO else figure.reference_cpu).append(cpu)
    senders = cpu.get("source walsender", 0.0)
    bench.say(f"{figure.name}, {side}: {rate:,.0f} rows/s, walsenders {senders:.1f} s of CPU")
