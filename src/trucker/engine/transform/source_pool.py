"""An executor's session at a source for the SQL of trucks, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trucker.source.base import QuerySession, Source

_sessions: dict[str, tuple[Source, QuerySession]] = {}


@contextmanager
def source_session(source: Source) -> Iterator[QuerySession]:
    """This process's session there. After any failure the next one is another."""
    known = _sessions.pop(source.name, None)
    session = known[1] if known and known[0] == source and not known[1].closed else None
    if known and session is None:
        _close(known[1])
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
