"""Where a project's control socket is, and how it is named to the kernel, whose names of sockets are short."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SUN_PATH: Final = 108
"""The bytes of a socket's name on Linux, the zero at its end included."""


def socket_path(state: Path) -> Path:
    """The control socket of the project with this state folder."""
    return state / "control.sock"


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A name for the socket that the kernel takes, however long its path is: through an open folder where needed.

    Raises `OSError` where the folder cannot be opened.
    """
    if len(os.fsencode(path)) < _SUN_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
