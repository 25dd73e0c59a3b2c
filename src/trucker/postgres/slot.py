"""The replication slot: its name, its life, and who is at it.

A slot is created over a replication connection, which also exports the snapshot that belongs to the slot's
consistent point; the snapshot can be imported as long as that connection stays open and idle.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.rows import dict_row

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError, TruckerError
from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.connect import connect, query_error, translated
from trucker.postgres.standby import Unguarded, await_replay, committed_lsn, slot_in_the_making
from trucker.source.slot import SlotInfo, SystemIdentity
from trucker.source.snapshot import ExportedSnapshot

log = logging.getLogger("trucker.slot")

PLUGIN = "pgoutput"
PATIENCE = 5.0
"""Seconds after which the log says whom a slot in the making waits for."""

STANDBY_TRIES = 5
"""How often a slot is made on a standby before recovery is said to stand in the way."""

_PREFIX = "trucker_"
_LIMIT = 63

# Columns that came with later versions are taken from the row as JSON, where they are simply absent before.
_FIND = """
    select s.plugin, s.database, s.temporary, s.active_pid, s.confirmed_flush_lsn::text, s.restart_lsn::text,
           s.wal_status, s.safe_wal_size, to_jsonb(s) ->> 'invalidation_reason' as invalidation_reason,
           coalesce((to_jsonb(s) ->> 'conflicting')::boolean, false) as conflicting,
           coalesce((to_jsonb(s) ->> 'failover')::boolean, false) as failover,
           coalesce((to_jsonb(s) ->> 'synced')::boolean, false) as synced
      from pg_replication_slots s
     where s.slot_name = %s"""

_HOLDER = """
    select s.active_pid, a.application_name, a.usename, host(a.client_addr) as client, a.backend_start
      from pg_replication_slots s left join pg_stat_activity a on a.pid = s.active_pid
     where s.slot_name = %s"""

_IDENTIFY = """
    select (select system_identifier from pg_control_system()),
           case when pg_is_in_recovery() then (select timeline_id from pg_control_checkpoint())
                else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int end,
           current_database()"""

_OPEN = """
    select pid, application_name, usename, extract(epoch from now() - xact_start)::int,
           wait_event_type = 'IPC' and wait_event = 'SyncRep'
      from pg_stat_activity
     where backend_xid is not null and pid <> pg_backend_pid()
     order by xact_start"""

_PREPARED = "select gid, owner, extract(epoch from now() - prepared)::int from pg_prepared_xacts order by prepared"

_CURRENT_LSN = """
    select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end::text"""


def object_name(unique_id: str, connection_name: str) -> str:
    """The slot's and the publication's name for a project's connection: `trucker_<unique_id>_<connection>`.

    PostgreSQL allows slots lower-case letters, digits and underscores, 63 of them. Where something is lost by
    that, or the two parts could be taken for two others, a hash of both keeps different projects apart.
    """
    parts = [re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in (unique_id, connection_name)]
    plain = f"{_PREFIX}{parts[0]}_{parts[1]}"
    faithful = (unique_id, connection_name) == (*parts,) and all(parts) and "_" not in unique_id
    if faithful and len(plain) <= _LIMIT:
        return plain
    digest = hashlib.sha256(f"{len(unique_id)}:{unique_id}:{connection_name}".encode()).hexdigest()[:10]
    return f"{plain[: _LIMIT - 11].rstrip('_')}_{digest}"


@translated("looking for the replication slot")
def find_slot(connection: PgConnection, name: str) -> SlotInfo | None:
    """The slot of that name, or None."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_FIND, [name]).fetchone()
    if row is None:
        return None
    return SlotInfo(
        name,
        row["plugin"],
        row["database"],
        row["temporary"],
        row["active_pid"],
        _lsn(row["confirmed_flush_lsn"]),
        _lsn(row["restart_lsn"]),
        row["wal_status"],
        row["safe_wal_size"],
        _invalidation(row),
        row["failover"],
        row["synced"],
    )


def _invalidation(row: dict[str, Any]) -> str | None:
    if row["invalidation_reason"]:
        return str(row["invalidation_reason"])
    if row["conflicting"]:
        return "conflict with recovery on the standby"
    return "wal_removed" if row["wal_status"] == "lost" else None


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text else None


