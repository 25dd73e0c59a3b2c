"""A destination behind a connection pooler.

A session of a sink lasts: its settings, temporary tables and prepared statements are there for the next batch. Through
a pooler that gives each session a server connection of its own (pgbouncer's `pool_mode = session`) it does. One that
lends them by the transaction mixes sessions up, and does so without a word: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

import psycopg

from trucker.errors import SinkError
from trucker.pg.listening import Listening

_REFUSES_SETTINGS: Final = re.compile(r"unsupported startup parameter")


def refuses_settings(error: psycopg.Error) -> bool:
    """Whether this is a pooler that does not let a client's settings through when it connects."""
    return _REFUSES_SETTINGS.search(str(error)) is not None


def settle(connection: Listening, settings: Mapping[str, object], where: str, another: Callable[[], Listening]) -> None:
    """Make a session out of a connection through a pooler, or refuse it. `another` connects to the same pooler."""
    with closing(another()) as other:
        if _mixed_up(connection, other):
            raise SinkError(
                f"{where}: a connection pooler in transaction mode answers instead of the server",
                remedy="set `host` to the server itself, or set pool_mode = session for this database in the pooler",
                code="TRK420",
            )
    apply = ", ".join(f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items())
    psycopg.Cursor(connection).execute(f"select {apply}".encode())


def _mixed_up(one: Listening, two: Listening) -> bool:
    """Whether the two change their server connections, having been in transactions side by side.

    A pooler lends what came back last, or first: one of the orders shows it.
    """
    homes = _side_by_side(one, two)
    return _side_by_side(one, two) != homes or _side_by_side(two, one)[::-1] != homes


def _side_by_side(one: Listening, two: Listening) -> tuple[int, int]:
    first = _begin(one)
    second = _begin(two)
    for connection in (one, two):
        psycopg.Cursor(connection).execute(b"rollback")
    return first, second


def _begin(connection: Listening) -> int:
    cursor = psycopg.Cursor(connection)
    cursor.execute(b"begin")
    row = cursor.execute(b"select pg_catalog.pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])
