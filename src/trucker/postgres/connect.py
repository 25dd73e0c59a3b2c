"""Connections to the source, all with the same session settings, and what went wrong when there is none.

The settings make PostgreSQL write every value in one way only, whatever the database's or the role's defaults are:
what a snapshot copies and what the stream sends is then the same text. They also keep timeouts meant for an
application from ending a copy, and turn row-level security from silently fewer rows into an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import errors

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import SourceError, SourceRefused, SourceUnavailable
from trucker.pg.listening import Listening
from trucker.pg.text_settings import TEXT_SETTINGS

SESSION_SETTINGS: Mapping[str, str] = {
    **TEXT_SETTINGS,
    # Names of types, tables and functions (regclass and its kin) are qualified unless they are PostgreSQL's own.
    "search_path": "pg_catalog",
}
"""What every connection to a source sets, ordinary and replication alike."""


def connect(
    config: PostgresConnection,
    *,
    application: str,
    replication: bool = False,
    autocommit: bool = True,
    own_sql: bool = False,
) -> Listening:
    """Connect, with `SESSION_SETTINGS`; `replication` speaks the replication protocol too (no parameters then).

    `own_sql` is for statements of the project's author: see `parameters`.

    Raises `SourceUnavailable` for what may pass (refused, timed out, starting up; as `SourceRefused` the password, the
    database, pg_hba.conf and TLS, which may be put right) and `SourceError` for what will not, never with the password
    in it (I10).
    """
    config = config.refreshed()
    try:
        connection = Listening.open(
            config.conninfo(**parameters(config, application, replication=replication, own_sql=own_sql)),
            config.timeouts.silence,
        )
    except psycopg.Error as error:
        raise explain(config, str(error)) from None
    if connection.pooled:
        connection.close()
        raise explain(config, _POOLED)
    connection.autocommit = autocommit
    return connection


def parameters(
    config: PostgresConnection, application: str, *, replication: bool = False, own_sql: bool = False
) -> dict[str, str | int]:
    """libpq parameters beyond the place and the credentials, for `config.conninfo(**…)`.

    An ordinary connection waits for locks as long as `timeouts.lock` says: even asking for a table's size takes one,
    and a table that is being altered is better come back to. Making a slot waits for open transactions, as if for a
    lock, as long as they last.

    With `own_sql` tables are found by the role's own search path, as in any session of its; nothing can be written; and
    a statement may take as long as `timeouts.statement` says.
    """
    lock = "0" if replication else f"{round(config.timeouts.lock * 1000)}ms"
    settings = {**SESSION_SETTINGS, "lock_timeout": lock}
    if own_sql:
        del settings["search_path"]
        settings["default_transaction_read_only"] = "on"
        # A statement runs for a moment, with other constants each time: to compile it takes longer than to run it.
        settings["jit"] = "off"
        settings["statement_timeout"] = f"{round((config.timeouts.statement or 0) * 1000)}ms"
    return {
        "application_name": application,
        "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        **config.patience(),
        **({"replication": "database"} if replication else {}),
    }


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what psycopg raises inside into trucker's errors; `doing` says what was being done. Also a decorator."""
    try:
        yield
    except psycopg.Error as error:
        raise query_error(doing, error) from None


