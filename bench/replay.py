"""A replay of changes into a copy of their destination against the run that captured and applied them first.

Both are commands of their own, and their processes' start is in their time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from figure import ratio_at_most
from harness import TABLE, Bench, fill, value
from trucker.testing.project_folder import write_project

_NAME = "replay"
_COPY = "replay_copy"


def measure(bench: Bench) -> None:
    """Seconds of a replay, and of `run --once` for the same changes, in the same round."""
    figure = bench.figure(
        "replay of inserts into a copy of their destination", "s", ratio_at_most(1.0), "`run --once`", bench.rows
    )
    source = bench.database(bench.source, _NAME, TABLE.format(name="bench"))
    bench.database(bench.target, _NAME).close()
    folder = _project(bench)
    bench.run_once(folder)
    for number in bench.rounds():
        bench.target.create_database(_COPY, model=_NAME)
        fill(source, "bench", 1 + number * bench.rows, bench.rows, 100_000)
        figure.reference.append(_seconds(bench, partial(bench.run_once, folder)))
        figure.trucker.append(_seconds(bench, partial(_replay, bench, folder)))
        bench.say(f"replay: {figure.trucker[-1]:.2f} s, run: {figure.reference[-1]:.2f} s")
        with bench.target.connect(_COPY) as copy:
            if value(copy, "select count(*) from bench") != (number + 1) * bench.rows:
                raise RuntimeError("the copy does not have all rows")
        bench.drop_database(bench.target, _COPY)


def _project(bench: Bench) -> Path:
    connections = [
        bench.postgres(bench.source, "source", _NAME),
        bench.postgres(bench.target, "target", _NAME),
        bench.postgres(bench.target, "copy", _COPY),
    ]
    truck = {"input": {"connection": "source", "tables": ["public.bench"]}, "output": {"connection": "target"}}
    folder = bench.folder / f"project-{_NAME}"
    settings = {"unique_id": f"bench_{_NAME}", "connections": connections, "log": {"keep": 86400}}
    write_project(folder, settings, {"bench": truck})
    return folder


def _seconds(bench: Bench, work: Callable[[], object]) -> float:
    bench.settle()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _replay(bench: Bench, folder: Path) -> None:
    command = [sys.executable, "-m", "trucker", "replay", "bench", "--into", "copy", "--project", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=bench.patience)
