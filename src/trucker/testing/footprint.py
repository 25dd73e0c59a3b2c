"""How much memory the processes of a run have taken at their worst, by the kernel's own account (Linux).

    footprint = Footprint(process.pid)
    footprint.forget()
    ...
    footprint.peaks()       {"capture": 61_000_000, "driver": …, "jvm": …, "worker": …, "source": …}

The kernel notes the largest resident set a process ever had (`VmHWM`), so nothing is missed between two looks; but a
process that has ended takes its number along. Pages of files and libraries count.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import psutil

from trucker.testing.process import process_tree

# By a word of its command line, the first that fits.
_ROLES: Final = (
    ("jvm", "/java "),
    ("capture", "trucker.engine.capture"),
    ("source", "python_streaming_source_runner"),
    ("worker", "trucker.engine.daemon"),
    ("spark", "pyspark.daemon"),
)


class Footprint:
    """The run that the process `pid` is the driver of. Of several processes in a role the largest counts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def forget(self) -> None:
        """Let the peaks begin anew from what is resident now."""
        for member in process_tree(self._pid):
            with contextlib.suppress(OSError):
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")

    def peaks(self) -> dict[str, int]:
        """The peak of each role in bytes."""
        found: dict[str, int] = {}
        for member in process_tree(self._pid):
            with contextlib.suppress(OSError, psutil.Error):
                role = self._role(member)
                found[role] = max(found.get(role, 0), _peak(member.pid))
        return found

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
