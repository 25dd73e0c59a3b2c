"""What `trucker check` asks a destination, changing nothing there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import psycopg

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SinkError, TruckerError
from trucker.finding import Finding, Level
from trucker.pg.connection import PgConnection
from trucker.sinks.batch import TruckState
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.ddl.examine import examine as examined
from trucker.sinks.postgres.ddl.unique_indexes import INDEXES, UniqueIndex
from trucker.sinks.postgres.failure import explain
from trucker.sinks.postgres.session import Session, session
from trucker.sinks.postgres.state_tables import OLDEST
from trucker.sinks.target import Target
from trucker.table import Key, TableId, quote_identifier


def check(config: PostgresConnection) -> list[Finding]:
    """Reachable, new enough, no standby, writable."""
    subject = f"connection {config.name}"
    try:
        with session(config) as lent:
            return [_version(lent, subject), *_writable(lent, subject)]
    except SinkError as error:
        return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
    except psycopg.Error as error:
        reason = explain(error, subject)
        return [Finding(Level.ERROR, subject, reason.message, reason.remedy, reason.code)]


def _version(lent: Session, subject: str) -> Finding:
    major = lent.connection.info.server_version // 10_000
    if major < OLDEST:
        remedy = f"use PostgreSQL {OLDEST} or newer"
        return Finding(Level.ERROR, subject, f"PostgreSQL {major} is too old", remedy, "TRK407")
    return Finding(Level.OK, subject, f"reachable, PostgreSQL {major}")


def _writable(lent: Session, subject: str) -> list[Finding]:
    row = lent.run(
        """select pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
            has_database_privilege(current_database(), 'create'),
            n.oid is not null, coalesce(has_schema_privilege(n.oid, 'usage, create'), false)
                and coalesce(has_schema_privilege(n.oid, 'create'), false)
        from (select to_regnamespace('trucker')::oid as oid) n"""
    ).fetchone()
    assert row is not None
    standby, read_only, may_create, exists, may_use = row
    info = lent.connection.info
    user, database = quote_identifier(info.user), quote_identifier(info.dbname)
    if standby:
        return [Finding(Level.ERROR, subject, "the server is a standby", "set `host` to the primary", "TRK407")]
    if read_only:
        remedy = f"run at the destination: ALTER ROLE {user} SET default_transaction_read_only = off"
        return [Finding(Level.ERROR, subject, f"transactions of {info.user} are read-only", remedy, "TRK404")]
    if exists and not may_use:
        remedy = f"run at the destination: GRANT USAGE, CREATE ON SCHEMA trucker TO {user}"
        return [Finding(Level.ERROR, subject, f"{info.user} may not use schema trucker", remedy, "TRK404")]
    if not exists and not may_create:
        remedy = f"run at the destination: GRANT CREATE ON DATABASE {database} TO {user}"
        return [Finding(Level.ERROR, subject, f"{info.user} may not create schema trucker", remedy, "TRK404")]
    return [Finding(Level.OK, subject, "writable")]


def stored(config: PostgresConnection, project: str) -> Mapping[str, TruckState]:
    """What the destination stores of the project's trucks."""
    try:
        with session(config) as lent:
            return state_tables.read(lent, project).states()
    except psycopg.Error as error:
        raise explain(error, f"connection {config.name}, reading positions") from None


def examine(
    config: PostgresConnection, project: str, targets: Sequence[Target], due: Collection[TableId]
) -> list[tuple[Target, TruckerError]]:
    """See `Examinable.examine`."""
    try:
        with session(config) as lent:
            return list(examined(lent, project, targets, due))
    except psycopg.Error as error:
        raise explain(error, f"connection {config.name}, reading its tables") from None


def unique_columns(config: PostgresConnection, table: TableId) -> list[tuple[str, ...]]:
    """The columns of each unique index of a table, which need not be there. Of one over expressions, what they use."""
    subject = f"connection {config.name}"
    try:
        with session(config) as lent:
            row = lent.run("select to_regclass($1::text)::oid", table.quoted).fetchone()
            oid = row[0] if row else None
            if oid is None:
                return []
            indexes = [UniqueIndex.of(*each) for each in lent.run(INDEXES, oid)]
    except psycopg.Error as error:
        raise explain(error, subject) from None
    return [index.names if index.plain else tuple(sorted(index.columns)) for index in indexes]


def select_keys(connection: PgConnection, target: Target, where: str) -> Iterator[Key]:
    """The keys of the rows of the target's table that meet a condition."""
    columns = ", ".join(f"{quote_identifier(name)}::text" for name in target.source.key)
    query = f"copy (select {columns} from {target.table.quoted} where ({where}\n)) to stdout"
    with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
        yield from copy.rows()
