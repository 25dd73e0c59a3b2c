"""What PostgreSQL's errors mean to trucker.

A server's message, detail and context may quote a row's data, so none of them is passed on (I10): the SQLSTATE, what
it is called, and the names of table, column and constraint are. For the same reason errors are raised `from None`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg

from trucker.adapters.postgres import PostgresConnection
from trucker.errors import DataError, SinkError, SinkRefused, SinkUnavailable, TruckFailed
from trucker.pg.listening import Silent
from trucker.sinks.target import Target
from trucker.table import TableId, quote_identifier

# Connection lost, out of resources, shutting down, serialisation, deadlock, lock or statement timeout, and
# "read-only": a server that has just become, or not yet ceased to be, a standby.
_PASSING: Final = re.compile(r"08|53|57P|40001|40P01|55P03|57014|25006")
_STAGED_COLUMN: Final = re.compile(r"column c(\d+)\b")
_COPIED_COLUMN: Final = re.compile(r"COPY .*?, line \d+, column (.*)", re.DOTALL)
# Cardinality violation, data exception, integrity constraint violation.
_OF_DATA: Final = ("21", "22", "23")
_CAMEL: Final = re.compile(r"(?<!^)(?=[A-Z])")

# What libpq says, in English at least, when trying again will not help. Anything else may pass.
_REFUSED: Final = (
    (r"password authentication failed|no password supplied|empty password", "the password is not accepted", "pass"),
    (r'database ".*" does not exist', "the database does not exist", "database"),
    (r'role ".*" (does not exist|is not permitted to log in)', "the user does not exist or may not log in", "user"),
    (
        r"requires a valid client certificate|alert certificate required",
        "the server requires a client certificate",
        "ssl",
    ),
    (r"no pg_hba\.conf entry|pg_hba\.conf rejects", "pg_hba.conf does not accept this user from this machine", "user"),
    (r"permission denied for database", "the user may not connect to this database", "user"),
    (r"server does not support SSL", "the server does not support TLS", "ssl"),
    (r"(?i)certificate|SSL error|sslmode|private key file", "TLS could not be set up", "ssl"),
)

# Where TLS is not even tried.
_PLAIN: Final = (
    r"no pg_hba\.conf entry.*(no encryption|SSL off)",
    "the server does not accept the user without TLS",
    "ssl",
)


def passing(error: psycopg.Error) -> bool:
    """Whether the same work may succeed later."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return _PASSING.match(error.sqlstate) is not None


def of_data(error: psycopg.Error) -> bool:
    """Whether the server refused the data of a row."""
    return (error.sqlstate or "")[:2] in _OF_DATA


def cannot_connect(config: PostgresConnection, error: psycopg.Error) -> SinkError:
    """Why there is no connection. libpq's words name host and user, never a password."""
    reason = " ".join(str(error).split())
    where = config.place
    plain = (_PLAIN,) if config.ssl.mode == "disable" else ()
    for pattern, meaning, setting in (*plain, *_REFUSED):
        if re.search(pattern, reason):
            return SinkRefused(
                f"{where}: {meaning} (user {config.user}, database {config.database})",
                remedy=f"check `{setting}` of connection {config.name}",
                code="TRK403",
            )
    remedy = f"check `host` and `port` of connection {config.name}, and that the server runs and listens there"
    if re.search(r"too many (clients|connections)|remaining connection truck_tables", reason):
        remedy = "raise max_connections on the server or the role's limit, or end idle connections; a run retries"
    return SinkUnavailable(f"{where}: cannot be reached: {reason}", remedy=remedy)