def query_error(doing: str, error: psycopg.Error) -> SourceError:
    """A failed statement as one of trucker's errors.

    PostgreSQL's detail can repeat a row, so that only its primary message is kept (I10).
    """
    reason = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
    match error:
        case errors.LockNotAvailable():
            return SourceUnavailable(
                f"{doing}: a table is locked by another session",
                remedy="end the ALTER TABLE, VACUUM FULL or CREATE INDEX that holds the lock; a run retries",
            )
        case errors.InsufficientPrivilege():
            return SourceError(f"{doing}: {reason}", remedy="run: trucker check", code="TRK220")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return SourceUnavailable(f"{doing}: {reason}", remedy="check the server and the network; a run retries")
    return SourceError(f"{doing}: {reason}", remedy=error.diag.message_hint or "run: trucker check")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failure to connect that will not pass by itself, known by PostgreSQL's or libpq's words."""

    pattern: re.Pattern[str]
    code: str
    message: str
    remedy: str
    plain: bool = False
    """Only where TLS is not even tried."""


_POOLED = "the server process of the connection is not the one that the server reports"
_REFUSALS = (
    _Refusal(
        re.compile(f"unsupported startup parameter|{_POOLED}"),
        "TRK207",
        "a connection pooler answers instead of the server: replication does not work through a pooler",
        "set `host` and `port` of connection {name} to the server itself",
    ),
    _Refusal(
        re.compile(r"password authentication failed|no password supplied|empty password"),
        "TRK202",
        "the password for user {user} is not accepted",
        "check `user` and `pass` of connection {name}; `pass_path` reads the password from a file",
    ),
    _Refusal(
        re.compile(r'database ".*" does not exist'),
        "TRK203",
        'database "{database}" does not exist',
        "check `database` of connection {name}",
    ),
    _Refusal(
        re.compile(r'role ".*" (does not exist|is not permitted to log in)'),
        "TRK202",
        "user {user} does not exist or may not log in",
        "check `user` of connection {name}, or run: CREATE ROLE {user} LOGIN REPLICATION PASSWORD '…'",
    ),
    _Refusal(
        re.compile(r"requires a valid client certificate|alert certificate required"),
        "TRK205",
        "the server requires a client certificate",
        "set `ssl.certificate` and `ssl.key` of connection {name}",
    ),
    _Refusal(
        re.compile(r"no pg_hba\.conf entry.*(no encryption|SSL off)"),
        "TRK205",
        "the server does not accept user {user} in database {database} without TLS",
        "set `ssl: require`, or better `ssl: verify-full`, for connection {name}; if that is refused as well, "
        "add a line to pg_hba.conf",
        plain=True,
    ),
    _Refusal(
        re.compile(r"no pg_hba\.conf entry for replication connection"),
        "TRK204",
        "pg_hba.conf accepts user {user}, but not for physical replication",
        "add to pg_hba.conf: host {database} {user} <address of this machine>/32 scram-sha-256",
    ),
    _Refusal(
        re.compile(r"no pg_hba\.conf entry|pg_hba\.conf rejects"),
        "TRK204",
        "pg_hba.conf does not accept user {user} in database {database} from this machine",
        "add to pg_hba.conf: host {database} {user} <address of this machine>/32 scram-sha-256"
        "  and run: SELECT pg_reload_conf()",
    ),
    _Refusal(
        re.compile(r"permission denied for database"),
        "TRK220",
        "user {user} may not connect to database {database}",
        'run: GRANT CONNECT ON DATABASE "{database}" TO "{user}"',
    ),
    _Refusal(
        re.compile(
            r"must be (superuser or replication role|superuser, or replication role)|to start WAL sender"
            r"|permission denied to start WAL sender"
        ),
        "TRK220",
        "user {user} may not replicate",
        'run: ALTER ROLE "{user}" REPLICATION  (on Amazon RDS: GRANT rds_replication TO "{user}")',
    ),
    _Refusal(
        re.compile(r"server does not support SSL"),
        "TRK205",
        "the server does not support TLS, which `ssl.mode` requires",
        "enable TLS on the server, or set `ssl.mode: prefer` for connection {name}",
    ),
    _Refusal(
        re.compile(r"certificate|SSL error|sslmode|private key file|root.crt", re.IGNORECASE),
        "TRK205",
        "TLS could not be set up with the server",
        "check `ssl` of connection {name}: mode, root_certificate, certificate and key",
    ),
)


def explain(config: PostgresConnection, reason: str) -> SourceError:
    """A libpq connection failure as one of trucker's errors.

    What is not recognised counts as passing: it may be a known failure in another language, and trying again does
    no harm, whereas stopping a pipeline for a server that is only restarting would.
    """
    place = {"name": config.name, "user": config.user, "database": config.database}
    where = config.place
    reason = _brief(reason)
    for refusal in _REFUSALS:
        if refusal.pattern.search(reason) and not (refusal.plain and config.ssl.mode != "disable"):
            kind = SourceError if refusal.code == "TRK207" else SourceRefused
            return kind(
                f"{where}: {refusal.message.format(**place)}: {reason}",
                remedy=refusal.remedy.format(**place),
                code=refusal.code,
            )
    return SourceUnavailable(f"{where}: cannot be reached: {reason}", remedy=_advice(config, reason))


def _advice(config: PostgresConnection, reason: str) -> str:
    if re.search(r"too many (clients|connections)|remaining connection slots|requested standby connections", reason):
        return "raise max_connections or max_wal_senders on the server, or end idle connections"
    if re.search(r"starting up|shutting down|recovery|not yet accept", reason):
        return "wait until the server has started"
    if re.search(r"translate host name|resolve host|Name or service|nodename", reason):
        return f"check `host` of connection {config.name}"
    return f"check `host` and `port` of connection {config.name}, and that the server runs and listens there"


_PREFIX = re.compile(r'^(connection failed: )?connection to server (at|on) .*?" ?(\(.*?\))?(, port \d+)? failed: ')


def _brief(reason: str) -> str:
    """One line, without the place the message names anyway. Neither libpq nor PostgreSQL ever repeats a password."""
    text = " ".join(reason.split())
    return _PREFIX.sub("", text)
