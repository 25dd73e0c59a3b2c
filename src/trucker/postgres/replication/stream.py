"""The replication connection: the only socket loop.

    stream = ReplicationStream.connect(conninfo, slot, publication, wake)
    place = stream.inspect()            which server, where the slot is; refuses what cannot be streamed
    stream.start(lsn)
    while …:
        stream.receive(take, budget)    hand on what has come
        stream.acknowledge(lsn)
        stream.wait(seconds)            until more has come, or `wake` is readable

Imports neither Arrow nor the configuration: capture is a small process. Errors that may pass are `SourceUnavailable`,
all others `SourceError`. They are told apart by SQLSTATE and by the catalog, not by message texts, which the server may
translate.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from trucker.errors import SourceError, SourceUnavailable
from trucker.lsn import ZERO, Lsn
from trucker.pg.messages import Messages
from trucker.postgres.replication.protocol import (
    ProtocolError,
    parse_keepalive,
    start_replication,
    status_update,
)
from trucker.postgres.replication.replication_frames import CopyBoth, Ended

_SLOT: Final = """
    select s.plugin, s.database, s.confirmed_flush_lsn, s.wal_status, to_jsonb(s) ->> 'invalidation_reason',
           to_jsonb(s) ->> 'conflicting', s.active_pid, a.application_name, a.usename, host(a.client_addr)
      from pg_catalog.pg_replication_slots s left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
     where s.slot_name = {slot}"""
PUBLICATION: Final = "select 1 from pg_catalog.pg_publication where pubname = {publication}"

# Classes of SQLSTATE that may pass: connection, resources, operator intervention, system, transaction rolled back.
PASSING: Final = ("08", "53", "57", "58", "40")
_FILE_MISSING: Final = "58P01"
_IN_USE: Final = "55006"
_NOT_READY: Final = "55000"
_UNDEFINED: Final = "42704"
_NO_PRIVILEGE: Final = "42501"

# Code and remedy for something that is missing: before the stream it is the slot, in it the publication.
_NO_SLOT: Final = ("TRK230", "run `trucker check`, which shows whether slot and publication exist")
_NO_PUBLICATION: Final = (
    "TRK240",
    (
        "changes made while there was no publication are lost: run `trucker reset`, then `trucker run`, which copies "
        "the tables again"
    ),
)

PROMOTED: Final = (
    "if it is now the primary, set `host` to it and remove the replica keys: trucker continues with its slot; if not, "
    "set replica_host to a standby of `host`, run `trucker reset`, then `trucker run`, which copies the tables again"
)

ResultRow = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Which server this is, how far its WAL goes, where the slot is, and whether the server is a standby."""

    system_identifier: str
    database: str
    flushed: Lsn
    confirmed_flush: Lsn
    standby: bool = False


class Interrupted(Exception):
    """`wake` became readable while connecting."""