def explain(
    error: psycopg.Error,
    where: str,
    *,
    table: TableId | None = None,
    columns: Sequence[str] = (),
    copied: Sequence[str] = (),
) -> SinkError:
    """A failed statement. `columns` are those that staging calls c0, c1, …; `copied` keep their names."""
    if passing(error):
        return SinkUnavailable(f"{where}: {called(error)}", remedy="check the server and the network; a run retries")
    diag = error.diag
    staged = _STAGED_COLUMN.search(diag.context or "") if columns else None
    column = diag.column_name or (columns[int(staged[1])] if staged and int(staged[1]) < len(columns) else None)
    column = column or _copied_column(diag.context or "", copied)
    named = (("column", column), ("constraint", diag.constraint_name), ("table", _other(diag.table_name, table)))
    parts = [where, f": {called(error)}", *(f", {kind} {name}" for kind, name in named if name)]
    message, remedy, code = "".join(parts), _remedy(error, table, column), _code(error)
    if not of_data(error):
        return SinkError(message, remedy=remedy, code=code)
    state, constraint = error.sqlstate or "", diag.constraint_name
    return DataError(message, remedy=remedy, code=code, sqlstate=state, constraint=constraint, column=column)


@contextmanager
def blaming(target: Target, columns: Sequence[str] = ()) -> Iterator[None]:
    """Permanent errors inside the block become `TruckFailed` of the target's truck."""
    try:
        yield
    except psycopg.Error as error:
        if passing(error):
            raise
        reason = explain(error, f"table {target.table}", table=target.table, columns=columns)
        raise TruckFailed(target.truck, reason, target.source.table) from None
    except SinkUnavailable:
        raise
    except SinkError as error:
        raise TruckFailed(target.truck, error, target.source.table) from None


def _copied_column(context: str, names: Sequence[str]) -> str | None:
    """The column that COPY stopped at. Its name is followed by the value, so the name is looked up among `names`."""
    match = _COPIED_COLUMN.match(context)
    rest = match[1] if match else ""
    return max((name for name in names if rest == name or rest.startswith(f"{name}:")), key=len, default=None)


def called(error: psycopg.Error) -> str:
    """The kind of error, in words, without the server's own."""
    if isinstance(error, Silent):
        return str(error)
    words = _CAMEL.sub(" ", type(error).__name__).lower()
    return f"{words} (SQLSTATE {error.sqlstate})" if error.sqlstate else "connection lost"


def _other(name: str | None, table: TableId | None) -> str | None:
    return None if table and name == table.name else name


def _code(error: psycopg.Error) -> str:
    state = error.sqlstate or ""
    if state == "42501":
        return "TRK404"
    return {"22": "TRK405", "23": "TRK406"}.get(state[:2], "TRK400")


def _remedy(error: psycopg.Error, table: TableId | None, column: str | None) -> str:
    state = error.sqlstate or ""
    name = table.quoted if table else "the table"
    of = quote_identifier(column) if column else "…"
    if state == "42501":
        return (
            f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {name} TO the connection's user, or make it the owner"
        )
    if state == "23502":
        return f"ALTER TABLE {name} ALTER COLUMN {of} DROP NOT NULL"
    if state == "23505":
        return "drop the destination's additional unique constraint, or make it DEFERRABLE INITIALLY DEFERRED"
    if state == "23503":
        if not error.diag.table_name or not error.diag.constraint_name:
            return "make the destination's foreign key DEFERRABLE INITIALLY DEFERRED and replicate both tables"
        refers = TableId(error.diag.schema_name or "public", error.diag.table_name).quoted
        constraint = quote_identifier(error.diag.constraint_name)
        return f"run: ALTER TABLE {refers} ALTER CONSTRAINT {constraint} DEFERRABLE INITIALLY DEFERRED  (and replicate \
both tables), or drop it"
    if state[:2] == "23":
        return "drop the destination's constraint, or widen it"
    if state[:2] == "22":
        return (
            f"give the destination's column the source's type: ALTER TABLE {name} ALTER COLUMN {of} TYPE …; or set "
            f"output.columns.{column or '…'}.unfit to write text or NULL"
        )
    if state in ("42P01", "42703", "3F000"):
        return "restart trucker, which creates what is missing at the destination"
    return "read the log of the destination server, which has the statement and the full message"
