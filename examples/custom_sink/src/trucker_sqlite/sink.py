"""The sink: what SQLite adds to `SqlSink`, which stages changes and publishes them in one transaction.

Trucker's own tables (`trucker_positions`, `trucker_tables`, `trucker_dead_letters`) are written in the transaction that
writes the data, so a crash leaves both or neither.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar

from trucker.abilities import Abilities
from trucker.errors import DataError, SinkError, SinkUnavailable, TruckerError
from trucker.finding import Finding, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Phase, TruckState
from trucker.sinks.letters import Row
from trucker.sinks.sql.dialect import Dialect
from trucker.sinks.sql.examination import examine_targets
from trucker.sinks.sql.sql_sink import SqlSink
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.table import TableId
from trucker_sqlite.adapter import SQLITE, SqliteConnection
from trucker_sqlite.table import Table, has_rows, prepare_table

# Another program holds the file, or its disk does not answer: the same may work later.
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_PROTOCOL")


# The kinds of constraint that a row may break, by SQLite's name of the error, as PostgreSQL's codes.
_CONSTRAINTS = {"NOTNULL": "23502", "CHECK": "23514", "FOREIGNKEY": "23503", "UNIQUE": "23505", "PRIMARYKEY": "23505"}


class SqliteDialect(Dialect[sqlite3.Connection]):
    """Trucker's own tables have names instead of a schema: `trucker_positions`."""

    text: ClassVar[str] = "TEXT"
    instant: ClassVar[str] = "TEXT"
    now: ClassVar[str] = "CURRENT_TIMESTAMP"
    letter_number: ClassVar[str] = "INTEGER PRIMARY KEY AUTOINCREMENT"

    def run(
        self, transaction: sqlite3.Connection, statement: str, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        return transaction.execute(statement, values).fetchall()

    def name(self, transaction: sqlite3.Connection, table: str) -> str:
        return f"trucker_{table}"

    def tables(self, transaction: sqlite3.Connection) -> frozenset[str]:
        rows = transaction.execute("SELECT name FROM sqlite_master WHERE name LIKE 'trucker\\_%' ESCAPE '\\'")
        return frozenset(name.removeprefix("trucker_") for (name,) in rows)

    def new_number(self, transaction: sqlite3.Connection) -> str:
        return "NULL"


class SqliteSink(SqlSink[sqlite3.Connection]):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    name: ClassVar[str] = "sqlite"
    abilities: ClassVar[Abilities] = SQLITE.abilities
    keeps_letters: ClassVar[bool] = True
    has_savepoints: ClassVar[bool] = True

    def __init__(self, connection: SqliteConnection, workspace: Workspace) -> None:
        super().__init__(SqliteDialect(), workspace, str(connection.path))
        self._connection = connection
        self._database: sqlite3.Connection | None = None

    # -- before a run: nothing is created or changed ----------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Whether the file can be read, or made."""
        subject, path = f"connection {self._connection.name}", self._connection.path
        try:
            self.stored()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{path} can be opened" if path.exists() else f"{path} will be created")]

    def stored(self) -> Mapping[str, TruckState]:
        if not self._connection.path.exists():
            return {}
        with self._explaining("reading"), closing(self._connect("ro")) as database:
            return self.ledger_tables.read(database).states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """Tables that are to be copied must be empty, unless their rows are trucker's."""
        if not self._connection.path.exists():
            return
        with self._explaining("reading"), closing(self._connect("ro")) as database:
            yield from examine_targets(
                targets,
                due,
                lambda: self.ledger_tables.read(database),
                lambda target: True,
                lambda table: not has_rows(database, table),
            )

    # -- a run ------------------------------------------------------------------------------------------------------

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)  # refuses output.sql
        with self.transaction() as database:
            entry = self.load(database).entries.get(target.truck_table)
            filled = entry is not None and entry.phase is not Phase.COPYING and entry.target == target.table
            missing = prepare_table(Table(database, target), filled=filled and not target.stale)
            self.reshape_letters(database, target)
            return missing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explaining("using"):
            database = self._opened_file()
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def is_empty(self, transaction: sqlite3.Connection, table: TableId) -> bool:
        return not has_rows(transaction, table)

    def empty(self, transaction: sqlite3.Connection, target: Target) -> None:
        Table(transaction, target).clear()

    def apply(self, transaction: sqlite3.Connection, load: StagedLoad) -> None:
        table = Table(transaction, load.target)
        try:
            for rows in load.rows_by_round():
                table.apply(rows)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            # The message of SQLite may hold values; its name of the error does not.
            kind = error.sqlite_errorname.removeprefix("SQLITE_CONSTRAINT_")
            raise DataError(
                f"table {load.target.table}: SQLite refuses a row ({error.sqlite_errorname})",
                remedy="compare the table's columns and constraints with the source's",
                sqlstate=_CONSTRAINTS.get(kind, "22000"),
            ) from None

    def count_letters(self) -> Mapping[str, int]:
        if not self._connection.path.exists():
            return {}
        with self._explaining("reading"), closing(self._connect("ro")) as database:
            return self.letter_table.count(database)

    def current_row(self, transaction: sqlite3.Connection, target: Target, key: Row) -> Row | None:
        row = Table(transaction, target).find([key[name] for name in target.source.key])
        return row and {name: None if row[name] is None else str(row[name]) for name in target.source.names}

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- SQLite -----------------------------------------------------------------------------------------------------

    def _opened_file(self) -> sqlite3.Connection:
        if self._database is None:
            self._connection.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = self._connect("rwc")
            self._database.execute("PRAGMA journal_mode = WAL")  # readers do not wait for commits
        return self._database

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._connection.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self._connection.lock_timeout,
            isolation_level=None,  # transactions begin and end where we say
            check_same_thread=False,  # trucker's threads use a sink in turn
        )

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        """SQLite's errors as trucker's, without their text, which may hold values of rows."""
        what = f"connection {self._connection.name}: {doing} {self._connection.path} failed"
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            if name.startswith(_PASSING):
                raise SinkUnavailable(f"{what} ({name})", remedy="end the program that holds the file") from None
            raise SinkError(f"{what} ({name})", remedy=f"look at {self._connection.path} with sqlite3") from None
        except OSError as error:
            raise SinkUnavailable(f"{what}: {error.strerror or error}") from error
