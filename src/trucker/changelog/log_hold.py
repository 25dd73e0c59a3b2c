"""Keeps the change log of a running project as it is while another process of the machine reads its history.

An instance deletes what every truck has applied and `log.keep` does not keep. A replay reads such history: while one
holds the lock, shared with other replays, nothing is deleted. The kernel frees it when the holder dies.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from trucker import private

FILE: Final = "log-readers.lock"


@contextmanager
def log_held(state: Path) -> Iterator[None]:
    """Nothing is deleted from the project's change logs inside. Waits for a deletion in progress."""
    with _file(state) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def log_free(state: Path) -> Iterator[bool]:
    """Whether nobody holds the logs; nobody can begin to inside."""
    with _file(state) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _file(state: Path) -> IO[str]:
    private.make_folder(state)
    return open(state / FILE, "a", encoding="utf-8", opener=private.open_file)
