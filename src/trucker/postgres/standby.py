"""Reading from a standby: what differs from reading from the primary.

PostgreSQL 16 and later decode on a standby too, and the snapshot that comes with a slot made there can be imported by
other sessions of the standby, as on a primary. Three things differ:

- *The publication* is made on the primary. The slot may be made only when the standby has replayed it: `await_replay`.
- *A slot in the making* waits for a record of the running transactions. A primary writes one for the purpose, a standby
  cannot: it is asked for on the primary (`pg_log_standby_snapshot`), again and again, until the slot is made.
- *Rows the snapshot must show.* A primary keeps them from the moment the slot has a consistent point. On a standby
  recovery minds running sessions only, not slots in the making: what was deleted just after the consistent point could
  be cleaned up before the session that makes the slot has taken its snapshot, unless `hot_standby_feedback` is
  on. `_Guards` are sessions that hold those rows meanwhile. Recovery ends a session rather than break its snapshot, so
  that either the rows were held all the time, or it is known that they may not have been. For the same reason a session
  that imported the snapshot must check afterwards that the session that exported it was there to the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
from psycopg import errors, sql

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceUnavailable, TruckerError
from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.connect import connect, translated
from trucker.postgres.replication.stream import promoted

log = logging.getLogger("trucker.standby")

REPLAY_SECONDS = 60.0
"""How long a run waits at its start for the standby to replay what has just been published."""
FLUSH_SECONDS = 2.0
"""Longer than PostgreSQL's WAL writer leaves a commit in memory."""
GUARD_SECONDS = 5.0
HASTY_GUARD_SECONDS = 0.5
"""How old a guard grows before the next one takes over: one that stayed could hold up recovery for ever. Without
`hot_standby_feedback` every clean-up on the primary is held up, so that guards must be quick."""

_REPLAY = "select coalesce(pg_last_wal_replay_lsn(), '0/0')::text, pg_is_in_recovery()"
# In this order: what is received after the first was asked is replayed by a recovery that knows the new snapshot.
_PENDING = "select pg_last_wal_receive_lsn()::text, pg_last_wal_replay_lsn()::text"
_WRITTEN = "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
_FIRST_PROD, _LAST_PROD = 0.05, 1.0


def await_replay(
    config: PostgresConnection, lsn: Lsn, stop: threading.Event | None = None, timeout: float | None = None
) -> None:
    """Wait until the standby has replayed everything before `lsn`.

    `SourceUnavailable` when `stop` is set meanwhile and after `timeout` seconds (`REPLAY_SECONDS`); `SourceError` where
    the server is no standby.
    """
    limit = REPLAY_SECONDS if timeout is None else timeout
    deadline = time.monotonic() + limit
    stop = stop or threading.Event()
    with connect(config, application="trucker replay") as connection:
        while True:
            replayed = _replayed(connection)
            if replayed >= lsn:
                return
            if time.monotonic() > deadline:
                raise _behind(config, replayed, lsn, limit)
            if stop.wait(0.02):
                raise SourceUnavailable(f"connection {config.name}: stopped while waiting for the standby")


@translated("reading the primary's position")
def committed_lsn(primary: PgConnection) -> Lsn:
    """A position behind everything committed by now, on disk or not (`synchronous_commit = off`).

    The end of what has been written may lie past a page's header, where nothing is to be replayed, so that it
    is only waited for to be flushed, and not for long; the end of what is on disk is what counts.
    """
    deadline = time.monotonic() + FLUSH_SECONDS
    written: Lsn | None = None
    while True:
        row = primary.execute(_WRITTEN).fetchone()
        assert row is not None
        written = written or Lsn.parse(row[0])
        flushed = Lsn.parse(row[1])
        if flushed >= written or time.monotonic() > deadline:
            return flushed
        time.sleep(0.01)


@translated("reading the standby's position")
def _replayed(connection: PgConnection) -> Lsn:
    row = connection.execute(_REPLAY).fetchone()
    assert row is not None
    if not row[1]:
        raise promoted()
    return Lsn.parse(row[0])


def _behind(config: PostgresConnection, replayed: Lsn, lsn: Lsn, seconds: float) -> SourceUnavailable:
    return SourceUnavailable(
        f"connection {config.name}: the standby {config.host}:{config.port} has replayed up to {replayed},"
        f" {lsn - replayed} bytes short of {lsn}, after {seconds:.0f} s",
        remedy="check on the standby whether it is connected (SELECT * FROM pg_stat_wal_receiver), paused "
        "(SELECT pg_wal_replay_resume()) or delayed (recovery_min_apply_delay, a long query); then run again",
        code="TRK261",
    )


