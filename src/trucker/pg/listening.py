"""A PostgreSQL connection that notices when the server's answer will never come.

TCP notices a peer that is gone, libpq's timeouts see to that. It does not notice a peer that is there and silent: a
proxy or a load balancer that takes bytes and delivers none, a firewall that has forgotten the connection, a server
whose answer was lost. And a client cannot tell by itself a lost answer from a statement that takes long.

So it asks. Once a statement has had no answer for `silence` seconds, a second connection to the same server looks
what the first one's backend does. If that is at work, or waits for a lock, all is well. If it waits for the client,
is idle or is gone, the answer will never come: the backend is ended, so that it holds no lock any longer, and
`Silent` is raised. The same if the server does not answer the second connection either; the backend is then ended by
the next connection that is made to that server from this process.
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

# By pid and start: the pid alone may soon be somebody else's.
_ME: Final = """select pid, extract(epoch from backend_start)::text
    from pg_catalog.pg_stat_activity where pid = pg_catalog.pg_backend_pid()"""
_LOOK: Final = """select state = 'active' and coalesce(wait_event, '') not in ('ClientRead', 'ClientWrite')
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
    """A connection whose every wait ends `silence` seconds after the server's last sign of life.

    `pooled` says that a pooler is in between: it hands out process ids of its own.
    """

    silence: float = 0.0
    pooled: bool = False
    backend: Backend = (0, "")
    _conninfo: Mapping[str, Any] = {}
    _asks = True

    @classmethod
    def open(cls, conninfo: Mapping[str, Any], silence: float, **arguments: Any) -> Self:
        """Connect, in autocommit mode. `arguments` are psycopg's. psycopg's errors pass through."""
        made = cls.connect(**conninfo, autocommit=True, **arguments)
        made.silence = silence
        made._conninfo = conninfo
        made._asks = False
        try:
            # PostgreSQL 17 has one more timeout, whose name an older server would refuse at connecting.
            lifted = "; set transaction_timeout = 0" if made.info.server_version >= 170000 else ""
            pid, began = made._ask(f"{_ME}{lifted}") or (0, "")
            made.backend = (int(pid), str(began))
            made.pooled = pid != made.info.backend_pid
            made._end_left_behind()
        except BaseException:
            made.close()
            raise
        made._asks = True
        return made

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(self._listen(gen) if self.silence else gen, interval, timeout)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _listen(self, gen: PQGen[RV]) -> PQGen[RV]:
        """The same waits; psycopg says `Ready.NONE` to each of them now and then when nothing happens."""
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard >= self.silence:
                    if not (self._asks and self._at_work(wanted)):
                        self.close()
                        raise Silent(f"no answer for {self.silence:g} s")
                    heard = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as done:
            value: RV = done.value
            return value

    def _at_work(self, wanted: Wait) -> bool:
        """Whether the server says that our backend is busy with the statement; one that is not is ended.

        One that has just finished is not busy any more, and its answer is on the way.
        """
        try:
            with self._second() as other:
                if other._ask(_LOOK.format(*self.backend)) == (True,) or self._stirs(wanted):
                    return True
                other._end(self.backend)
                return False
        except psycopg.Error:
            with _lock:
                _left_behind.setdefault(self._server, set()).add(self.backend)
            return False

    def _stirs(self, wanted: Wait) -> bool:
        """Whether what is waited for happens after all, in a moment."""
        poll = select.poll()
        events = (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0)
        poll.register(self.pgconn.socket, events)
        return bool(poll.poll(min(self.silence, GRACE_SECONDS) * 1000))

    def _second(self) -> Listening:
        """Another connection to this very server, in the shortest time there is."""
        seconds = max(2, min(int(self._conninfo.get("connect_timeout") or 10), round(self.silence)))
        wanted = {name: value for name, value in self._conninfo.items() if name != "replication"}
        if self.info.hostaddr:
            wanted["hostaddr"] = self.info.hostaddr
        made = Listening.connect(**{**wanted, "connect_timeout": seconds}, autocommit=True)
        made.silence, made._asks, made._conninfo = float(seconds), False, self._conninfo
        return made

    @property
    def _server(self) -> tuple[str, ...]:
        return tuple(str(self._conninfo.get(name, "")) for name in ("host", "hostaddr", "port", "dbname", "user"))

    def _end_left_behind(self) -> None:
        with _lock:
            lost = _left_behind.pop(self._server, set())
        for backend in lost:
            self._end(backend)

    def _end(self, backend: Backend) -> None:
        with suppress(psycopg.errors.InsufficientPrivilege):
            self._ask(_END.format(*backend))

    def _ask(self, statement: str) -> tuple[Any, ...] | None:
        """The first row, if there is one. A replication connection takes no parameters."""
        return psycopg.Cursor(self).execute(statement.encode()).fetchone()
