"""One instance per project: a lock on its state folder that says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO

from trucker.errors import LockedError

TRIES = 10
TRY_SECONDS = 0.02


class ProjectLock:
    """An flock on `<state>/lock`. The kernel frees it when the holder dies, however it dies."""

    def __init__(self, state: Path) -> None:
        self._path = state / "lock"
        self._file: IO[str] | None = None

    def acquire(self, *, wait: bool) -> None:
        """Take the lock; LockedError names the holder, or with `wait` its end is awaited."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+", encoding="utf-8")
        try:
            if not _take(file, wait=wait):
                file.seek(0)
                raise LockedError(
                    f"the project is running already: {_describe(file.read())}",
                    remedy="stop that one, or use --wait to take over when it ends",
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
        """Whether somebody, in this process or another, runs the project."""
        if not self._path.exists():
            return False
        with self._path.open("r", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def _take(file: IO[str], *, wait: bool) -> bool:
    """Whether the lock could be had. `held` has it for a moment, too: that is not somebody who runs the project."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(TRY_SECONDS)
    if wait:
        fcntl.flock(file, fcntl.LOCK_EX)
    return wait


def _describe(text: str) -> str:
    try:
        holder = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
        return f"process {holder['pid']} on {holder['host']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "by a process that is just starting"
