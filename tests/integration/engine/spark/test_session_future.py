"""A session that is begun early: taken, or given up without a trace (I11)."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fixtures.waiting import wait_until
from trucker.engine.spark import session_future

_PROGRAM = """
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil

from trucker.engine.spark.session import stop_session
from trucker.engine.spark.session_future import SessionFuture

spark = SimpleNamespace(master="local[1]", settings={})
log = SimpleNamespace(location=None)
config = SimpleNamespace(
    unique_id="x", trucks=[], connections=[], log=log, spark=spark, state_folder=Path(sys.argv[1]), is_built=False
)


def programs():
    return [child.name() for child in psutil.Process().children(recursive=True)]


first = SessionFuture(config)
while not any("java" in name for name in programs()):
    time.sleep(0.01)
first.give_up()
first.give_up()
assert programs() == [], programs()

second = SessionFuture(config)
session = second.result()
assert session.sparkContext.parallelize([1, 2], 1).map(lambda each: each + 1).collect() == [2, 3]
second.give_up()  # it was taken: nothing happens
assert session.sparkContext.parallelize([1], 1).collect() == [1]
stop_session(session, wait=30)

third = SessionFuture(config)
while not third._future.done():
    time.sleep(0.01)
third.give_up()
assert programs() == [], programs()
print("fine")
"""


@pytest.mark.spark
def test_a_session_given_up_leaves_no_process_and_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip().endswith("fine"), done.stdout + done.stderr


def test_what_the_starting_program_has_started_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM that records an archive is begun by a shell, which would leave it behind."""
    begun: list[int] = []

    def start(config: Any) -> Any:
        shell = subprocess.Popen(["sh", "-c", "sleep 600; true"])
        begun.append(shell.pid)
        assert shell.wait() != 0
        raise ConnectionError

    monkeypatch.setattr(session_future, "started", start)
    monkeypatch.setattr(session_future, "_forget_gateway", lambda: None)
    starting = session_future.SessionFuture(SimpleNamespace())  # type: ignore[arg-type]
    (sleep,) = wait_until(lambda: begun and psutil.Process(begun[0]).children())
    starting.give_up()
    wait_until(lambda: not sleep.is_running() or sleep.status() == psutil.STATUS_ZOMBIE)


def test_py4j_does_not_log_the_jvm_that_is_killed_on_purpose(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error would be shown beside the reason for which the start is refused."""
    logger = logging.getLogger("py4j.clientserver")

    def start(config: Any) -> Any:
        assert subprocess.run(["sleep", "600"], check=False).returncode != 0
        logger.error("There was an exception while executing the Python Proxy on the Python Side.")
        raise ConnectionError

    monkeypatch.setattr(session_future, "started", start)
    monkeypatch.setattr(session_future, "_forget_gateway", lambda: None)
    session_future.SessionFuture(SimpleNamespace()).give_up()  # type: ignore[arg-type]
    assert caplog.records == []
    logger.error("outside")
    assert [record.message for record in caplog.records] == ["outside"]
