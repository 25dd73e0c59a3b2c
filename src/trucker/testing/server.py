"""A PostgreSQL server of one's own, for tests, the demo and benchmarks; nothing has to be installed for it.

    with Server(folder, version=18) as server:
        psycopg.connect(server.conninfo)

The server listens on 127.0.0.1 and on a unix socket, asks for a password, and does not outlive the process that
started it: it is stopped at exit, and a watchdog that waits at the end of a pipe stops it when the process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import TruckerError
from trucker.testing.installation import SUPERUSER, account, initialise, installation, reachable_temporary

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# synchronous_commit stays on: without it even a crash of the server alone would lose commits.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
_WATCHDOG = 'read -r _; kill -INT "$1"; rm -rf "$2"'


class Server:
    """One PostgreSQL server with its data below `folder`.

    `settings` go into the configuration file. `durable=False` turns fsync off: a crash of the server loses nothing,
    a crash of the machine may. A folder that holds a server already is taken up as it is.
    """

    def __init__(
        self,
        folder: Path,
        version: int = 18,
        *,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.version = version
        self.settings = {**_SETTINGS, **({} if durable else _NOT_DURABLE), **(settings or {})}
        self.bin = installation(version) / "bin"
        self._port: int | None = None
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None
        self._log_start = 0
        self._owner = os.getpid()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0) -> Self:
        """Start and wait until the server answers; the port stays the same over the object's life."""
        if self.running:
            return self
        if not self._password:
            self._prepare()
        attempts = 1 if self._port else 5
        for attempt in range(attempts):
            self._port = self._port or _free_port()
            self._launch()
            try:
                self._await_ready(timeout)
                break
            except _PortTakenError:
                self._port = None
                if attempt == attempts - 1:
                    raise
        atexit.register(self._stop_at_exit)
        return self

    def stop(self, mode: StopMode = "fast", timeout: float = 60.0) -> None:
        """Shut down; `immediate` is a crash as far as the data is concerned."""
        process, self._process = self._process, None
        if process is None:
            return
        self._dismiss_watchdog()
        if process.poll() is None:
            process.send_signal(_SIGNALS[mode])
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """Crash: every process of the server goes at once, nothing is flushed."""
        if self._process is not None:
            children = _children(self._process.pid)
            for pid in (self._process.pid, *children):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            _await_gone(children)
            # Another process may get the pid, and PostgreSQL would then refuse to start.
            (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.stop("immediate")

    def restart(self, mode: StopMode = "fast", settings: Mapping[str, str] | None = None) -> Self:
        """Stop, if it runs, and start on the same port; `settings` are added to those it has."""
        self.stop(mode)
        self.settings.update(settings or {})
        return self.start()

    def destroy(self) -> None:
        """Stop and delete the data, wherever it lies."""
        self.stop("immediate")
        link = self.folder / "data"
        if link.is_symlink():
            shutil.rmtree(link.resolve().parent, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise TruckerError("the embedded PostgreSQL is not running", remedy="call start() first")
        return self._process.pid

    # -- ways in --------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        if self._port is None:
            raise TruckerError("the embedded PostgreSQL has no port yet", remedy="call start() first")
        return self._port

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def conninfo(self) -> str:
        """A libpq connection string for the superuser and the database postgres."""
        return make_conninfo(**self.connection("server").conninfo())

    def connection(
        self, name: str, database: str = "postgres", user: str = SUPERUSER, password: str | None = None
    ) -> PostgresConnection:
        """What a project would say of this server. Another user than the superuser needs its password."""
        secret = self._password if password is None else password
        return PostgresConnection.model_validate(
            {
                "name": name,
                "host": "127.0.0.1",
                "port": self.port,
                "database": database,
                "user": user,
                "pass": secret,
            }
        )

    def connect(self, database: str = "postgres", **arguments: Any) -> psycopg.Connection[Any]:
        """A superuser's connection, in autocommit mode unless told otherwise."""
        arguments.setdefault("autocommit", True)
        return psycopg.connect(**self.connection("server", database).conninfo(), **arguments)

    def environment(self, database: str = "postgres") -> dict[str, str]:
        """This process's environment with libpq's variables, for psql, pgbench and the like in `bin`."""
        return {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": self._password,
            "PGDATABASE": database,
        }

    def create_database(self, name: str, *, model: str = "template1") -> None:
        """Create a database as a copy of `model`, by its files: through the WAL it takes three times as long."""
        statement = sql.SQL("create database {} template {} strategy file_copy")
        with self.connect() as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(model)))

    def drop_database(self, name: str) -> None:
        """Drop a database with its replication slots and open connections."""
        with self.connect() as connection:
            for slot in self._slots(connection, name):
                self._drop_slot(connection, slot)
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Fill the folder, unless it holds a server already; read the password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "password"
        if not secret.exists():
            password = secrets.token_urlsafe(24)
            self._place_data(password)
            secret.touch(0o600)
            secret.write_text(password)
        self._password = secret.read_text()

    def _place_data(self, password: str) -> None:
        """Put a data folder at `data`, through a link where the account cannot reach `folder` itself."""
        home = self.folder if account().reaches(self.folder) else reachable_temporary("server")
        initialise(self.version, home / "data", password)
        if home != self.folder:
            self.data.symlink_to(home / "data")
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("\ninclude_if_exists 'trucker.conf'\n")

    def _launch(self) -> None:
        if self._sockets is None:
            # A unix socket's path is limited to about a hundred bytes, which a test's folder easily exceeds.
            self._sockets = reachable_temporary("sock")
            account().own(self._sockets)
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._sockets),
        }
        lines = (f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items())
        (self.data / "trucker.conf").write_text("".join(lines))
        account().own(self.data / "trucker.conf")
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data.resolve()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **account().popen,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid), self._sockets],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **account().popen,
        )

    def _dismiss_watchdog(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()

    def _await_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            if self._process is not None and self._process.poll() is not None:
                text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
                self.stop()
                kind = _PortTakenError if "could not bind" in text else TruckerError
                raise kind(f"the embedded PostgreSQL {self.version} did not start: {_last_lines(text)}")
            try:
                self.connect(connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop("immediate")
                    raise TruckerError(f"the embedded PostgreSQL did not answer within {timeout:.0f} s") from error
                time.sleep(0.02)

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:
            self.stop("fast", timeout=10)

    @staticmethod
    def _slots(connection: psycopg.Connection[Any], database: str) -> Iterator[str]:
        query = "select slot_name from pg_replication_slots where database = %s"
        return (name for (name,) in connection.execute(query, [database]).fetchall())

    @staticmethod
    def _drop_slot(connection: psycopg.Connection[Any], slot: str, timeout: float = 20.0) -> None:
        """Drop a slot, ending its walsender; a temporary slot goes with its session."""
        deadline = time.monotonic() + timeout
        while True:
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where slot_name = %s and active_pid is not null",
                [slot],
            )
            try:
                connection.execute("select pg_drop_replication_slot(%s)", [slot])
                return
            except psycopg.errors.UndefinedObject:
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


class _PortTakenError(TruckerError):
    """Another process has bound the port that was free a moment ago."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_lines(text: str, count: int = 3) -> str:
    return " | ".join(text.strip().splitlines()[-count:])


def _children(parent: int) -> list[int]:
    """The server's own processes. Where there is no /proc they notice their postmaster's death by themselves."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        state = _state(entry)
        if state is not None and state[1] == parent:
            pids.append(int(entry.parent.name))
    return pids


def _await_gone(pids: list[int], timeout: float = 10.0) -> None:
    """Wait until none of the processes holds the server's shared memory any more; a zombie does not."""
    deadline = time.monotonic() + timeout
    for pid in pids:
        while time.monotonic() < deadline:
            state = _state(Path(f"/proc/{pid}/stat"))
            if state is None or state[0] == "Z":
                break
            time.sleep(0.005)


def _state(entry: Path) -> tuple[str, int] | None:
    """A process's state letter and its parent; the name before them is in parentheses and may hold anything."""
    try:
        fields = entry.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])
