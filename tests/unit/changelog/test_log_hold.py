"""While a process reads history from a change log, nothing is deleted from it (`log_hold`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fixtures.waiting import wait_until
from trucker.changelog.log_hold import log_free, log_held

HOLD = """
import sys, time
from pathlib import Path
from trucker.changelog.log_hold import log_held
with log_held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def _free(state: Path) -> bool:
    with log_free(state) as free:
        return free


def test_several_hold_it_and_the_last_one_frees_it(tmp_path: Path) -> None:
    assert _free(tmp_path / "state")
    with log_held(tmp_path / "state"):
        assert not _free(tmp_path / "state")
        with log_held(tmp_path / "state"):
            assert not _free(tmp_path / "state")
        assert not _free(tmp_path / "state")
    assert _free(tmp_path / "state")


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        assert not _free(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    wait_until(lambda: _free(tmp_path))