def create_slot(
    config: PostgresConnection,
    name: str,
    *,
    temporary: bool = False,
    failover: bool = False,
    stop: threading.Event | None = None,
) -> ExportedSnapshot:
    """Create a logical slot and export its snapshot; on the standby where `config` names one.

    The server waits for the transactions that are open now to end, which may take as long as they do. A standby must
    first have replayed what the primary has by now, the publication above all; setting `stop` ends that wait.
    `failover` is left out where the server cannot do it (before 17, on a standby, for a temporary slot).
    """
    if config.replica is not None:
        with connect(config, application=f"trucker slot {name}") as primary:
            await_replay(config.replica, committed_lsn(primary), stop)
    with _patience(config, name):
        for _ in range(STANDBY_TRIES - 1):
            try:
                return _create(config, name, temporary, failover)
            except Unguarded:
                if stop is not None and stop.is_set():
                    raise
        return _create(config, name, temporary, failover)


def _create(config: PostgresConnection, name: str, temporary: bool, failover: bool) -> ExportedSnapshot:
    reads = config.replica or config
    connection = connect(reads, application=f"trucker slot {name}", replication=True)
    try:
        version = ServerFeatures.of(connection)
        if not _in_recovery(connection):
            command = _creation(version, name, temporary, failover and not temporary and version.failover_slots)
            return _exported(connection, command)
        with slot_in_the_making(config) as guards:
            exported = _exported(connection, _creation(version, name, temporary, failover=False), standby=True)
            guards.vouch(exported.lsn)
            return exported
    except psycopg.Error as error:
        connection.close()
        raise _creation_error(reads, name, error) from None
    except BaseException as error:
        connection.close()
        if isinstance(error, Unguarded) and not temporary:
            with connect(reads, application=f"trucker slot {name}") as ordinary:
                drop_slot(ordinary, name)
        raise


def _exported(connection: PgConnection, command: str, *, standby: bool = False) -> ExportedSnapshot:
    row = connection.execute(command.encode()).fetchone()
    assert row is not None
    return ExportedSnapshot(connection, row[0], Lsn.parse(row[1]), row[2], standby=standby)


