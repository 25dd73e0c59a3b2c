"""Checks that queries on the source see a transaction that the stream has already sent.

A commit is in the WAL, and so in the stream, before other sessions see it: while a synchronous standby is waited for,
and on a standby until it is replayed. SQL that is run for a change must not see the database as it was before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from trucker.errors import SourceUnavailable
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import translated
from trucker.process.stopping import Stopped

log = logging.getLogger("trucker.copy")

VISIBLE_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 0.1
_XIDS: Final = 1 << 32

# Every transaction holds a lock on its number until other sessions see that it has ended.
_RUNNING: Final = b"""
    select transactionid::text::bigint from pg_catalog.pg_locks
     where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted"""


@translated("reading which transactions are visible")
def await_visible(connection: PgConnection, xids: Iterable[int], timeout: float = VISIBLE_SECONDS) -> None:
    """Wait until a new snapshot of this session sees these transactions; `SourceUnavailable` after `timeout`."""
    wanted = frozenset(xid for xid in xids if xid)
    deadline = time.monotonic() + timeout
    while wanted and (hidden := _hidden(connection, wanted)):
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"{len(hidden)} transactions of the stream are not visible at the source after {timeout:g} s",
                remedy="check pg_stat_replication: a synchronous standby does not answer, or the replica lags",
                code="TRK265",
            )
        wanted = hidden
        time.sleep(_STEP_SECONDS)


@translated("reading which transactions are visible")
def running(connection: PgConnection) -> frozenset[int]:
    """The transactions in progress, those that wait for a synchronous standby among them; none on a standby, which
    sends what it has replayed. A snapshot would not name the youngest."""
    recovery = connection.execute("select pg_catalog.pg_is_in_recovery()").fetchone()
    return frozenset() if recovery == (True,) else frozenset(xid for (xid,) in connection.execute(_RUNNING))


def await_ended(connection: PgConnection, stop: threading.Event) -> None:
    """Wait until the transactions that are in progress now have ended; raises `Stopped` when `stop` is set."""
    open_before = running(connection)
    if open_before:
        log.info("waiting for open transactions of the source", extra={"transactions": len(open_before)})
    while open_before := open_before & running(connection):
        if stop.wait(_LOOK_SECONDS):
            raise Stopped


@translated("reading the settings of replication")
def has_synchronous_standbys(connection: PgConnection) -> bool:
    """Whether commits wait for standbys."""
    row = connection.execute("select pg_catalog.current_setting('synchronous_standby_names')").fetchone()
    return row is not None and bool(str(row[0]).strip())


def _hidden(connection: PgConnection, wanted: frozenset[int]) -> frozenset[int]:
    row = connection.execute("select pg_catalog.pg_current_snapshot()::text").fetchone()
    assert row is not None
    _, end, xids = str(row[0]).split(":")
    open_ = {int(xid) % _XIDS for xid in xids.split(",") if xid}
    return frozenset(xid for xid in wanted if xid in open_ or not _precedes(xid, int(end) % _XIDS))


def _precedes(xid: int, end: int) -> bool:
    """As PostgreSQL compares transaction numbers, which go round."""
    return 0 < (end - xid) % _XIDS < _XIDS // 2
