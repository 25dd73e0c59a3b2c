"""`trucker run` as a user starts it: a process of its own, its output in a file, its state in its status file."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import ProjectStatus, TruckPhase, read_status

_GONE_SECONDS: Final = 10.0
"""A process that is killed ends when its call of the system has returned."""


class TruckerProcess:
    """Runs the project in `project` until it is stopped or killed. Its output goes to `trucker.log` there."""

    def __init__(self, project: Path, *arguments: str) -> None:
        self._project = project
        self._log = project / "trucker.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trucker", "run", str(project), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def status(self) -> ProjectStatus | None:
        """The status of this process; None where the file is of an earlier one."""
        latest = read_status(self._project / ".trucker" / "status.json")
        return latest if latest is not None and latest.pid == self.process.pid else None

    def check(self) -> None:
        """Raise if it has ended, or if a truck has failed."""
        if self.process.poll() is not None:
            raise TruckerError(f"trucker ended by itself with {self.process.returncode}: {self.last_words()}")
        status = self.status()
        for truck in status.trucks if status else ():
            if truck.phase is TruckPhase.FAILED:
                raise TruckerError(f"truck {truck.name} failed: {truck.error}")

    def caught_up(self, goal: Lsn) -> bool:
        """Whether all up to `goal` is in the log, and all that is in the log is applied by every truck."""
        status = self.status()
        return status is not None and all(
            truck.phase is TruckPhase.STREAMING
            and truck.lag_bytes == 0
            and truck.source_position is not None
            and Lsn.parse(truck.source_position) >= goal
            for truck in status.trucks
        )

    def stop(self, timeout: float = 60.0) -> int:
        """Stop it with SIGTERM. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit code once it has ended; an error when it does not in time."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TruckerError(f"trucker did not end within {timeout:.0f} s: {self.last_words()}") from None

    def tree(self) -> list[psutil.Process]:
        """The process and all below it."""
        return process_tree(self.process.pid)

    def kill_tree(self) -> int:
        """SIGKILL to all of them at once; how many they were."""
        return kill_tree(self.process)

    def last_words(self) -> str:
        """The last lines of its output."""
        return " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:])


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and all below it; nothing when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_tree(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL to the process and all below it, as in a power failure; all are gone then. Returns how many they were."""
    if process.poll() is not None:
        return 0
    tree: list[psutil.Process] = []
    # Each is stopped before it is killed, so that none starts another one meanwhile, which nobody would kill.
    while members := [member for member in process_tree(process.pid) if member not in tree]:
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        tree += members
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(tree[1:], timeout=_GONE_SECONDS)
    return len(tree)
