"""The lock of the one writer of a log."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from trucker import private
from trucker.errors import ChangeLogError, ChangeLogFull, LockedError
from trucker.file_errors import FULL, reason_and_remedy

LOCK_FILE: Final = "writer.lock"


def hold_lock(path: Path, seconds: float) -> int:
    """Hold the writer's lock; the file says who does."""
    try:
        fd = private.open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
                os.close(fd)
                raise LockedError(
                    f"the change log in {path.parent} is being written by process {holder}",
                    remedy="stop the other trucker of this project",
                ) from None
            time.sleep(0.02)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def cannot_write(folder: Path, error: OSError) -> ChangeLogError:
    """As `file_error`; capture itself tries again where the disk is full, and the message says so."""
    reason, remedy = reason_and_remedy(error, folder)
    message = f"the change log in {folder} cannot be written: {reason}"
    if error.errno in FULL:
        return ChangeLogFull(message, remedy=f"{remedy}; capture then continues")
    return ChangeLogError(message, remedy=remedy, code="TRK306")
