"""An executor's session at a source for the SQL of trucks, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trucker.source.base import QuerySession, Source

_sessions: dict[str, tuple[Source, QuerySession]] = {}


@contextmanager
def source_session(source: Source) -> Iterator[QuerySession]:
    """This process's session at a source; after a failure it is closed, and the next call connects again.

    The session is taken out of the pool while it is used: a second thread opens another one.
    """
    cached = _sessions.pop(source.name, None)
    session = cached[1] if cached and cached[0] == source and not cached[1].closed else None
    if cached and session is None:
        _close(cached[1])
    if session is None:
        session = source.query_session()
    try:
        yield session
    except BaseException:
        _close(session)
        raise
    if source.name in _sessions:  # another thread's
        _close(session)
    else:
        _sessions[source.name] = (source, session)


def _close(session: QuerySession) -> None:
    with suppress(Exception):
        session.close()
