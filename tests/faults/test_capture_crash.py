"""Capture, server and driver killed under load: every transaction is in the log exactly once afterwards (I2, I4)."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from fixtures.capture import Source, all_captured, capturing, inserted, kill, prepare
from fixtures.load import Load
from fixtures.pg import Database, new_database
from fixtures.waiting import wait_until
from trucker.capture.supervisor import CaptureState
from trucker.changelog.format.durable import read_durable
from trucker.failpoint import VARIABLE
from trucker.testing.server import Server


@pytest.fixture
def source(database: Database, tmp_path: Path) -> Source:
    database.execute("create table t (id int primary key, note text)")
    return prepare(database, tmp_path / "log", segment_bytes=1 << 20)


def test_killed_at_any_moment_under_load(source: Source) -> None:
    moments = random.Random()
    with capturing(source.spec) as capture, Load(source.database) as load:
        for _ in range(4):
            before = read_durable(source.spec.folder).commit_lsn
            wait_until(lambda before=before: read_durable(source.spec.folder).commit_lsn > before)
            threading.Event().wait(moments.uniform(0, 0.15))
            kill(capture)
            assert source.confirmed() <= read_durable(source.spec.folder).seen_lsn
    with capturing(source.spec) as capture:
        all_captured(capture, source)
    assert [inserted(found) for found in source.captured().values()] == load.committed


def test_killed_inside_a_large_transaction(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed while it hangs before the fourth block, of five at the least."""
    rows, go = 60_000, tmp_path / "go"
    monkeypatch.setenv(VARIABLE, f"capture.write.before=hang@4:{go}")
    with capturing(source.spec) as capture:
        source.database.execute(f"insert into t select g, repeat('x', 300) from generate_series(1, {rows}) g")
        wait_until(lambda: list(tmp_path.glob("go.*")))
        assert list(source.spec.folder.glob("*.open"))
        kill(capture)
        go.touch()
        assert read_durable(source.spec.folder).commit_lsn == source.start
        all_captured(capture, source)
        assert capture.restarts >= 1
    (found,) = source.captured().values()
    assert len(inserted(found)) == rows


@pytest.fixture
def fragile(own_server: Server) -> Iterator[Database]:
    for database in new_database(own_server, "source"):
        database.execute("create table t (id int primary key, note text)")
        yield database


@pytest.mark.parametrize("way", ["fast", "kill"])
def test_the_server_goes_and_comes_back(fragile: Database, tmp_path: Path, way: str) -> None:
    source = prepare(fragile, tmp_path / "log")
    with capturing(source.spec) as capture:
        fragile.execute("insert into t values (1)")
        all_captured(capture, source)
        fragile.server.stop("fast") if way == "fast" else fragile.server.kill()
        wait_until(lambda: capture.state is CaptureState.RECONNECTING)
        assert capture.trouble
        fragile.server.start()
        fragile.execute("insert into t values (2)")
        all_captured(capture, source)
        assert capture.restarts == 0
    assert [inserted(found) for found in source.captured().values()] == [["1"], ["2"]]


def test_a_fast_shutdown_does_not_wait_for_us(fragile: Database, tmp_path: Path) -> None:
    """The server waits for its walsenders to confirm everything; with an answer at once that takes no time."""
    source = prepare(fragile, tmp_path / "log")
    with capturing(source.spec):
        fragile.execute("insert into t values (1)")
        fragile.server.stop("fast", timeout=15)
        assert "waiting" not in fragile.server.log.read_text()
        fragile.server.start()
    with contextlib.suppress(psycopg.Error):
        fragile.execute("select 1")


DRIVER = """
import sys, time
from pathlib import Path
from fixtures.capture import streamed_source
from trucker.changelog.identity import read_source
from trucker.adapters.postgres import PostgresConnection
from trucker.capture.supervisor import CaptureSpec, CaptureState, CaptureSupervisor

connection = PostgresConnection.model_validate_json(sys.stdin.readline())
folder = Path(sys.argv[1])
source = read_source(folder)
streamed = streamed_source(connection, source.slot, source.publication)
capture = CaptureSupervisor(CaptureSpec(streamed, folder, source, heartbeat=0))
capture.start()
assert capture.wait_state(CaptureState.CONNECTED, timeout=30)
print(capture.pid, flush=True)
time.sleep(600)
"""


def test_capture_does_not_outlive_its_driver(source: Source) -> None:
    secret = source.database.connection.password.get_secret_value()
    connection = source.database.connection.model_dump_json(by_alias=True).replace("**********", secret)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(source.spec.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(connection + "\n")
        driver.stdin.flush()
        child = psutil.Process(int(driver.stdout.readline()))
        shown = [*child.cmdline(), *child.environ().values()]
        assert not any(secret in text for text in shown if len(secret) > 3)
        driver.kill()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, timeout=10)
    source.database.execute("insert into t values (1)")
    with capturing(source.spec) as capture:
        all_captured(capture, source)
    assert len(source.captured()) == 1
