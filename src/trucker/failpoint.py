"""Named places at which a test can make a process die, fail, hang or run out of disk; off by default.

    TRUCKER_FAILPOINTS="capture.fsync.before=kill@3; sink.commit.after=hang:/tmp/go"

Each is `name=action@nth:path`, the last two optional. The environment is read once, when this module is loaded, and
handed down to the processes a process starts. Actions:

    kill    SIGKILL to the process itself          error   `InjectedError`
    hang    until `path` is there                  full    `OSError` ENOSPC, as when a disk is full

`nth` is the number of the visit of this process at which the fault begins (1 by default); it then happens at every
visit. The file `path` ends it, for all processes at once. `kill` and `error` create the file themselves, so that with a
path they happen once; for `hang` and `full` the test creates it. A process that hangs creates the file `path.<its id>`.

`POINTS` has them all, before and after each thing that must survive a crash.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast, get_args

VARIABLE: Final = "TRUCKER_FAILPOINTS"
Action = Literal["kill", "error", "hang", "full"]

BOUNDARIES: Final = (
    "setup.publication",  # driver: the publication is made or changed
    "setup.slot",  # driver: the slot is made
    "setup.log",  # driver: the change log's folder is made
    "capture.write",  # capture: a block is appended to a segment
    "capture.fsync",  # capture: what was appended is made durable
    "capture.put",  # capture: an object is stored
    "capture.publish",  # capture: the durable end is published to readers
    "capture.seal",  # capture: a segment gets its final name
    "capture.acknowledge",  # capture: it is acknowledged to the slot
    "worker.stage",  # worker, or driver for a small batch: a part of a batch or of a copy is staged
    "worker.finish",  # worker: a large table gets its key when all of its first copy is there
    "sink.position",  # driver: positions and states are written, inside the destination's transaction
    "sink.commit",  # driver: the destination commits
    "events.send",  # driver: a piece of a truck's events is sent to a receiver
    "letters.put",  # driver: events that a stream refused are stored as dead letters
    "copy.begin",  # driver: the destination stores that a copy begins
    "copy.chunk",  # driver: the chunks of an incremental copy that were read are committed with their cursor
    "copy.end",  # driver: the destination stores that the copy is complete
    "reload.stop",  # driver: the sources of a reload are stopped, before they are started anew
    "reload.start",  # driver: the sources of a reload are started
    "refresh.leave",  # driver: a table whose rows are read again leaves the main lane
    "refresh.record",  # driver: it is recorded how far a refresh has got
    "log.prune",  # driver: a segment that everybody has applied is deleted
)
POINTS: Final = tuple(f"{boundary}.{when}" for boundary in BOUNDARIES for when in ("before", "after"))

_POLL_SECONDS = 0.01


class InjectedError(RuntimeError):
    """What the action `error` raises."""


@dataclass(slots=True)
class ArmedPoint:
    """One armed point, and how often this process has reached it."""

    action: Action
    nth: int = 1
    path: str = ""
    hits: int = 0

    def hit(self, name: str) -> None:
        self.hits += 1
        if self.hits < self.nth or (self.path and Path(self.path).exists()):
            return
        match self.action:
            case "kill":
                if self._first():
                    os.kill(os.getpid(), signal.SIGKILL)
            case "error":
                if self._first():
                    raise InjectedError(name)
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "hang":
                Path(f"{self.path}.{os.getpid()}").touch()
                while not Path(self.path).exists():
                    time.sleep(_POLL_SECONDS)

    def _first(self) -> bool:
        """Whether this process is the first here: the fault happens in one of several processes."""
        if not self.path:
            return True
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            return False
        return True


def parse(text: str) -> dict[str, ArmedPoint]:
    """The faults that a value of the variable arms; ValueError for one that makes no sense."""
    faults = {}
    for entry in filter(None, map(str.strip, text.split(";"))):
        name, _, rest = entry.partition("=")
        rest, _, path = rest.partition(":")
        action, _, nth = rest.partition("@")
        if name not in POINTS or action not in get_args(Action) or (action == "hang" and not path):
            raise ValueError(f"{VARIABLE}: {entry!r} is not name=action@nth:path with a name and an action there is")
        faults[name] = ArmedPoint(cast(Action, action), int(nth or 1), path)
    return faults


def arm(environment: Mapping[str, str]) -> None:
    """Arm what the variable says, and nothing else."""
    _armed.clear()
    _armed.update(parse(environment.get(VARIABLE, "")))


def hits(name: str) -> int:
    """How often this process has reached an armed point."""
    return _armed[name].hits


def reach(name: str) -> None:
    """The process is at the point `name`."""
    fault = _armed.get(name)
    if fault is not None:
        fault.hit(name)


_armed: Final[dict[str, ArmedPoint]] = {}
arm(os.environ)
