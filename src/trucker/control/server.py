"""Serves the control socket of a running project: a thread that accepts, and one for each command.

Who calls: `Project.run`, which holds the project's lock, so that a socket that is there already is one of a dead
process. What may fail: the file system may have no sockets (`start` raises `OSError`); a client may send anything, or
go away. Nothing outlives the process but the file, which the next start replaces.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from trucker.control.message import MOST_BYTES, Request, answer_line, error_line, parse_request
from trucker.control.socket_path import socket_address, socket_path
from trucker.errors import ControlError, TruckerError

log = logging.getLogger("trucker.control")

READ_SECONDS: Final = 10.0
"""So long a client may take to send its request."""


class ControlServer:
    """Hands each request to `answer`, in a thread of its own, and sends back what it returns or raises."""

    def __init__(self, state: Path, answer: Callable[[Request], object]) -> None:
        self._path = socket_path(state)
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bound = self._closed = False

    def start(self) -> None:
        """Make the socket, readable and writable by this account alone, and begin to serve it."""
        try:
            self._path.unlink(missing_ok=True)
            with socket_address(self._path) as address:
                self._socket.bind(address)
                self._bound = True
                # Before `listen`: nothing can connect meanwhile, whatever the umask is.
                self._path.chmod(0o600)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        """Accept no more, and remove the socket, if this one made it. Commands in progress get no answer."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        if self._bound:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                if not self._closed:
                    log.warning("the control socket ended", extra={"reason": error.strerror})
                return
            threading.Thread(target=self._handle, args=[client], name="command", daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # a client that has gone wants no answer
            client.settimeout(READ_SECONDS)
            line = client.makefile("rb").readline(MOST_BYTES)
            client.settimeout(None)
            client.sendall(self._answer_to(line))

    def _answer_to(self, line: bytes) -> bytes:
        try:
            return answer_line(self._answer(parse_request(line)))
        except TruckerError as error:
            return error_line(error)
        except Exception as error:
            log.exception("command failed unexpectedly")
            kind = type(error).__name__  # its text may quote a row (I10)
            return error_line(ControlError(f"the command failed: {kind}", remedy="read the log of the instance"))
