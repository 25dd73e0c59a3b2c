"""Capture against `pg_recvlogical`: the same WAL, through pgoutput, drained by each in turn from slots of their own.

`pg_recvlogical` throws away what it gets; capture makes it durable in the change log. The load is there before either
starts, in one transaction or in many, and both times include the start of the process.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

import psycopg

from figure import Figure, ratio_at_least
from harness import TABLE, Bench, fill, flushed, value
from trucker.capture.supervisor import CaptureSpec, CaptureSupervisor
from trucker.changelog.identity import SourceIdentity
from trucker.changelog.location import LogLocation
from trucker.changelog.log_creation import create_log, delete_log
from trucker.lsn import Lsn
from trucker.postgres.source import PostgresSource

PUBLICATION = "bench_capture"


def measure(bench: Bench) -> None:
    """Rows per second into the change log, of one transaction and of many."""
    forms = {"one transaction": bench.rows, "transactions of 1,000 rows": 1_000}
    figures = {
        form: bench.figure(f"capture, {form}", "rows/s", ratio_at_least(0.95), "pg_recvlogical to nowhere", bench.rows)
        for form in forms
    }
    source = bench.database(
        bench.source, "capture", TABLE.format(name="bench"), f"create publication {PUBLICATION} for table bench"
    )
    for form, transaction in forms.items():
        _slots(bench, source)
        source.execute(b"truncate bench")
        fill(source, "bench", 1, bench.rows, transaction)
        end = flushed(source)
        bench.settle()
        for number in bench.rounds():
            bench.alternate(
                number,
                lambda number=number, end=end, figure=figures[form]: _trucker(bench, source, figure, number, end),
                lambda number=number, end=end, figure=figures[form]: _reference(bench, figure, number, end),
            )
            bench.say(f"{figures[form].name}: {figures[form].ratios[-1]:.2f} of pg_recvlogical")
        for (slot,) in source.execute("select slot_name from pg_replication_slots").fetchall():
            source.execute("select pg_drop_replication_slot(%s)", [slot])


def _slots(bench: Bench, source: psycopg.Connection[Any]) -> None:
    """A slot for every round of either side, all at the same point: the load is made once."""
    source.execute("select pg_create_logical_replication_slot('bench_origin', 'pgoutput')")
    for number in bench.rounds():
        for side in ("trucker", "reference"):
            name = f"bench_{side}_{number}"
            source.execute("select pg_copy_logical_replication_slot('bench_origin', %s)", [name])


def _trucker(bench: Bench, source: psycopg.Connection[Any], figure: Figure, number: int, end: Lsn) -> None:
    drain(bench, source, figure, f"bench_trucker_{number}", bench.folder / "log", end)


def drain(
    bench: Bench, source: psycopg.Connection[Any], figure: Figure, slot: str, place: LogLocation, end: Lsn
) -> float:
    """Capture into a log at `place`, which is deleted again, until `end`; rows per second."""
    system = str(value(source, "select system_identifier from pg_control_system()"))
    identity = SourceIdentity(system, source.info.dbname, slot, PUBLICATION)
    confirmed = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{slot}'"
    create_log(place, identity, Lsn.parse(value(source, confirmed)))
    connection = bench.source.connection("source", source.info.dbname)
    names = {"slot": slot, "publication": PUBLICATION}
    spec = CaptureSpec(PostgresSource(connection.model_copy(update=names), ""), place, identity, heartbeat=0)
    with bench.profiled() as cpu:
        began = time.perf_counter()
        supervisor = CaptureSupervisor(spec)
        supervisor.start()
        try:
            durable = supervisor.wait_seen(end, timeout=bench.patience)
            seconds = time.perf_counter() - began
        finally:
            supervisor.stop()
            delete_log(place)
    if durable.seen_lsn < end:
        raise TimeoutError("capture did not get to the end")
    figure.trucker.append(bench.rows / seconds)
    figure.trucker_cpu.append(cpu)
    return bench.rows / seconds


def _reference(bench: Bench, figure: Figure, number: int, end: Lsn) -> None:
    with bench.profiled() as cpu:
        began = time.perf_counter()
        subprocess.run(
            [
                *(bench.source.bin / "pg_recvlogical", "--start", "--no-loop", f"--slot=bench_reference_{number}"),
                *("-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", f"--endpos={end}"),
                *("--file=-", "--dbname", "capture"),
            ],
            env=bench.source.environment("capture"),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=bench.patience,
        )
        seconds = time.perf_counter() - began
    figure.reference.append(bench.rows / seconds)
    figure.reference_cpu.append(cpu)
