"""The sink: what SQLite adds to `TransactionalSink`, which stages changes and publishes them in one transaction.

The ledger (positions, and the state of each table) is a row of JSON in the table `trucker_ledger`. It is written in the
transaction that writes the data, so a crash leaves both or neither.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import ClassVar

from trucker.abilities import Abilities
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.finding import Finding, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Phase, TruckState
from trucker.sinks.ledger import Ledger, Plan, foreign_rows
from trucker.sinks.ledger_file import ledger_from_json, ledger_to_json
from trucker.sinks.target import Target
from trucker.sinks.transactional import TransactionalSink
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.table import TableId
from trucker_sqlite.adapter import SQLITE, SqliteConnection
from trucker_sqlite.table import Table, has_rows, prepare_table

_MAKE = "CREATE TABLE IF NOT EXISTS trucker_ledger (project TEXT PRIMARY KEY, content TEXT NOT NULL) STRICT"
# Another program holds the file, or its disk does not answer: the same may work later.
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_PROTOCOL")


class SqliteSink(TransactionalSink[sqlite3.Connection]):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    name: ClassVar[str] = "sqlite"
    abilities: ClassVar[Abilities] = SQLITE.abilities

    def __init__(self, connection: SqliteConnection, workspace: Workspace) -> None:
        super().__init__(workspace)
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
            return self.load(database).states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """Tables that are to be copied must be empty, unless their rows are ours."""
        if not self._connection.path.exists():
            return
        with self._explaining("reading"), closing(self._connect("ro")) as database:
            ledger = self.load(database)
            for target in targets:
                if (
                    target.source.table in due
                    and target.truck_table not in ledger.entries
                    and has_rows(database, target.table)
                ):
                    yield target, foreign_rows(target).reason

    # -- a run ------------------------------------------------------------------------------------------------------

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)  # refuses output.sql
        with self.transaction() as database:
            entry = self.load(database).entries.get(target.truck_table)
            filled = entry is not None and entry.phase is not Phase.COPYING and entry.target == target.table
            return prepare_table(Table(database, target), filled=filled and not target.stale)

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

    def load(self, transaction: sqlite3.Connection) -> Ledger:
        there = transaction.execute("SELECT 1 FROM sqlite_master WHERE name = 'trucker_ledger'").fetchone()
        query = "SELECT content FROM trucker_ledger WHERE project = ?"
        row = transaction.execute(query, [self._project]).fetchone() if there else None
        return ledger_from_json(json.loads(row[0])) if row else Ledger()

    def store(self, transaction: sqlite3.Connection, ledger: Ledger, plan: Plan) -> None:
        transaction.execute(_MAKE)
        content = json.dumps(ledger_to_json(ledger))
        transaction.execute("INSERT OR REPLACE INTO trucker_ledger VALUES (?, ?)", [self._project, content])

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
            raise SinkError(
                f"table {load.target.table}: SQLite refuses a row ({error.sqlite_errorname})",
                remedy="compare the table's columns and constraints with the source's",
            ) from None

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
