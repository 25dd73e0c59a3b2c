"""The demo: it convinces, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fixtures.waiting import busy, wait_until

pytestmark = pytest.mark.spark


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo with its output in a pipe and its files below `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "trucker.testing.demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )


def wait_gone(processes: list[psutil.Process]) -> None:
    """PostgreSQL ends a moment after its last connection; nothing may stay longer."""
    _, alive = psutil.wait_procs(processes, timeout=15 * busy())
    assert [process.cmdline() for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_the_demo_ends_with_equal_destinations(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    demo = start(tmp_path, "--seconds", "6")
    output, _ = demo.communicate(timeout=280 * busy())
    assert demo.returncode == 0, output
    assert "SIGKILL to all" in output
    assert "source and destinations are equal" in output
    assert len(re.findall(r"\bequal\b", output)) == 7
    assert list(tmp_path.glob("trucker-demo-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    tmp_path.chmod(0o755)
    demo = start(tmp_path)
    assert demo.stdout is not None
    while "trucker run" not in (line := demo.stdout.readline()):
        assert line, "the demo ended by itself"

    def started() -> list[psutil.Process]:
        tree = psutil.Process(demo.pid).children(recursive=True)
        return tree if len(tree) >= 12 else []

    tree = wait_until(started, 60, 0.05)
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=60 * busy())
    assert demo.returncode == 130, output
    wait_gone(tree)
    assert list(tmp_path.iterdir()) == []
