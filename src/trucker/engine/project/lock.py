"""A lock on the state folder, so that a project runs once; the lock file says who holds it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trucker import private
from trucker.errors import LockedError, TruckerError
from trucker.file_errors import file_error, file_trouble, folder_trouble
from trucker.process.stopping import Stopped

log = logging.getLogger("trucker.run")

WAITABLE = "stop that instance, or use --wait to start when it ends"

TRIES = 10
TRY_SECONDS = 0.02
WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Instance:
    """A running instance of a project. `pid` is 0 for the moment in which it has the lock and has not signed yet."""

    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is starting"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


class ProjectLock:
    """An flock on `<state>/lock`. The kernel frees it when the holder dies, however it dies."""

    def __init__(self, state: Path) -> None:
        self._path = state / "lock"
        self._file: IO[str] | None = None

    def acquire(self, *, wait: bool, stop: threading.Event | None = None, remedy: str = WAITABLE) -> None:
        """Take the lock; LockedError names the holder and has the `remedy`, or with `wait` its end is awaited.

        Raises `Stopped` if `stop` is set meanwhile.
        """
        refuse_unwritable(self._path.parent)
        private.make_folder(self._path.parent)
        file = open(self._path, "a+", encoding="utf-8", opener=private.open_file)  # noqa: SIM115
        try:
            if not _take(file) and not (wait and _await(file, stop or threading.Event())):
                file.seek(0)
                raise LockedError(
                    f"the project is already running: {_instance(file.read())}",
                    remedy=remedy,
                )
        except BaseException:
            file.close()
            raise
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}, file)
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def held(self) -> bool:
        """Whether the project runs, in this process or another."""
        return self.instance() is not None

    def instance(self) -> Instance | None:
        """The process that runs the project; None where there is none. Takes the lock for an instant, shared, without
        waiting."""
        try:
            file = self._path.open("r", encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):  # then nothing can run
            return None
        except OSError as error:
            raise unusable(error, self._path.parent) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _instance(file.read())
        return None


def refuse_unwritable(state: Path) -> None:
    """Raise for a state folder that can be neither written nor made. Creates nothing."""
    trouble = folder_trouble(state)
    for name in ("lock", "status.json"):
        trouble = trouble or file_trouble(state / name)
    if trouble is not None:
        raise unusable(trouble, state)


def unusable(error: OSError, state: Path) -> TruckerError:
    """Why a state folder cannot be used."""
    return file_error(error, "using the state folder", state, code="TRK603", setting="state")


def _take(file: IO[str]) -> bool:
    """Whether the lock could be had. `held` has it for a moment, too: that is not somebody who runs the project."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(TRY_SECONDS)
    return False


def _await(file: IO[str], stop: threading.Event) -> bool:
    """Wait until the lock can be had. It is polled: a call that blocks could not be stopped."""
    file.seek(0)
    log.warning("waiting for the instance that holds the project", extra={"held_by": str(_instance(file.read()))})
    while not stop.wait(WAIT_SECONDS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    raise Stopped


def _instance(text: str) -> Instance:
    try:
        holder = json.loads(text)
        return Instance(int(holder["pid"]), str(holder["host"]), float(holder["since"]))
    except (ValueError, KeyError, TypeError):
        return Instance(0, "", 0.0)
