"""Capture against `pg_recvlogical`: the same WAL, through pgoutput, drained by each in turn.

`pg_recvlogical` throws away what it gets; capture makes it durable in the change log. Both times include the start of
the process.
"""

from __future__ import annotations

import subprocess
import time

from harness import TABLE, Bench, Figure, fill, flushed, value
from trucker.changelog.source import SourceIdentity, create_log
from trucker.engine.supervisor import CaptureSpec, CaptureSupervisor
from trucker.lsn import Lsn

SLOT, REFERENCE, PUBLICATION = "bench_trucker", "bench_reference", "bench_capture"


def measure(bench: Bench) -> list[Figure]:
    connection = bench.database(
        bench.source, "capture", TABLE.format(name="bench"), f"create publication {PUBLICATION} for table bench"
    )
    for slot in (SLOT, REFERENCE):
        connection.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')".encode())
    identity = SourceIdentity(
        str(value(connection, "select system_identifier from pg_control_system()")), "capture", SLOT, PUBLICATION
    )
    folder = bench.folder / "log"
    confirmed = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{SLOT}'"
    create_log(folder, identity, Lsn.parse(value(connection, confirmed)))
    spec = CaptureSpec(bench.source.connection("source", "capture"), SLOT, PUBLICATION, folder, identity, heartbeat=0)
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(bench.repeat):
        fill(connection, "bench", 1 + number * bench.rows, bench.rows)
        end = flushed(connection)
        bench.alternate(
            number,
            lambda end=end: ours.append(bench.rows / _capture(spec, end)),
            lambda end=end: theirs.append(bench.rows / _receive(bench, end)),
        )
        bench.say(f"capture: {ours[-1]:,.0f} rows/s, pg_recvlogical {theirs[-1]:,.0f}")
    for slot in (SLOT, REFERENCE):
        connection.execute(f"select pg_drop_replication_slot('{slot}')".encode())
    return [Figure("capture", "rows/s", ours, theirs, "pg_recvlogical")]


def _capture(spec: CaptureSpec, end: Lsn) -> float:
    began = time.perf_counter()
    supervisor = CaptureSupervisor(spec)
    supervisor.start()
    try:
        supervisor.wait_seen(end, timeout=600)
        return time.perf_counter() - began
    finally:
        supervisor.stop()


def _receive(bench: Bench, end: Lsn) -> float:
    began = time.perf_counter()
    subprocess.run(
        [
            *(bench.source.bin / "pg_recvlogical", "--start", "--no-loop", f"--slot={REFERENCE}", "--file=-"),
            *("-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", f"--endpos={end}"),
            *("--dbname", "capture"),
        ],
        env=bench.source.environment("capture"),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began