@contextmanager
def slot_in_the_making(config: PostgresConnection) -> Iterator[_Guards]:
    """What a slot needs while it is made on a standby. Ask the guards to `vouch` for its snapshot.

    The standby is `config`'s replica; or `config` itself, and then its primary cannot be made to log a snapshot.
    """
    with ExitStack() as stack:
        guards = stack.enter_context(_Guards(config.replica or config))
        if config.replica is not None:
            stack.enter_context(_thread("running transactions", lambda done: _prod(config, done)))
        stack.enter_context(_thread("guards", guards.take_turns))
        yield guards


class Unguarded(SourceUnavailable):
    """Rows that a snapshot on the standby shows may have been removed before it was taken."""

    code = "TRK262"


class _Guards:
    """Sessions on the standby, one relieving the other, that hold the rows a snapshot in the making will show.

    A session that began before the standby had replayed the consistent point, and lives still, has held them all. It
    may go when recovery has moved on once more: if recovery was waiting for it, to remove such a row, it has looked
    whom to wait for before the new snapshot was there, and would not look again.
    """

    def __init__(self, config: PostgresConnection) -> None:
        self._config = config
        self._turn = threading.Lock()
        self._sessions: list[tuple[Lsn, PgConnection]] = []
        self._seconds = GUARD_SECONDS

    @translated("guarding a snapshot on the standby")
    def __enter__(self) -> _Guards:
        began, connection = self._session()
        self._sessions = [(began, connection)]
        if connection.execute("select current_setting('hot_standby_feedback')").fetchone() != ("on",):
            self._seconds = HASTY_GUARD_SECONDS
        return self

    def __exit__(self, *_: object) -> None:
        for _began, connection in self._sessions:
            connection.close()

    def take_turns(self, done: threading.Event) -> None:
        """Relieve the elder of two guards, now and then until `done`."""
        while not done.wait(self._seconds):
            try:
                fresh = self._session()
            except TruckerError as error:
                log.debug("no new guard", extra=error.facts())
                continue
            with self._turn:
                *elders, younger = self._sessions
                self._sessions = [younger, fresh]
            for _, connection in elders:
                connection.close()

    def vouch(self, lsn: Lsn) -> None:
        """`Unguarded` unless every row that is to be seen at the consistent point `lsn` has been held."""
        with self._turn:
            old_enough = [connection for began, connection in self._sessions if began <= lsn]
            if any(_moves_on(connection, self._seconds) for connection in old_enough):
                return
        raise Unguarded(
            f"connection {self._config.name}: recovery on the standby may have removed rows that the snapshot needs",
            remedy="none needed: a new snapshot is taken; to prevent this, set hot_standby_feedback = on on "
            "the standby",
        )

    @translated("guarding a snapshot on the standby")
    def _session(self) -> tuple[Lsn, PgConnection]:
        """A transaction with a snapshot, and how far the standby was right after that was taken."""
        connection = connect(self._config, application="trucker guard")
        try:
            connection.execute("begin isolation level repeatable read read only")
            return _replayed(connection), connection
        except BaseException:
            connection.close()
            raise


def _moves_on(guard: PgConnection, seconds: float) -> bool:
    """Whether recovery goes on, or has nothing to do, while this guard lives; False also where it ended the guard."""
    deadline = time.monotonic() + seconds
    first: Lsn | None = None
    try:
        while time.monotonic() < deadline:
            row = guard.execute(_PENDING).fetchone()
            assert row is not None
            received, replayed = (Lsn.parse(text) if text else None for text in row)
            first = first or replayed
            if replayed is None or first is None:
                return False
            if replayed > first or (received is not None and replayed >= received):
                # Asked once more: in the moment of the answer the guard was there still.
                guard.execute("select 1")
                return True
            time.sleep(0.005)
    except psycopg.Error:
        return False
    return False


def _prod(primary: PostgresConnection, done: threading.Event) -> None:
    """Have the primary write down its running transactions, ever less often, until `done`."""
    pause = _FIRST_PROD
    while not done.is_set():
        try:
            with connect(primary, application="trucker standby snapshot") as connection:
                while not done.is_set():
                    connection.execute("select pg_log_standby_snapshot()")
                    done.wait(pause)
                    pause = min(pause * 2, _LAST_PROD)
        except errors.InsufficientPrivilege:
            log.warning(
                "creating a slot waits until the primary logs its running transactions, which may take minutes",
                extra={"remedy": grant(primary)},
            )
            return
        except (psycopg.Error, TruckerError):
            done.wait(_LAST_PROD)


def grant(primary: PostgresConnection) -> str:
    """What lets the role ask for a record of the running transactions."""
    user = sql.Identifier(primary.user).as_string()
    return f"run on the primary: GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO {user}"


@contextmanager
def _thread(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work(done)` beside; `done` is set at the end and the thread waited for."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=[done], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
