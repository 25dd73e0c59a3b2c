"""output.sql at a PostgreSQL destination: checked before anything is run, then run inside the batch's transaction.

A statement goes to the server by the extended protocol, which takes one at a time: what the splitting of the file
should ever miss is a syntax error there, not a second statement. The file has the role's own search path; all other
settings are trucker's, and are put back before trucker's own statements follow.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, TransactionStatus

from trucker.config.sql.sql_lexer import NAME, tokens
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.sinks import output_sql
from trucker.sinks.batch import Receipt
from trucker.sinks.delivery import Load
from trucker.sinks.output_sql import Piece, Share
from trucker.sinks.postgres.copy import shadow_table
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.failure import called, passing
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.output_stage import StagedRows, copy_rows_in, describe_rows, rows_columns
from trucker.sinks.postgres.stage.stage_store import Describe, Temporaries, stage_name
from trucker.sinks.sql.merge_steps import gone
from trucker.sinks.sql.output_statements import OutputStatements
from trucker.sinks.target import Target
from trucker.table import quote_identifier

_SHOWN_WORDS: Final = 3
# Statements by their first words, a longer beginning before a shorter. They end the transaction, or outlive it.
_REFUSED: Final = frozenset(
    {
        *("begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare", "execute"),
        *("deallocate", "discard", "reset", "listen", "unlisten", "load", "copy", "vacuum", "checkpoint"),
    }
)
_SETTABLE: Final = frozenset({("set", "local"), ("set", "constraints")})
_NEVER_SET: Final = frozenset({"role", "session", "transaction"})
# After these the file may speak of what is not there yet.
_MAKING: Final = frozenset({"create", "alter", "drop", "do", "call", "import"})
# Messages of these classes speak of names and of the statement, never of a row: syntax and access, features not there,
# constraints (their values are in the detail), transactions, limits, objects in the wrong state. Of data exceptions two
# do: a text that is too long, a division by zero.
_ABOUT_NAMES: Final = ("42", "0A", "21", "23", "25", "26", "2B", "2D", "34", "3B", "3D", "3F", "54", "55")
_WITHOUT_DATA: Final = frozenset({"22001", "22012"})
_NOT_FOUND: Final = (
    "create it first, or write its schema in front: without it PostgreSQL searches the role's search_path"
)
_HINTS: Final = {
    **dict.fromkeys(("42P01", "42883", "42704", "3F000"), _NOT_FOUND),
    "42501": "grant the privilege to the user of the connection",
    "21000": "make the rows unique first, with group by or distinct on",
}
# So many rows are worth an index and a look at them.
_MANY: Final = 1_000


def prepare(session: Session, target: Target) -> DestinationTable:
    """Check the file against the database, running none of it; the rows' columns as they will be staged."""
    rows = describe_rows(session, target)
    with session.connection.transaction(force_rollback=True):
        session.run(f"create temporary table t_check ({rows_columns(rows)}) on commit drop")
        PostgresOutputs(session, lambda _, target: describe_rows(session, target), None).check(
            target, "pg_temp.t_check"
        )
    return rows


def refuse_statement(piece: Piece) -> None:
    """Raise for a statement that must not be part of the batch's transaction."""
    words = _words(piece.text)
    setting = words[0] == "set" and (words[:2] not in _SETTABLE or (words[2:3] and words[2] in _NEVER_SET))
    if words[0] in _REFUSED or setting:
        raise output_sql.not_allowed(piece, " ".join(words[:2] if setting else words[:1]).upper())


def _words(statement: str) -> tuple[str, ...]:
    """The first words, in small letters; at least one, which may be empty."""
    words: list[str] = []
    for token in tokens(statement):
        if token.kind == NAME:
            words.append(token.name)
        if len(words) == _SHOWN_WORDS:
            break
    return tuple(words) or ("",)


class PostgresOutputs(OutputStatements):
    """Runs files over what was staged, inside the transaction that the session is in."""

    def __init__(self, session: Session, describe: Describe, timeout: float | None) -> None:
        self._session = session
        self._describe = describe
        self._timeout = timeout
        self._temporaries = Temporaries(session)

    def settings(self) -> AbstractContextManager[None]:
        return _role_settings(self._session, self._timeout)

    def judge(self, target: Target, piece: Piece) -> bool:
        refuse_statement(piece)
        return _words(piece.text)[0] in _MAKING

    def plan(self, target: Target, piece: Piece) -> None:
        try:
            _ask(self._session, partial(self._session.connection.pgconn.send_prepare, b"", piece.text.encode()))
        except psycopg.Error as error:
            if passing(error):
                raise
            raise _failed(target, piece, error, checked=True) from None

    def release(self, shares: Sequence[Share]) -> None:
        """Temporary tables are the session's."""
        if self._temporaries.full:
            self._temporaries.empty()

    # -- what was staged ----------------------------------------------------------------------------------------------

    def share(self, number: int, target: Target, receipt: Receipt) -> Share:
        staged: StagedRows = receipt.staged
        session = self._session
        if staged.table:
            name = stage_name(staged.table)
        else:
            name = self._temporaries.take(rows_columns(self._describe(session, target)))
        try:
            if staged.text:
                copy_rows_in(session, target, name, [staged.text])
            counts = session.run(f"select n, k, count(*) from {name} group by n, k order by n, k").fetchall()
        except psycopg.errors.UndefinedTable:
            raise gone(target.source.table) from None
        if sum(rows for _, _, rows in counts) != staged.rows:
            raise gone(target.source.table)
        if staged.rows >= _MANY and len(counts) > 1:
            # A temporary table is the session's, and has the index from the last time.
            index = quote_identifier(f"{staged.table or name.removeprefix('pg_temp.')}_n")
            session.run(f"create index if not exists {index} on {name} (n, k)")
            session.run(f"analyze {name} (n, k)")
        return Share(target, name, counts)

    # -- statements ---------------------------------------------------------------------------------------------------

    def execute(self, target: Target, piece: Piece) -> None:
        refuse_statement(piece)
        pgconn = self._session.connection.pgconn
        began = time.monotonic()
        try:
            _ask(self._session, partial(pgconn.send_query_params, piece.text.encode(), None))
        except psycopg.Error as error:
            late = self._timeout is not None and time.monotonic() - began >= self._timeout
            if error.sqlstate == "57014" and late and self._timeout is not None:
                raise output_sql.timed_out(piece, self._timeout) from None
            if passing(error):
                raise SinkUnavailable(
                    f"{piece.place()}: {called(error)}", remedy="check the server and the network; a run retries"
                ) from None
            raise _failed(target, piece, error, checked=False) from None
        if pgconn.transaction_status != TransactionStatus.INTRANS:
            raise output_sql.ended(piece)


