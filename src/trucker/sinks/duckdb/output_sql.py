"""output.sql in a DuckDB file: checked before anything is run, then run inside the batch's transaction.

DuckDB's own parser says what kind a statement is; those that could end the transaction or outlive it are refused. Its
errors come as JSON while the file runs: that has the place, and no line of the statement in the message.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import duckdb

from trucker.errors import SinkError, TruckerError
from trucker.rows import OPERATION
from trucker.sinks import output_sql
from trucker.sinks.batch import Receipt
from trucker.sinks.duckdb.apply import Applier, scan
from trucker.sinks.duckdb.session import run
from trucker.sinks.duckdb.table import DuckDBColumn, Table, constraint_of, refuse_capitals
from trucker.sinks.duckdb.types import duckdb_type, from_text
from trucker.sinks.output_sql import Piece, Share
from trucker.sinks.spool import Spool
from trucker.sinks.sql.output_statements import OutputStatements
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import StagedLoad

_Kind: Final = duckdb.StatementType
_CHECKED: Final = frozenset({_Kind.SELECT, _Kind.INSERT, _Kind.UPDATE, _Kind.DELETE, _Kind.MERGE_INTO})
# After these the file may speak of what is not there yet.
_MAKING: Final = frozenset({_Kind.CREATE, _Kind.ALTER, _Kind.DROP, _Kind.CREATE_FUNC})
_ALLOWED: Final = _CHECKED | _MAKING | {_Kind.CALL, _Kind.EXPLAIN, _Kind.RELATION}
_EXPLAIN: Final = "EXPLAIN "
_CHECK: Final = "output_check"
# The messages of these speak of names and of the statement, never of a row.
_ABOUT_NAMES: Final = (
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.DependencyException,
    duckdb.NotImplementedException,
    duckdb.PermissionException,
)
_PASSING: Final = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.OutOfMemoryException,
    duckdb.FatalException,
)


def prepare(connection: duckdb.DuckDBPyConnection, spool: Spool, target: Target) -> None:
    """Check the file against the database, running none of it. The caller owns the transaction."""
    output_sql.refuse_names(target)
    refuse_capitals(target, (*target.source.names, OPERATION))
    types = ", ".join(f"c{number} {kind}" for number, kind in enumerate(_types(target)))
    run(connection, f"CREATE TEMP TABLE {_CHECK} (n BIGINT, k UTINYINT, {types})")
    try:
        DuckDBOutputs(connection, spool, None).check(target, f"temp.{_CHECK}")
    finally:
        with suppress(duckdb.Error):
            run(connection, f"DROP TABLE IF EXISTS temp.{_CHECK}")


def _kind(connection: duckdb.DuckDBPyConnection, target: Target, piece: Piece) -> duckdb.StatementType:
    """What the statement is; raises for one that must not be part of the batch's transaction."""
    try:
        statements = connection.extract_statements(piece.text)
    except duckdb.Error as error:
        raise _failed(target, piece, error, checked=False) from None
    for statement in statements:
        if statement.type not in _ALLOWED:
            raise output_sql.not_allowed(piece, piece.text.split(maxsplit=1)[0].upper()[:20])
    if not statements:
        raise output_sql.failed(piece, "this is not a statement")
    return statements[0].type


# -- running, in the driver -------------------------------------------------------------------------------------------


