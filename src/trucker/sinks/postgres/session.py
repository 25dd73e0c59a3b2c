"""Connections to a destination, kept from one use to the next.

Spark's Python workers live on from batch to batch, so do drivers: a process keeps its connections by conninfo. A
session is lent to one user at a time; one that failed or was left inside a transaction is not lent again.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from trucker.adapters.postgres import PostgresConnection
from trucker.pg.listening import Listening
from trucker.pg.text_settings import TEXT_SETTINGS
from trucker.sinks.postgres import pooler
from trucker.sinks.postgres.failure import cannot_connect

# Plans are made for the rows at hand: staged rows are ten or a million.
SETTINGS: Final = {
    **TEXT_SETTINGS,
    "xmloption": "content",
    "standard_conforming_strings": "on",
    "client_min_messages": "error",
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
}
# Set afterwards, so that a truck's own SQL can have the role's, which is then the session's default.
_PATH: Final = "pg_catalog"


@dataclass(slots=True)
class Session:
    """A connection in autocommit mode with `$1` placeholders, and the temporary tables it has made.

    `settings` are those that all of trucker's statements are run with.
    """

    connection: Listening
    settings: Mapping[str, object] = field(default_factory=dict)
    staging: set[str] = field(default_factory=set)

    def run(self, statement: str, *parameters: object) -> psycopg.Cursor[Any]:
        """One statement; prepared when first seen, unless it is one that cannot be."""
        return self.connection.execute(statement.encode(), parameters or None)

    @property
    def usable(self) -> bool:
        """At rest and, as far as can be told without a round trip, alive.

        A server has nothing to say to a client at rest but that it ends the connection.
        """
        pgconn = self.connection.pgconn
        if self.connection.closed or pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        readable, _, _ = select.select([pgconn.socket], [], [], 0)
        return not readable


_idle: dict[tuple[int, str], list[Session]] = {}
_lock: Final = threading.Lock()


@contextmanager
def session(config: PostgresConnection) -> Iterator[Session]:
    """A session for as long as the block lasts. psycopg's errors pass through; the caller knows what they mean."""
    lent = _take(config) or _connect(config)
    try:
        yield lent
    finally:
        _give_back(config, lent)


def close_idle(config: PostgresConnection) -> None:
    """Close the connections to this destination that are idle."""
    with _lock:
        dropped = _idle.pop(_key(config), [])
    for one in dropped:
        one.connection.close()


def _key(config: PostgresConnection) -> tuple[int, str]:
    # A forked process has its parent's table but must not touch its parent's sockets.
    return os.getpid(), _conninfo_of(config)


# By identity: settings never change, and to compare them takes long. Each is held, so that its id stays its own.
_conninfos: dict[int, tuple[PostgresConnection, str]] = {}
_MOST_CONNINFOS: Final = 64


def _conninfo_of(config: PostgresConnection) -> str:
    """Once for each settings: libpq parses them, a tenth of a millisecond in every batch."""
    cached = _conninfos.get(id(config))
    if cached is None:
        if len(_conninfos) >= _MOST_CONNINFOS:
            _conninfos.clear()
        cached = _conninfos[id(config)] = config, make_conninfo(**_conninfo(config, {}))
    return cached[1]


def _take(config: PostgresConnection) -> Session | None:
    while True:
        with _lock:
            waiting = _idle.get(_key(config))
            idle = waiting.pop() if waiting else None
        if idle is None or idle.usable:
            return idle
        idle.connection.close()


def _give_back(config: PostgresConnection, used: Session) -> None:
    if used.usable:
        with _lock:
            _idle.setdefault(_key(config), []).append(used)
    else:
        used.connection.close()


def _settings(config: PostgresConnection) -> dict[str, object]:
    patience = config.patience()
    return {
        **SETTINGS,
        "lock_timeout": f"{round(config.timeouts.lock * 1000)}ms",
        # The server, too, must find out about a client that is gone: its locks are waited for.
        **{f"tcp_{name}": patience[name] for name in ("keepalives_idle", "keepalives_interval", "keepalives_count")},
    }


def _conninfo(config: PostgresConnection, settings: Mapping[str, object]) -> dict[str, Any]:
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return config.conninfo(application_name="trucker", options=options, **config.patience())


def _connect(config: PostgresConnection) -> Session:
    try:
        connection = _open(config)
    except psycopg.Error as error:
        raise cannot_connect(config, error) from None
    connection.prepare_threshold = 1
    connection.prepared_max = 2_000
    return Session(connection, {**_settings(config), "search_path": _PATH})


def _open(config: PostgresConnection) -> Listening:
    settings = _settings(config)

    def opened(settings: Mapping[str, object]) -> Listening:
        conninfo = _conninfo(config.refreshed(), settings)
        return Listening.open(conninfo, config.timeouts.silence, cursor_factory=psycopg.RawCursor)

    try:
        connection = opened(settings)
    except psycopg.OperationalError as error:
        if not pooler.refuses_settings(error):
            raise
        connection = opened({})
    try:
        if connection.pooled:
            pooler.settle(connection, settings, config.place, lambda: opened({}))
        psycopg.Cursor(connection).execute(f"set search_path = {_PATH}".encode())
    except BaseException:
        connection.close()
        raise
    return connection
