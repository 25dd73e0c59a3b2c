"""How much memory the processes of a run take at their worst, by the kernel's own account (Linux).

    with Footprint(process.pid) as footprint:
        ...
    footprint.peaks       {"capture": 61_000_000, "driver": …, "jvm": …, "worker": …}

The kernel records the largest resident set a process ever had (`VmHWM`), so no peak between two readings is missed. It
is read repeatedly because the number of a process that has ended is lost. Pages of files and libraries count.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final, Self

import psutil

from trucker.testing.process import process_tree

LOOK_SECONDS: Final = 0.5

# By a word of the command line; the first match counts.
_ROLES: Final = (
    ("jvm", "/java "),
    ("capture", "trucker.capture.process"),
    ("worker", "trucker.engine.spark.worker_daemon"),
    ("spark", "pyspark.daemon"),
)


class Footprint:
    """The run that the process `pid` is the driver of, from entering the block on.

    `peaks` has bytes by role; of several processes in a role the largest counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="footprint", daemon=True)
        self.peaks: dict[str, int] = {}

    def __enter__(self) -> Self:
        for member in process_tree(self._pid):
            with contextlib.suppress(OSError):
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")  # peaks begin anew from what is resident now
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        for member in process_tree(self._pid):
            with contextlib.suppress(OSError, psutil.Error):
                role = self._role(member)
                self.peaks[role] = max(self.peaks.get(role, 0), _peak(member.pid))

    def _role(self, member: psutil.Process) -> str:
        if member.pid == self._pid:
            return "driver"
        command = " ".join(member.cmdline())
        return next((role for role, word in _ROLES if word in command), "other")


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
