"""How long a user waits: for help, and for the first row of a run on a warm cache.

The limits are meant for a machine that has time. Where others use it too, they are stretched by as much as a
plain loop on every core takes longer than it uses CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres
from fixtures.waiting import wait_until
from trucker.engine.warm import warm_up

HELP_SECONDS = 0.5
FIRST_ROW_SECONDS = 7.0
TRIES = 3

_SPIN = """
import time
wall, cpu = time.perf_counter(), time.process_time()
while time.process_time() - cpu < 0.3:
    pass
print((time.perf_counter() - wall) / (time.process_time() - cpu))
"""


def slowness() -> float:
    """1.0 on a machine that has every core for us."""
    spins = [
        subprocess.Popen([sys.executable, "-c", _SPIN], stdout=subprocess.PIPE, text=True)
        for _ in range(os.cpu_count() or 1)
    ]
    return max(1.0, *(float(spin.communicate()[0]) for spin in spins))


def within(limit: float, seconds: list[float], slow: list[float]) -> bool:
    return any(taken <= limit * factor for taken, factor in zip(seconds, slow, strict=True))


def test_help_answers_at_once_and_without_java(tmp_path: Path) -> None:
    """No JVM can have been started: there is none."""
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    seconds, slow = [], []
    for _ in range(TRIES):
        slow.append(slowness())
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "trucker", "--help"], env=environment, capture_output=True, text=True, check=False
        )
        seconds.append(time.perf_counter() - began)
        assert (done.returncode, done.stderr) == (0, "")
        assert "run" in done.stdout
        if within(HELP_SECONDS, seconds, slow):
            return
    pytest.fail(f"--help took {seconds} s on a machine slowed by {slow}")


@pytest.mark.spark
def test_the_first_row_is_applied_within_seconds(
    project: ProjectFolder, database: Database, destination: Database
) -> None:
    assert warm_up()
    database.execute("create table t (id int primary key)")
    project.connect(postgres("replica", destination)).truck("t", ["public.t"], {"connection": "replica"})
    _run(project, database, destination, 0)
    seconds, slow = [], []
    for number in range(1, TRIES + 1):
        slow.append(slowness())
        seconds.append(_run(project, database, destination, number))
        if within(FIRST_ROW_SECONDS, seconds, slow):
            return
    pytest.fail(f"the first row took {seconds} s on a machine slowed by {slow}")


def _run(project: ProjectFolder, database: Database, destination: Database, row: int) -> float:
    """Seconds from the start of the process until a row that waits for it is visible."""
    database.execute(f"insert into t values ({row})")
    began = time.perf_counter()
    process = TruckerProcess(project)
    try:
        wait_until(lambda: _visible(destination, row), 120, 0.02)
        taken = time.perf_counter() - began
        assert process.stop(signal.SIGTERM) == 0
        return taken
    finally:
        process.close()


def _visible(destination: Database, row: int) -> bool:
    with destination.connect() as connection:
        found = connection.execute("select to_regclass('public.t')").fetchone()
        if found is None or found[0] is None:
            return False
        return bool(connection.execute("select 1 from t where id = %s", [row]).fetchone())