class CopiedOutputs(PostgresOutputs):
    """Runs files over the rows of a complete copy, from the tables they wait in."""

    def __init__(self, session: Session, project: str, describe: Describe, timeout: float | None) -> None:
        super().__init__(session, describe, timeout)
        self._project = project

    def parts(self, loads: Sequence[Load]) -> Iterator[Sequence[Share]]:
        by_part: dict[int, list[Share]] = defaultdict(list)
        for load in loads:
            expected = {receipt.part: receipt.rows for receipt in load.parts if receipt.rows}
            for part, share in self._waiting(load.target, expected):
                by_part[part].append(share)
        for part in sorted(by_part):
            yield by_part[part]
        shadow_table.end(self._session, self._project, [load.target.truck_table for load in loads])

    def _waiting(self, target: Target, expected: dict[int, int]) -> Iterator[tuple[int, Share]]:
        session = self._session
        name = shadow_table.find(session, self._project, (target.truck, target.source.table))
        if name is None:
            raise gone(target.source.table)
        counts: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for part, number, code, rows in session.run(f"select p, n, k, count(*) from {name} group by p, n, k"):
            counts[part].append((number, code, rows))
        if {part: sum(rows for _, _, rows in part_counts) for part, part_counts in counts.items()} != expected:
            raise gone(target.source.table)
        if len(expected) > 1:
            session.run(f"create index on {name} (p)")
            session.run(f"analyze {name} (p)")
        for part, part_counts in counts.items():
            yield part, Share(target, name, part_counts, f"p = {part}" if len(expected) > 1 else "")


def _ask(session: Session, send: Callable[[], None]) -> None:
    """Send something to the server and wait for the answer, as psycopg does; raises its errors."""
    connection = session.connection
    with connection.lock:
        send()
        results = connection.wait(generators.execute(connection.pgconn))
    if results and results[-1].status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(results[-1])


@contextmanager
def _role_settings(session: Session, timeout: float | None) -> Iterator[None]:
    """The role's search path and the truck's timeout, until the block ends well; then all of trucker's settings, for
    the session too: no statement may change them for the next batch. The transaction must still be the same then."""
    milliseconds = round(timeout * 1000) if timeout else 0
    with session.connection.pipeline():
        session.run("set local search_path to default")
        before = session.run(
            "select pg_catalog.pg_current_xact_id()::text, pg_catalog.set_config('statement_timeout', $1, true)",
            f"{max(1, milliseconds)}ms" if timeout else "0",
        )
    began = before.fetchone()
    yield
    places = ", ".join(
        f"pg_catalog.set_config(${2 * i + 1}, ${2 * i + 2}, false)" for i in range(len(session.settings))
    )
    values = [str(word) for setting in session.settings.items() for word in setting]
    after = session.run(f"select pg_catalog.pg_current_xact_id()::text, {places}", *values).fetchone()
    if began is None or after is None or began[0] != after[0]:
        raise SinkError(
            "output.sql ended the transaction of the batch",
            remedy="remove the statement that ends it (a function or procedure that commits?), correct the "
            "destination, then run `trucker reset --truck NAME`",
            code=output_sql.NOT_ALLOWED,
        )


def _failed(target: Target, piece: Piece, error: psycopg.Error, *, checked: bool) -> TruckerError:
    """Why a statement failed, and where. When it is only checked there is no row whose data a message could have."""
    diag = error.diag
    offset = int(diag.statement_position) - 1 if diag.statement_position else 0
    state = error.sqlstate or ""
    about_names = state[:2] in _ABOUT_NAMES or state in _WITHOUT_DATA
    # What a function says may be made of anything.
    shown = checked or (about_names and not diag.context and not diag.internal_query)
    message = f"{diag.message_primary} (SQLSTATE {state})" if shown and diag.message_primary else called(error)
    if not shown:
        named = (("column", diag.column_name), ("constraint", diag.constraint_name), ("table", diag.table_name))
        message += "".join(f", {kind} {name}" for kind, name in named if name)
    hint = _HINTS.get(state, "")
    if state == "42703":
        hint = output_sql.meant(target, piece.text, offset) or (diag.message_hint or "" if shown else "")
    return output_sql.failed(piece, message, offset=offset, hint=hint)