class ReplicationStream:
    """See the module. `wal_end` is how far the server says it has sent; `reply_wanted` that it waits for an answer."""

    def __init__(
        self, pgconn: pq.abc.PGconn, slot: str, publication: str, wake: int = -1, silence: float = 60.0
    ) -> None:
        self._pgconn = pgconn
        self._slot = slot
        self._publication = publication
        self._wake = wake
        self._silence = silence
        self._heard = time.monotonic()
        self._asked_at: float | None = None
        self._copy: CopyBoth | None = None
        self.wal_end = ZERO
        self.reply_wanted = False
        self.received = 0

    # -- before the stream ----------------------------------------------------------------------------------------

    @classmethod
    def connect(
        cls,
        conninfo: Mapping[str, str | int],
        slot: str,
        publication: str,
        *,
        wake: int = -1,
        timeout: float = 10.0,
        silence: float = 60.0,
    ) -> Self:
        """Connect; `Interrupted` as soon as the descriptor `wake` is readable.

        A server that is silent for `silence` seconds, though asked for an answer, is taken for lost.
        """
        pgconn = connect_pq({**conninfo, "replication": "database"}, wake, timeout)
        return cls(pgconn, slot, publication, wake, silence)

    @property
    def backend(self) -> int:
        """The server's process at the other end."""
        return self._pgconn.backend_pid

    def inspect(self, lost: int | None = None) -> SourcePlace:
        """Look at server, publication and slot; `SourceError` where they cannot be streamed from.

        `lost` is the server's end of a connection that was given up: if it is still at the slot, it is ended.
        """
        identity = self._query("IDENTIFY_SYSTEM")[0]
        standby = self._query("select pg_catalog.pg_is_in_recovery()")[0][0] == "t"
        if not self._query(PUBLICATION.format(publication=self._quoted(self._publication))):
            if standby:
                raise SourceUnavailable(f'the standby does not have publication "{self._publication}" yet')
            raise SourceError(
                f'publication "{self._publication}" does not exist',
                code="TRK240",
                remedy="restart trucker, which creates the publication; if there were changes in between, they "
                "are lost: run `trucker reset` first",
            )
        confirmed = self._inspect_slot(identity[3], lost)
        return SourcePlace(identity[0] or "", identity[3] or "", Lsn.parse(identity[2] or "0/0"), confirmed, standby)

    def _inspect_slot(self, here: str | None, lost: int | None) -> Lsn:
        rows = self._query(_SLOT.format(slot=self._quoted(self._slot)))
        if not rows:
            raise SourceError(
                f'replication slot "{self._slot}" does not exist',
                code="TRK230",
                remedy="check the slot's name and the server; if the slot was dropped, run `trucker reset`, "
                "then `trucker run`, which copies the tables again",
            )
        plugin, database, confirmed, wal_status, reason, conflicting, pid, application, user, client = rows[0]
        if plugin != "pgoutput" or database != here:
            raise SourceError(
                f'replication slot "{self._slot}" has plugin {plugin} and database {database}, not pgoutput and {here}',
                code="TRK232",
                remedy="name another slot; or, if nothing uses this one, drop it and let trucker create its own",
            )
        if wal_status == "lost" or reason or conflicting == "true" or confirmed is None:
            raise _invalidated(self._slot, reason or ("rows_removed" if conflicting == "true" else "wal_removed"))
        if pid is not None:
            if pid == str(lost):
                self._query(f"select pg_catalog.pg_terminate_backend({lost})")
            who = ", ".join(
                part for part in (f"pid {pid}", application and f'application "{application}"', user, client) if part
            )
            raise slot_in_use(self._slot, who)
        return Lsn.parse(confirmed)

    def start(self, lsn: Lsn) -> None:
        """Begin the stream after `lsn`."""
        result = self._execute(start_replication(self._slot, lsn, self._publication))
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failure(result, _NO_SLOT)
        self._copy = CopyBoth(self._pgconn)
        self._heard = time.monotonic()

    def halt(self) -> None:
        """End the stream, dropping what is on its way; when this returns, the slot is free for another connection."""
        deadline = time.monotonic() + self._silence
        with self._connected():
            self._stream.halt(lambda events: self._await(events, deadline))

    def _await(self, events: int, deadline: float) -> None:
        """Wait for the socket, until the deadline."""
        if time.monotonic() >= deadline:
            raise silence(self._silence)
        _await(self._pgconn, events, self._wake, deadline)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """What goes wrong with the connection inside, as trucker's errors."""
        try:
            yield
        except (psycopg.OperationalError, OSError) as error:
            raise lost(error) from None
        except Ended as ended:
            if not (ended.state or ended.words):
                raise SourceUnavailable("the server ended the stream; it may be shutting down") from None
            raise self._refused(ended.state, ended.words) from None

    @property
    def _stream(self) -> CopyBoth:
        assert self._copy is not None, "not started"
        return self._copy

    # -- the stream -----------------------------------------------------------------------------------------------

    def receive(self, take: Callable[[Messages], None], budget: int) -> bool:
        """Hand every message at hand to `take`, about `budget` bytes at most; whether all has been taken."""
        with self._connected():
            received = self._stream.collect(budget)
        for frame in received.others:
            self._keepalive(frame)
        if received.bytes:
            self.received += received.bytes
            self._heard, self._asked_at = time.monotonic(), None
        for messages in received.messages:
            take(messages)
        return received.drained

    @property
    def heard(self) -> float:
        """When something last came from the server, a keep-alive or data (monotonic)."""
        return self._heard

    def listen(self, now: float) -> bool:
        """Whether the server, silent for a while, is to be asked for an answer; `SourceUnavailable` where it has been
        asked and has not given one.
        """
        if now < self.listens_at:
            return False
        if self._asked_at is not None:
            raise silence(self._silence)
        return True

    @property
    def listens_at(self) -> float:
        """When `listen` has something to say, if nothing comes before."""
        return (self._heard if self._asked_at is None else self._asked_at) + self._silence / 2

    def acknowledge(self, lsn: Lsn, *, ask: bool = False) -> None:
        """Tell the server that everything below `lsn` is durable here; with `ask` it answers at once."""
        self.reply_wanted = False
        self._asked_at = time.monotonic() if ask else self._asked_at
        with self._connected():
            self._stream.send(status_update(lsn, time.time_ns() // 1000, reply=ask))
            self._stream.flush()

    def wait(self, timeout: float, also: int = -1) -> None:
        """Sleep until something has come, `wake` or the descriptor `also` is readable or the time is over."""
        poll = select.poll()
        with self._connected():
            pending = self._stream.flush()
            poll.register(self._stream.fd, select.POLLIN | (select.POLLOUT if pending else 0))
        for other in (self._wake, also):
            if other >= 0:
                poll.register(other, select.POLLIN)
        poll.poll(max(timeout, 0.0) * 1000)

    def close(self) -> None:
        self._pgconn.finish()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _keepalive(self, frame: bytes | memoryview) -> None:
        try:
            keepalive = parse_keepalive(frame)
        except ProtocolError as error:
            raise SourceError(f"the server sent {error}", code="TRK209", remedy="report this as a bug") from None
        self.wal_end = max(self.wal_end, keepalive.wal_end)
        self.reply_wanted |= keepalive.reply

    def _query(self, command: str) -> list[ResultRow]:
        return rows_of(self._execute(command.encode()), self._failure)

    def _execute(self, command: bytes) -> pq.abc.PGresult:
        return execute_pq(self._pgconn, command, wake=self._wake, timeout=self._silence)

    def _quoted(self, text: str) -> str:
        return pq.Escaping(self._pgconn).escape_literal(text.encode()).decode()

    def _failure(self, result: pq.abc.PGresult, undefined: tuple[str, str] = _NO_PUBLICATION) -> SourceError:
        state = field_of(result, pq.DiagnosticField.SQLSTATE)
        return self._refused(state, field_of(result, pq.DiagnosticField.MESSAGE_PRIMARY), undefined)

    def _refused(self, state: str, words: str, undefined: tuple[str, str] = _NO_PUBLICATION) -> SourceError:
        """An error of the server's as one of trucker's. `undefined` is what an object that is not there means."""
        words = words or "the connection was lost"
        if state == _IN_USE:
            return slot_in_use(self._slot, words)
        if not state or (state[:2] in PASSING and state != _FILE_MISSING):
            return SourceUnavailable(f"replication was interrupted: {words}")
        remedies = {
            _FILE_MISSING: (
                "TRK232",
                (
                    "the WAL that the slot needs was removed: run `trucker reset`, then `trucker "
                    "run`, which copies the tables again"
                ),
            ),
            _NOT_READY: (
                "TRK232",
                "run `trucker check`, which shows what is missing; if the slot is lost, run `trucker reset`",
            ),
            _UNDEFINED: undefined,
            _NO_PRIVILEGE: ("TRK220", "run `trucker check`, which shows the missing privilege"),
        }
        code, remedy = remedies.get(state, ("TRK200", "read the server's log, and run `trucker check`"))
        return SourceError(f'replication from slot "{self._slot}" failed: {words} ({state})', code=code, remedy=remedy)


def connect_pq(conninfo: Mapping[str, str | int], wake: int, timeout: float) -> pq.abc.PGconn:
    """A libpq connection, without blocking longer than `timeout`; `Interrupted` when `wake` is readable."""
    pgconn = pq.PGconn.connect_start(make_conninfo("", **conninfo).encode())
    deadline = time.monotonic() + timeout
    try:
        while (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise SourceUnavailable(pgconn.get_error_message())
            if time.monotonic() >= deadline:
                raise SourceUnavailable("connection timeout expired")
            events = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
            _await(pgconn, events, wake, deadline)
        pgconn.nonblocking = 1
        if pgconn.server_version >= 170000:
            execute_pq(pgconn, b"set transaction_timeout = 0", wake=wake, timeout=timeout)
    except BaseException:
        pgconn.finish()
        raise
    return pgconn


def execute_pq(
    pgconn: pq.abc.PGconn, command: bytes, values: Sequence[bytes] | None = None, *, wake: int, timeout: float
) -> pq.abc.PGresult:
    """One command's result; `SourceUnavailable` when there is none within `timeout`, or the connection is lost."""
    try:
        if values is None:  # a replication connection takes no values
            pgconn.send_query(command)
        else:
            pgconn.send_query_params(command, values)
    except psycopg.OperationalError as error:
        raise lost(error) from None
    return result_pq(pgconn, wake=wake, timeout=timeout)


def result_pq(pgconn: pq.abc.PGconn, *, wake: int, timeout: float) -> pq.abc.PGresult:
    """The result of the command that has been sent, as `execute_pq` gives it."""
    deadline = time.monotonic() + timeout
    results: list[pq.abc.PGresult] = []
    try:
        while True:
            unsent = pgconn.flush()
            if not pgconn.is_busy():
                result = pgconn.get_result()
                results += [result] if result is not None else []
                if result is None or result.status == pq.ExecStatus.COPY_BOTH:
                    return results[-1]
                continue
            if time.monotonic() >= deadline:
                raise silence(timeout)
            _await(pgconn, select.POLLIN | (select.POLLOUT if unsent else 0), wake, deadline)
            pgconn.consume_input()
    except psycopg.OperationalError as error:
        raise lost(error) from None


def _await(pgconn: pq.abc.PGconn, events: int, wake: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, events)
    if wake >= 0:
        poll.register(wake, select.POLLIN)
    if any(fd == wake for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
        raise Interrupted


def _invalidated(slot: str, reason: str) -> SourceError:
    """A slot that the server has given up. The reasons are those of pg_replication_slots.invalidation_reason."""
    causes = {
        "rows_removed": (
            "recovery on the standby removed rows that it needs",
            "set hot_standby_feedback = on and primary_slot_name on the standby",
        ),
        "wal_level_insufficient": ("wal_level is below logical on the primary", "set wal_level = logical again"),
        "idle_timeout": ("it was idle for too long", "raise idle_replication_slot_timeout"),
    }
    cause, prevention = causes.get(reason, ("its WAL was removed", "raise max_slot_wal_keep_size"))
    return SourceError(
        f'replication slot "{slot}" was invalidated by the server ({reason}: {cause})',
        code="TRK232",
        remedy=f"{prevention}, then run `trucker reset` and `trucker run`, which copies the tables again",
    )


def promoted() -> SourceError:
    """The standby that is read from takes writes itself now."""
    return SourceError(
        "the server at replica_host is not a standby, or was promoted",
        code="TRK260",
        remedy=PROMOTED,
    )


def slot_in_use(slot: str, who: str) -> SourceUnavailable:
    """Somebody else reads from the slot; after a crash it may be the server's own end of the old connection."""
    return SourceUnavailable(
        f'replication slot "{slot}" is in use: {who}',
        code="TRK231",
        remedy="stop the other process that reads from this slot",
    )


def lost(error: Exception) -> SourceUnavailable:
    return SourceUnavailable(f"the connection to the source was lost: {' '.join(str(error).split())}")


def silence(seconds: float) -> SourceUnavailable:
    """The connection stands, and nothing comes."""
    return SourceUnavailable(
        f"the source has not answered for {seconds:.0f} s",
        remedy="check the network and the proxies in between; a run reconnects",
    )


def rows_of(result: pq.abc.PGresult, failure: Callable[[pq.abc.PGresult], SourceError]) -> list[ResultRow]:
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise failure(result)
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def field_of(result: pq.abc.PGresult, field: pq.DiagnosticField) -> str:
    return _text(result.error_field(field)) or ""
