"""A Kafka broker of one's own (KRaft, one node), for tests and benchmarks.

    with KafkaBroker(folder) as broker:
        broker.servers           what a connection's `servers` says
        broker.login(…)          a user's settings, for the listener that asks for a password

It runs on any Java that trucker finds. Its programs are 46 jars, which no Python package has: `tools/get_kafka.py` gets
them by Maven. It listens on 127.0.0.1, lets anonymous clients of the plain listener do all, and those that log in what
they are granted; it does not outlive the process that started it.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from trucker.engine.spark.java import cache_folder as java_cache
from trucker.engine.spark.java import find_java
from trucker.errors import TruckerError
from trucker.testing.installation import cache_folder

VERSION: Final = "4.3.1"
USER, PASSWORD = "app", "right-password"
"""Who may do all."""
BARE: Final = "bare"
"""Who may do nothing but what a test grants."""

_PORTS: Final = ("PLAINTEXT", "PROXIED", "SASL_PLAINTEXT", "CONTROLLER")
_WATCHDOG: Final = 'read -r _; kill -KILL "$1"'
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


def kafka_jars() -> Path:
    """The folder with the broker's jars, where `tools/get_kafka.py` puts them."""
    return cache_folder() / f"kafka-{VERSION}"


def has_kafka() -> bool:
    return (kafka_jars() / "complete").exists()


class KafkaBroker:
    """One broker with its data below `folder`. Its addresses stay the same over the object's life."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.folder = folder
        self._more = properties
        self._prepared = False
        self._ports = _free_ports()
        self.advertised: dict[str, int] = {}
        """The ports that clients of a listener are told, where they are not its own; to be set before the start."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._ports['PLAINTEXT']}"

    @property
    def proxied_port(self) -> int:
        """Of the listener that is for clients behind a proxy; `advertised` has the proxy's own port."""
        return self._ports["PROXIED"]

    def login(self, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
        """Settings of a connection of this user."""
        servers = f"127.0.0.1:{self._ports['SASL_PLAINTEXT']}"
        return {"servers": [servers], "security": "sasl_plaintext", "user": user, "pass": password}

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 120.0) -> Self:
        """Start and wait until it answers."""
        if self.running:
            return self
        if not has_kafka():
            raise TruckerError("the jars of Kafka are not there", remedy="python tools/get_kafka.py")
        if not self._prepared:
            self._prepare()
            self._prepared = True
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self.folder / "server.properties")),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=self._environment,
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
        atexit.unregister(self.kill)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = "".join(f"{name}={value}\n" for name, value in {**self._properties(), **self._more}.items())
        (self.folder / "server.properties").write_text(properties)
        # A UUID that does not begin with a dash, which its option would not take.
        cluster = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties")
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise TruckerError(f"the storage of the Kafka broker cannot be made: {done.stderr[-2000:]}")

    def _properties(self) -> dict[str, str]:
        """Of one node that starts fast, forgets its killed self fast, and fits into a small machine."""
        listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        told = {name: f"{name}://127.0.0.1:{port}" for name, port in {**self._ports, **self.advertised}.items()}
        one = (
            "offsets.topic.replication.factor",
            "offsets.topic.num.partitions",
            "transaction.state.log.replication.factor",
            "transaction.state.log.min.isr",
            "transaction.state.log.num.partitions",
            "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.min.isr",
        )
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._ports['CONTROLLER']}",
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(url for name, url in told.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{_MODULE} required user_{USER}="{PASSWORD}" user_{BARE}="{PASSWORD}";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
            **dict.fromkeys(one, "1"),
            "group.initial.rebalance.delay.ms": "0",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "250",
            "auto.create.topics.enable": "false",
            "num.partitions": "3",
            "message.max.bytes": str(16 * 1024 * 1024),
            "log.dirs": str(self.folder / "data"),
        }

    @property
    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "LOG_DIR": str(self.folder)}

    def _java(self, main: str, *arguments: str) -> list[str]:
        java = str(find_java(java_cache()).binary)
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN"]
        return [java, *small, "-cp", f"{kafka_jars()}/*", main, *arguments]

    def _await_ready(self, timeout: float) -> None:
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 100})
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.running:
                break
            with contextlib.suppress(KafkaException):
                client.list_topics(timeout=1)
                return
        self.kill()
        raise TruckerError(f"the Kafka broker did not start, see {self.folder / 'broker.log'}")


def _free_ports() -> dict[str, int]:
    with contextlib.ExitStack() as sockets:
        reserved = {name: sockets.enter_context(socket.socket()) for name in _PORTS}
        for each in reserved.values():
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in reserved.items()}
