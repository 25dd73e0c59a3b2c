"""Errors for statements of a truck's SQL file: file and line, the server's message if it holds no data, a remedy.

The server's messages about the text of a statement, before it runs, are shown. Its messages about rows may quote a
value (`invalid input syntax for type integer: "…"`): only the name of the error is shown (I10).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import errors

from trucker.config.problems import nearest
from trucker.config.sql.sql_lexer import BLANK, tokens
from trucker.config.sql.sql_template import RenderedSql
from trucker.errors import ConfigError, Place, SourceError, SourceUnavailable, TruckerError
from trucker.table import quote_identifier

REFUSED: Final = "TRK132"
FAILED: Final = "TRK270"
TOO_MANY: Final = "TRK271"
TOO_LONG: Final = "TRK272"

# SQLSTATEs of transient errors: connection, resources, shutdown, serialization, lock timeout, cancellation, I/O.
_PASSING: Final = re.compile(r"08|53[0-3]|57P|40|55P03|57014|58")
# SQLSTATEs whose messages name objects, privileges and limits, never values.
_ABOUT_NAMES: Final = re.compile(r"0A|25|28|3D|3F|42|53|54|55|57")
_CAMEL: Final = re.compile(r"(?<!^)(?=[A-Z])")


def refused(error: psycopg.Error, sql: RenderedSql, offset: int, columns: Sequence[str], user: str) -> TruckerError:
    """A statement that cannot be prepared. `offset` is where it begins in `sql`, `columns` are those of `r`."""
    reason = error.diag.message_primary or type(error).__name__
    place = _place(error, sql, offset)
    if _may_pass(error):
        return SourceUnavailable(f"{place}: {_named(error)}", remedy="check the server and the network; a run retries")
    return ConfigError(reason, place=place, remedy=_remedy(error, sql, offset, columns, user), code=REFUSED)


def failed(error: psycopg.Error, sql: RenderedSql, offset: int, *, timeout: float | None, took: float) -> SourceError:
    """A statement that failed when it ran, or whose preparation fails by now because the database has changed."""
    place = _place(error, sql, offset)
    if isinstance(error, errors.QueryCanceled) and timeout is not None and took >= timeout:
        return SourceError(
            f"{place}: the statement took longer than {timeout:g} s",
            remedy="make it faster (an index, fewer joins), or raise `timeouts.statement` of the connection",
            code=TOO_LONG,
        )
    if _may_pass(error):
        return SourceUnavailable(f"{place}: {_named(error)}", remedy="check the server and the network; a run retries")
    reason = _named(error)
    if error.diag.message_primary and not error.diag.internal_position and _ABOUT_NAMES.match(error.sqlstate or ""):
        reason = error.diag.message_primary
    remedy = f"correct the SQL or the data that it reads; the SQLSTATE is {error.sqlstate}"
    return SourceError(f"{place}: {reason}", remedy=remedy, code=FAILED)


def too_many(sql: RenderedSql, most: str) -> SourceError:
    return SourceError(
        f"{sql.file.label}: the query returns more than {most} for the rows of one run",
        remedy="check for a join without a condition, or raise `rows_max` in truck.yml",
        code=TOO_MANY,
    )


def _may_pass(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return _PASSING.match(error.sqlstate) is not None


def _place(error: psycopg.Error, sql: RenderedSql, offset: int) -> Place:
    position = error.diag.statement_position
    return sql.place(offset + int(position) - 1) if position else Place(sql.file.label)


def _named(error: psycopg.Error) -> str:
    """The name of the error, `division by zero`, with the table, column and constraint that it concerns."""
    if error.sqlstate is None:
        return "the connection to the server was lost"
    condition = _CAMEL.sub(" ", type(error).__name__).lower()
    diag = error.diag
    named = (("table", diag.table_name), ("column", diag.column_name), ("constraint", diag.constraint_name))
    return "".join([condition, *(f", {kind} {name}" for kind, name in named if name)])


def _remedy(error: psycopg.Error, sql: RenderedSql, offset: int, columns: Sequence[str], user: str) -> str:
    hint = error.diag.message_hint
    match error:
        case errors.UndefinedColumn():
            return _other_column(error, sql, offset, columns, hint)
        case errors.UndefinedTable():
            return "write the schema in front: schema.table; without it PostgreSQL searches the role's search_path"
        case errors.InsufficientPrivilege():
            return hint or f"run: GRANT SELECT ON <the table> TO {quote_identifier(user)}"
        case errors.ReadOnlySqlTransaction():
            return "write a SELECT: the file may only read at the source"
    return hint or "correct the SQL"


def _other_column(error: psycopg.Error, sql: RenderedSql, offset: int, columns: Sequence[str], hint: str | None) -> str:
    if hint:
        return hint
    position = error.diag.statement_position
    name = _name_at(sql.text, offset + int(position) - 1) if position else ""
    suggestion = nearest(name, columns)
    return f'did you mean "{suggestion}"?' if suggestion else f"the columns of r are {', '.join(columns)}"


def _name_at(text: str, offset: int) -> str:
    """The last part of the dotted name at an offset, as PostgreSQL reads it."""
    name, dotted = "", True
    for token in tokens(text[offset:]):
        if token.is_name and dotted:
            name, dotted = token.name, False
        elif token.text == ".":
            dotted = True
        elif token.kind != BLANK:
            break
    return name
