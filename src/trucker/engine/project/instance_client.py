"""Gives a command to the running instance of a project; the lock says whether there is one, and on which host."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trucker.control.answers import StopRequest
from trucker.control.client import ask
from trucker.control.message import Request
from trucker.control.socket_path import socket_path
from trucker.engine.project.lock import Instance, ProjectLock
from trucker.errors import ControlError

PATIENCE_SECONDS: Final = 5.0
"""An instance has its lock a moment before it serves its socket, and a moment after."""

_POLL_SECONDS: Final = 0.05


def ask_instance(state: Path, command: str, arguments: Mapping[str, Any]) -> Any:
    """The answer of the running instance; None where none runs.

    Raises the error that it answers with, and `ControlError` where there is an instance that cannot be reached. A
    socket that a dead process has left behind is not asked: nothing holds the lock then.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (instance := ProjectLock(state).instance()) is not None:
        try:
            return ask(state, Request(command, arguments))
        except OSError as error:
            if time.monotonic() >= deadline or _is_elsewhere(instance):
                raise _unreachable(state, instance, command, error) from error
        time.sleep(_POLL_SECONDS)
    return None


def not_running(remedy: str) -> ControlError:
    return ControlError("no instance of the project runs", remedy=remedy, code="TRK611")


def await_end(state: Path, request: StopRequest) -> None:
    """Wait until the instance that was asked to stop holds the project no more."""
    while (instance := ProjectLock(state).instance()) is not None and instance.pid in (0, request.pid):
        time.sleep(_POLL_SECONDS)


def _is_elsewhere(instance: Instance) -> bool:
    return bool(instance.host) and instance.host != socket.gethostname()


def _unreachable(state: Path, instance: Instance, command: str, error: OSError) -> ControlError:
    if _is_elsewhere(instance):
        return ControlError(
            f"the project runs on another host: {instance}", remedy=f"run `trucker {command}` on {instance.host}"
        )
    if isinstance(error, PermissionError):
        return ControlError(
            f"{instance} runs under another account: {socket_path(state)} may not be used",
            remedy=f"run `trucker {command}` as the owner of {shlex.quote(str(state))}",
        )
    return ControlError(
        f"the project is held by {instance}, which does not answer at {socket_path(state)} ({error.strerror})",
        remedy=f"if it is another command, such as `trucker reset`, wait for its end; to stop it: kill {instance.pid}",
    )
