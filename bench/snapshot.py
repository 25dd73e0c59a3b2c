"""The first copy of a table against `COPY … TO STDOUT | COPY … FROM STDIN` in binary, both into a table with its key.

trucker's time is that of the copy, from the moment the table is being copied until it streams; what `run --once` takes
as a whole, Spark's start included, is a figure of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time

from harness import TABLE, Bench, Figure, fill, value, wait
from trucker.observe.status import TruckPhase
from trucker.testing.process import TruckerProcess


def measure(bench: Bench) -> list[Figure]:
    source = bench.database(bench.source, "snapshot", TABLE.format(name="bench"))
    fill(source, "bench", 1, bench.rows)
    source.execute(b"vacuum analyze bench")
    copies: list[float] = []
    wholes: list[float] = []
    pipes: list[float] = []
    for number in range(bench.repeat):

        def copy(number: int = number) -> None:
            alone, whole = _trucker(bench, number)
            copies.append(bench.rows / alone)
            wholes.append(whole)

        bench.alternate(number, copy, lambda n=number: pipes.append(bench.rows / _pipe(bench, n)))
        bench.say(f"snapshot: {copies[-1]:,.0f} rows/s, COPY | COPY {pipes[-1]:,.0f}")
    return [
        Figure("snapshot", "rows/s", copies, pipes, "COPY | COPY binary"),
        Figure("snapshot, whole of run --once", "s", wholes),
    ]


def _trucker(bench: Bench, number: int) -> tuple[float, float]:
    name = f"snapshot_trucker_{number}"
    target = bench.database(bench.target, name)
    project = bench.project(f"bench_snapshot_{number}", "snapshot", name, ["public.bench"])
    began = time.perf_counter()
    process = bench.run(project, "--once")
    copying: list[float] = []
    wait(lambda: _note(process, copying) or process.process.poll() is not None, 600, 0.02)
    done = time.perf_counter()
    if process.wait() != 0:
        raise RuntimeError(process.last_words())
    whole = time.perf_counter() - began
    if value(target, "select count(*) from bench") != bench.rows:
        raise RuntimeError("the copy is not whole")
    subprocess.run([*_TRUCKER, "reset", "--yes", project], check=True, stdout=subprocess.DEVNULL)
    return done - (copying[0] if copying else began), whole


_TRUCKER = (sys.executable, "-m", "trucker")


def _note(process: TruckerProcess, copying: list[float]) -> bool:
    """Note when the copy is first seen; whether it is over."""
    status = process.status()
    phase = status.trucks[0].phase if status else None
    if phase is TruckPhase.COPYING and not copying:
        copying.append(time.perf_counter())
    return bool(copying) and phase not in (TruckPhase.COPYING, None)


def _pipe(bench: Bench, number: int) -> float:
    name = f"snapshot_pipe_{number}"
    bench.database(bench.target, name, TABLE.format(name="bench"))
    psql = bench.source.bin / "psql"
    began = time.perf_counter()
    reader = subprocess.Popen(
        [psql, "-qc", "copy bench to stdout (format binary)"],
        env=bench.source.environment("snapshot"),
        stdout=subprocess.PIPE,
    )
    subprocess.run(
        [psql, "-qc", "copy bench from stdin (format binary)"],
        env=bench.target.environment(name),
        stdin=reader.stdout,
        check=True,
    )
    if reader.wait() != 0:
        raise RuntimeError("COPY failed")
    return time.perf_counter() - began
