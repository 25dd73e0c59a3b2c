"""Asks the instance that serves a project's control socket."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from trucker.control.message import Request, parse_answer, request_line
from trucker.control.socket_path import socket_address, socket_path
from trucker.errors import ControlError

CONNECT_SECONDS: Final = 5.0
ENDED: Final = "TRK616"


def ask(state: Path, request: Request) -> Any:
    """The answer, however long it takes; raises the error that comes instead.

    Raises `OSError` where nothing serves the socket: it is missing, or its process is dead, or on another host.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(CONNECT_SECONDS)
        with socket_address(socket_path(state)) as address:
            server.connect(address)
        server.settimeout(None)
        try:
            server.sendall(request_line(request))
            line = server.makefile("rb").readline()
        except ConnectionError:
            line = b""
    if not line:
        raise ControlError(
            f"the instance ended before it answered `{request.command}`",
            remedy="run `trucker status`, and give the command again",
            code=ENDED,
        )
    return parse_answer(line)
