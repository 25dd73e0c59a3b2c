"""Whether a standby can be read from: `trucker check` for `replica_host`. Creates and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError, TruckerError
from trucker.finding import Finding, Level
from trucker.pg.connection import PgConnection
from trucker.postgres.capabilities import ServerFeatures
from trucker.postgres.connect import connect, translated
from trucker.postgres.replication.stream import promoted
from trucker.postgres.slot import PLUGIN, current_lsn, find_slot, identify
from trucker.postgres.standby import REPLAY_SECONDS, grant
from trucker.source.slot import SystemIdentity

_SETTINGS = """
    select name, setting from pg_settings
     where name in ('wal_level', 'hot_standby_feedback', 'primary_slot_name', 'recovery_min_apply_delay')"""
_MAY_PROD = "select has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')"
_FAR_BEHIND = 256 << 20
_CONFLICTS = ("rows_removed", "conflict")


def check_standby(
    primary: PostgresConnection, writer: PgConnection, standby: PostgresConnection, reader: PgConnection
) -> Iterator[Finding]:
    """Findings about the standby, where `reader` leads, of the primary, where `writer` leads."""
    where = standby_name(standby)
    version = ServerFeatures.of(reader)
    try:
        version.require(
            "standby_decoding", "the standby cannot be read from", "remove replica_host, or upgrade both servers"
        )
        _require_relation(standby, identify(writer), reader)
    except SourceError as error:
        yield Finding(Level.ERROR, where, error.message, error.remedy, error.code)
        return
    yield Finding(Level.OK, where, f"connected to PostgreSQL {version} as {standby.user}, a standby of the primary")
    yield from _settings(where, reader)
    yield from _lag(where, writer, reader)
    yield from _prodding(primary, writer)


def standby_name(standby: PostgresConnection) -> str:
    """The subject of findings about it."""
    return f"{standby.name} (standby {standby.host}:{standby.port})"


def check_slots(
    primary: PostgresConnection, writer: PgConnection, reader: PgConnection, slot: str
) -> Iterator[Finding]:
    """Whether the project's slot is where it should be, on the standby, and nowhere else."""
    on_primary, on_standby = find_slot(writer, slot), find_slot(reader, slot)
    if on_primary is None or on_primary.plugin != PLUGIN:
        return
    if on_standby is None or on_standby.synced:
        yield Finding(
            Level.ERROR,
            primary.name,
            f"replication slot {slot} is on the primary: the project ran without replica_host before",
            "remove replica_host; or run: trucker reset  and then trucker run, which copies the tables again",
            "TRK232",
        )
    else:
        yield Finding(
            Level.WARNING,
            primary.name,
            f"replication slot {slot} is on the primary too, where nothing reads it and it retains WAL",
            f"run on the primary: SELECT pg_drop_replication_slot('{slot}')",
            "TRK232",
        )


def _require_relation(standby: PostgresConnection, primary: SystemIdentity, reader: PgConnection) -> None:
    """`SourceError` unless this is a standby, of this primary, in this database, and on its timeline (I11)."""
    if not _scalar(reader, "select pg_is_in_recovery()"):
        raise promoted()
    identity = identify(reader)
    if identity.system_identifier != primary.system_identifier:
        raise SourceError(
            f"the server at replica_host (system {identity.system_identifier}) is not a standby of the server at "
            f"host (system {primary.system_identifier})",
            remedy=f"set replica_host of connection {standby.name} to a standby of the server at host",
            code="TRK260",
        )
    if identity.database != primary.database:
        raise SourceError(
            f"replica_database is {identity.database}, but database is {primary.database}",
            remedy="name the same database on both, or remove replica_database",
            code="TRK260",
        )
    timeline = _timeline(standby)
    if timeline is not None and timeline > primary.timeline:
        raise SourceError(
            f"the standby follows timeline {timeline}, the server at host is on {primary.timeline}: another "
            "server was promoted, and the standby follows it",
            remedy=f"set `host` of connection {standby.name} to the promoted server",
            code="TRK260",
        )


def _timeline(standby: PostgresConnection) -> int | None:
    """The timeline being replayed; pg_control_checkpoint() would tell that of some while ago."""
    try:
        with closing(connect(standby, application="trucker check", replication=True)) as connection:
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
            return int(row[1]) if row else None
    except TruckerError:
        return None  # that there is no replication connection is another check's to report


def _settings(where: str, reader: PgConnection) -> Iterator[Finding]:
    settings = dict(reader.execute(_SETTINGS).fetchall())
    if settings["wal_level"] != "logical":
        yield Finding(
            Level.ERROR,
            where,
            f"wal_level is {settings['wal_level']} on the standby; logical is needed there as well",
            "run on the standby: ALTER SYSTEM SET wal_level = 'logical'  and restart it",
            "TRK233",
        )
    if settings["hot_standby_feedback"] != "on":
        yield Finding(
            Level.WARNING,
            where,
            "hot_standby_feedback is off: a vacuum on the primary can cancel copies and invalidate the slot",
            "run on the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()",
            "TRK263",
        )
    elif not settings["primary_slot_name"]:
        yield Finding(
            Level.WARNING,
            where,
            "primary_slot_name is not set: while the standby is disconnected hot_standby_feedback has no "
            "effect, and a vacuum on the primary can invalidate the slot",
            "run on the primary: SELECT pg_create_physical_replication_slot('standby')"
            "  and on the standby: ALTER SYSTEM SET primary_slot_name = 'standby'; SELECT pg_reload_conf()",
            "TRK263",
        )
    delay = int(settings["recovery_min_apply_delay"]) / 1000
    if delay >= REPLAY_SECONDS:
        yield Finding(
            Level.ERROR,
            where,
            f"recovery_min_apply_delay is {delay:.0f} s; a run waits at most {REPLAY_SECONDS:.0f} s for the"
            " standby to replay the publication",
            "set replica_host to another standby, or lower recovery_min_apply_delay",
            "TRK261",
        )


def _lag(where: str, writer: PgConnection, reader: PgConnection) -> Iterator[Finding]:
    if _scalar(reader, "select pg_is_wal_replay_paused()"):
        yield Finding(
            Level.ERROR,
            where,
            "replay is paused on the standby",
            "run on the standby: SELECT pg_wal_replay_resume()",
            "TRK261",
        )
        return
    behind = max(0, current_lsn(writer) - current_lsn(reader))
    if behind > _FAR_BEHIND:
        yield Finding(
            Level.WARNING,
            where,
            f"the standby is {behind >> 20} MB behind the primary",
            "check on the standby: SELECT * FROM pg_stat_wal_receiver",
            "TRK261",
        )
    else:
        yield Finding(Level.OK, where, f"the standby is {behind} bytes behind the primary")


def _prodding(primary: PostgresConnection, writer: PgConnection) -> Iterator[Finding]:
    if not _scalar(writer, _MAY_PROD):
        yield Finding(
            Level.WARNING,
            primary.name,
            f"user {primary.user} may not call pg_log_standby_snapshot(): creating a slot on the standby waits "
            "for the primary's next checkpoint or background writer, which may take minutes",
            grant(primary),
            "TRK220",
        )


@translated("checking the standby")
def _scalar(connection: PgConnection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


def prevention(invalidation: str | None) -> str:
    """How to keep a slot from being lost for this reason again; the end of a remedy."""
    if invalidation and invalidation.startswith(_CONFLICTS):
        return "; set hot_standby_feedback = on and primary_slot_name on the standby, to prevent this"
    return ""
