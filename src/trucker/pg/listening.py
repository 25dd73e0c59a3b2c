"""A PostgreSQL connection that notices when the server's answer will never come.

TCP detects a peer that is gone, with libpq's timeouts. It does not detect a peer that is reachable and silent: a proxy
or a load balancer that accepts bytes and delivers none, a firewall that has dropped the connection's state, a server
whose answer was lost. A client alone cannot distinguish a lost answer from a statement that takes long.

So once a statement has had no answer for `silence` seconds, a second connection to the same server checks the first
one's backend. If that is active, or waits for a lock, the wait continues. If it waits for the client, is idle or is
gone, the answer will never come: the backend is terminated, so that it holds no locks, and `Silent` is raised. `Silent`
is also raised if the server does not answer the second connection; the backend is then terminated by the next
connection from this process to that server.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.waiting import Wait

# By pid and start time: the system may give the pid to another process.
_OWN_BACKEND: Final = """select pid, extract(epoch from backend_start)::text
    from pg_catalog.pg_stat_activity where pid = pg_catalog.pg_backend_pid()"""
_IS_BUSY: Final = """select state = 'active' and coalesce(wait_event, '') not in ('ClientRead', 'ClientWrite')
    from pg_catalog.pg_stat_activity where pid = {0} and extract(epoch from backend_start)::text = '{1}'"""
_END: Final = """select pg_catalog.pg_terminate_backend(pid)
    from pg_catalog.pg_stat_activity where pid = {0} and extract(epoch from backend_start)::text = '{1}'"""

GRACE_SECONDS: Final = 1.0

Backend = tuple[int, str]

# Backends of lost connections that may still hold locks, by server and user.
_left_behind: dict[tuple[str, ...], set[Backend]] = {}
_lock: Final = threading.Lock()


class Silent(psycopg.OperationalError):
    """The server has not answered in time."""


class Listening(psycopg.Connection[Any]):
    """A connection whose every wait ends `silence` seconds after the server's last answer, or sign of activity.

    `pooled`: a pooler is in between, which reports process ids of its own.
    """

    silence: float = 0.0
    pooled: bool = False
    backend: Backend = (0, "")
    _conninfo: Mapping[str, Any] = {}
    _looks_at_backend = True

    @classmethod
    def open(cls, conninfo: Mapping[str, Any], silence: float, **arguments: Any) -> Self:
        """Connect, in autocommit mode. `arguments` are psycopg's. psycopg's errors are not translated."""
        connection = cls.connect(**conninfo, autocommit=True, **arguments)
        connection.silence = silence
        connection._conninfo = conninfo
        connection._looks_at_backend = False
        try:
            # PostgreSQL 17 has one more timeout, whose name an older server would refuse at connecting.
            lifted = "; set transaction_timeout = 0" if connection.info.server_version >= 170000 else ""
            pid, began = connection._ask(f"{_OWN_BACKEND}{lifted}") or (0, "")
            connection.backend = (int(pid), str(began))
            connection.pooled = pid != connection.info.backend_pid
            connection._end_left_behind()
        except BaseException:
            connection.close()
            raise
        connection._looks_at_backend = True
        return connection

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if not self.silence:
            return super().wait(gen, interval, timeout)
        try:
            condition = next(gen)
        except StopIteration as end:  # in a pipeline, statements wait for nothing
            value: RV = end.value
            return value
        try:
            return super().wait(self._listen(gen, condition), interval, timeout)
        finally:
            # psycopg's generator ends a pipeline when it is closed, which fails where the connection is lost. Left to
            # the garbage collector, that failure would be printed.
            with suppress(psycopg.Error, RuntimeError):
                gen.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _listen(self, gen: PQGen[RV], condition: Wait) -> PQGen[RV]:
        """The same waits, of which `condition` is the first, with a limit.

        psycopg sends `Ready.NONE` at each interval in which nothing happens.
        """
        last_answer = time.monotonic()
        try:
            while True:
                ready = yield condition
                if ready:
                    last_answer = time.monotonic()
                elif time.monotonic() - last_answer >= self.silence:
                    if not (self._looks_at_backend and self._is_busy(condition)):
                        self.close()
                        raise Silent(f"no answer for {self.silence:g} s")
                    last_answer = time.monotonic()
                condition = gen.send(ready)
        except StopIteration as end:
            value: RV = end.value
            return value

    def _is_busy(self, condition: Wait) -> bool:
        """Whether our backend is busy with the statement; if it is not, it is terminated.

        A backend that has just finished is no longer busy, but its answer may arrive in a moment.
        """
        try:
            with self._second_connection() as other:
                if other._ask(_IS_BUSY.format(*self.backend)) == (True,) or self._becomes_ready(condition):
                    return True
                other._end(self.backend)
                return False
        except psycopg.Error:
            with _lock:
                _left_behind.setdefault(self._server, set()).add(self.backend)
            return False

    def _becomes_ready(self, condition: Wait) -> bool:
        """Whether the socket becomes ready within a short time."""
        poll = select.poll()
        events = (select.POLLIN if condition & Wait.R else 0) | (select.POLLOUT if condition & Wait.W else 0)
        poll.register(self.pgconn.socket, events)
        return bool(poll.poll(min(self.silence, GRACE_SECONDS) * 1000))

    def _second_connection(self) -> Listening:
        """Another connection to the same server, by its address, with a short timeout."""
        seconds = max(2, min(int(self._conninfo.get("connect_timeout") or 10), round(self.silence)))
        parameters = {name: value for name, value in self._conninfo.items() if name != "replication"}
        if self.info.hostaddr:
            parameters["hostaddr"] = self.info.hostaddr
        connection = Listening.connect(**{**parameters, "connect_timeout": seconds}, autocommit=True)
        connection.silence, connection._looks_at_backend, connection._conninfo = float(seconds), False, self._conninfo
        return connection

    @property
    def _server(self) -> tuple[str, ...]:
        return tuple(str(self._conninfo.get(name, "")) for name in ("host", "hostaddr", "port", "dbname", "user"))

    def _end_left_behind(self) -> None:
        with _lock:
            backends = _left_behind.pop(self._server, set())
        for backend in backends:
            self._end(backend)

    def _end(self, backend: Backend) -> None:
        with suppress(psycopg.errors.InsufficientPrivilege):
            self._ask(_END.format(*backend))

    def _ask(self, statement: str) -> tuple[Any, ...] | None:
        """The first row, if there is one. A replication connection takes no parameters."""
        return psycopg.Cursor(self).execute(statement.encode()).fetchone()
