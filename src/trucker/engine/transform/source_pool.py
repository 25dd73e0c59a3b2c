"""An executor's session at a source for the SQL of trucks, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trucker.adapters.postgres import PostgresConnection
from trucker.pg.listening import Listening
from trucker.postgres.connect import connect

_sessions: dict[str, tuple[PostgresConnection, Listening]] = {}


@contextmanager
def source_session(config: PostgresConnection) -> Iterator[Listening]:
    """This process's session at a source; after a failure it is closed, and the next call connects again.

    The session is taken out of the pool while it is used: a second thread opens another one.
    """
    cached = _sessions.pop(config.name, None)
    session = cached[1] if cached and cached[0] == config and not cached[1].closed else None
    if cached and session is None:
        _close(cached[1])
    if session is None:
        session = connect(config, application="trucker input", own_sql=True)
    try:
        yield session
    except BaseException:
        _close(session)
        raise
    if config.name in _sessions:  # another thread's
        _close(session)
    else:
        _sessions[config.name] = (config, session)


def _close(session: Listening) -> None:
    with suppress(Exception):
        session.close()