class DuckDBOutputs(OutputStatements):
    """Runs files over what was staged, inside the transaction that the connection is in."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, spool: Spool, timeout: float | None) -> None:
        self._connection = connection
        self._spool = spool
        self._timeout = timeout
        self._transaction = run(connection, "SELECT txid_current()")
        self._kinds: dict[str, duckdb.StatementType] = {}

    def settings(self) -> AbstractContextManager[None]:
        return _json_errors(self._connection)

    def judge(self, target: Target, piece: Piece) -> bool:
        text = piece.statement.text
        if text not in self._kinds:
            self._kinds[text] = _kind(self._connection, target, piece)
        return self._kinds[text] in _MAKING

    def plan(self, target: Target, piece: Piece) -> None:
        if self._kinds[piece.statement.text] not in _CHECKED or piece.text[:8].lower() == "truncate":
            return
        try:
            run(self._connection, f"{_EXPLAIN}{piece.text}")
        except _PASSING:
            raise
        except duckdb.Error as error:
            raise _failed(target, piece, error, checked=True) from None

    def release(self, shares: Sequence[Share]) -> None:
        for share in shares:
            run(self._connection, f"DROP TABLE {share.staged}")

    def share(self, number: int, target: Target, receipt: Receipt) -> Share:
        name, types, staged = f"output_{number}", _types(target), receipt.staged.rows
        cells = (
            f"{from_text(f'n{i}', kind, target.unfit_of(column))} AS c{i}"
            for i, (column, kind) in enumerate(zip(target.source.names, types, strict=True))
        )
        create = f"CREATE TEMP TABLE {name} AS SELECT n, k, {', '.join(cells)} FROM incoming"
        try:
            scan(self._connection, lambda: self._spool.read(staged), create)
        except (duckdb.DataError, duckdb.InvalidInputException):
            raise self._unfit(target, types, receipt) from None
        counts = run(self._connection, f"SELECT n, k, count(*) FROM temp.{name} GROUP BY n, k ORDER BY n, k")
        return Share(target, f"temp.{name}", counts)

    def _unfit(self, target: Target, types: Sequence[str], receipt: Receipt) -> TruckerError:
        """The column whose value does not fit: found with another cursor, because the transaction has failed."""
        load = StagedLoad(target, [receipt.staged], lambda: self._spool.read(receipt.staged.rows))
        table = Table("", dict(zip(target.source.names, map(DuckDBColumn, types), strict=True)))
        with self._connection.cursor() as cursor:
            unfit = Applier(cursor, table, load).unfit()
        if not unfit:
            return SinkError(
                f"a value of {target.source.table} does not fit its column type in output.sql", code="TRK447"
            )
        reason = unfit[0][1]
        return SinkError(
            reason.message.replace(f"table {target.table}", "the rows"), remedy=reason.remedy, code=reason.code
        )

    def execute(self, target: Target, piece: Piece) -> None:
        self.judge(target, piece)
        try:
            with self._interrupting(piece):
                run(self._connection, piece.text)
        except _PASSING:
            raise
        except duckdb.Error as error:
            raise _failed(target, piece, error, checked=False) from None
        if run(self._connection, "SELECT txid_current()") != self._transaction:
            raise output_sql.ended(piece)

    @contextmanager
    def _interrupting(self, piece: Piece) -> Iterator[None]:
        """A statement that takes longer than the connection lets it is interrupted."""
        if self._timeout is None:
            yield
            return
        lock, state = threading.Lock(), {"done": False, "late": False}

        def interrupt() -> None:
            with lock:
                if not state["done"]:
                    state["late"] = True
                    self._connection.interrupt()

        timer = threading.Timer(self._timeout, interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.InterruptException:
            if not state["late"]:
                raise
            raise output_sql.timed_out(piece, self._timeout) from None
        finally:
            with lock:
                state["done"] = True
            timer.cancel()


def _types(target: Target) -> list[str]:
    return [duckdb_type(column, target.unfit_of(column.name)) for column in target.source.columns]


@contextmanager
def _json_errors(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    run(connection, "SET errors_as_json = true")
    try:
        yield
    finally:
        with suppress(duckdb.Error):
            run(connection, "SET errors_as_json = false")


def _failed(target: Target, piece: Piece, error: duckdb.Error, *, checked: bool) -> TruckerError:
    """Why a statement failed, and where. When it is only checked there is no row whose data a message could have."""
    about = _parsed(error)
    offset = _offset(piece, about, checked)
    if not checked and not isinstance(error, _ABOUT_NAMES):
        what = type(error).__name__
        if isinstance(error, duckdb.ConstraintException):
            what = f"a row violates {constraint_of(str(error))[1]}"
        return output_sql.failed(piece, what, offset=offset)
    message, _, more = str(about.get("exception_message", type(error).__name__)).partition("\n")
    hint = output_sql.meant(target, piece.text, offset) if "column" in message.lower() else ""
    # DuckDB guesses among all tables that it has, trucker's own among them.
    guess = "" if _CHECK in more or "trucker" in more else " ".join(more.split())
    return output_sql.failed(piece, message, offset=offset, hint=hint or guess)


def _parsed(error: duckdb.Error) -> dict[str, Any]:
    text = str(error)
    with suppress(ValueError):
        fields = json.loads(text[text.index("{") :])
        if isinstance(fields, dict):
            return fields
    return {"exception_message": text.partition("\n")[0]}


def _offset(piece: Piece, about: dict[str, Any], checked: bool) -> int:
    """Where in the statement; DuckDB counts bytes, and what was put in front of it."""
    with suppress(ValueError):
        place = int(about.get("position", "")) - (len(_EXPLAIN) if checked else 0)
        return len(piece.text.encode()[: max(place, 0)].decode(errors="ignore"))
    return 0