@contextmanager
def _patience(config: PostgresConnection, name: str) -> Iterator[None]:
    """Say in the log whom a slot in the making waits for, when it takes long."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PATIENCE):
            with suppress(TruckerError), connect(config, application="trucker slot watch") as connection:
                waiting = open_transactions(connection)
                log.warning(
                    "creating a slot waits for open transactions", extra={"slot": name, "transactions": waiting}
                )

    watcher = threading.Thread(target=watch, name=f"slot {name}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@translated("looking for open transactions")
def open_transactions(connection: PgConnection) -> list[str]:
    """Who has written in a transaction that is still open, oldest first; a new slot has to wait for all of them.

    One that has committed counts until it is visible: it may wait for a synchronous standby.
    """
    sessions = [
        f'pid {pid}, application "{application or "unknown"}", user {user}, open for {age} s'
        + (", committed and waiting for a synchronous standby" if waits else "")
        for pid, application, user, age, waits in connection.execute(_OPEN)
    ]
    prepared = [
        f"prepared transaction {gid} of {owner}, {age} s old (COMMIT PREPARED or ROLLBACK PREPARED ends it)"
        for gid, owner, age in connection.execute(_PREPARED)
    ]
    return [*sessions, *prepared]


def _creation(version: ServerFeatures, name: str, temporary: bool, failover: bool) -> str:
    kind = " TEMPORARY" if temporary else ""
    start = f"CREATE_REPLICATION_SLOT {_quoted(name)}{kind} LOGICAL {PLUGIN}"
    if version.major < 15:
        return f"{start} EXPORT_SNAPSHOT"
    return f"{start} (SNAPSHOT 'export'{', FAILOVER true' if failover else ''})"


def _quoted(name: str) -> str:
    # Not `change.quote_identifier`: capture uses this module and must not load Arrow for it.
    return sql.Identifier(name).as_string()


def _in_recovery(connection: PgConnection) -> bool:
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return bool(row and row[0])


def _creation_error(config: PostgresConnection, name: str, error: psycopg.Error) -> SourceError:
    where = f"connection {config.name}: replication slot {name} cannot be created"
    reason = error.diag.message_primary or str(error)
    match error:
        case errors.DuplicateObject():
            remedy, code = f"the slot already exists; run: SELECT pg_drop_replication_slot('{name}')", "TRK231"
        case errors.ConfigurationLimitExceeded():
            remedy, code = "raise max_replication_slots and restart the server, or drop an unused slot", "TRK230"
        case errors.InsufficientPrivilege():
            remedy, code = f"run: ALTER ROLE {_quoted(config.user)} REPLICATION", "TRK220"
        case errors.ObjectNotInPrerequisiteState():
            remedy, code = "run: ALTER SYSTEM SET wal_level = 'logical'  and restart the server", "TRK233"
        case _:
            return query_error(where, error)
    return SourceError(f"{where}: {reason}", remedy=remedy, code=code)


@translated("dropping the replication slot")
def drop_slot(connection: PgConnection, name: str) -> bool:
    """Drop the slot; False where there is none. `SourceError` says who holds it where it is in use."""
    try:
        connection.execute("select pg_drop_replication_slot(%s)", [name])
    except errors.UndefinedObject:
        return False
    except errors.ObjectInUse:
        raise SourceError(
            f"replication slot {name} is in use by {who_holds(connection, name)}",
            remedy="stop the process that uses the slot, then run the command again",
            code="TRK231",
        ) from None
    except errors.InsufficientPrivilege as error:
        user = _quoted(connection.info.user)
        raise SourceError(
            f"replication slot {name} cannot be dropped: {error.diag.message_primary}",
            remedy=f"run: ALTER ROLE {user} REPLICATION",
            code="TRK220",
        ) from None
    return True


@translated("reading who uses the replication slot")
def who_holds(connection: PgConnection, slot: str) -> str:
    """Who reads from the slot, for messages; "nobody" where no session does."""
    row = connection.execute(_HOLDER, [slot]).fetchone()
    if row is None or row[0] is None:
        return "nobody"
    pid, application, user, client, since = row
    parts = [f"pid {pid}"]
    if application:
        parts.append(f'application "{application}"')
    if user:
        parts.append(f"user {user}")
    parts.append(f"from {client or 'a local or hidden client'}")
    if since:
        parts.append(f"since {since:%Y-%m-%d %H:%M:%S} UTC")
    return ", ".join(parts)


def in_use(connection: PgConnection, slot: str, source: str) -> SourceError:
    """The refusal of a slot that something else reads from; it names who that is."""
    return SourceError(
        f"replication slot {slot} of {source} is in use by {who_holds(connection, slot)}",
        remedy="stop that process; if it is another project, give this project another unique_id",
        code="TRK231",
    )


@translated("identifying the server")
def identify(connection: PgConnection) -> SystemIdentity:
    """Which server and database a connection leads to, be it an ordinary or a replication one."""
    row = connection.execute(_IDENTIFY.encode()).fetchone()
    assert row is not None
    return SystemIdentity(str(row[0]), int(row[1]), str(row[2]))


@translated("reading the server's position")
def current_lsn(connection: PgConnection) -> Lsn:
    """The end of what the server has flushed, or on a standby has replayed."""
    row = connection.execute(_CURRENT_LSN.encode()).fetchone()
    return Lsn.parse(row[0]) if row and row[0] else Lsn(0)


@translated("writing a watermark")
def watermark(connection: PgConnection) -> Lsn:
    """A position after the commit of everything visible until now, which the stream reaches also on an idle server.

    On a standby it is what has been replayed. Where the role may not write messages, the stream reaches the position
    with the next record that is written. `connection` is in autocommit mode; its `synchronous_commit` is changed.
    """
    recovery = connection.execute("select pg_is_in_recovery()").fetchone()
    if recovery == (True,):
        return current_lsn(connection)
    try:
        # The commit flushes the message, without which it is not sent, and has capture note how far the stream is. No
        # standby is waited for.
        connection.execute("set synchronous_commit = local")
        row = connection.execute(b"select pg_logical_emit_message(true, 'trucker', '')::text").fetchone()
    except errors.InsufficientPrivilege:
        row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


@translated("writing a heartbeat")
def emit_heartbeat(connection: PgConnection, content: str = "") -> bool:
    """Write a message into the log, so that an idle slot moves on; False where that is not permitted."""
    try:
        connection.execute("select pg_logical_emit_message(false, 'trucker', %s::text)", [content])
    except (
        errors.InsufficientPrivilege,
        errors.ReadOnlySqlTransaction,
        errors.ObjectNotInPrerequisiteState,
        errors.UndefinedFunction,
    ):
        return False
    return True
