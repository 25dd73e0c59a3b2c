"""The sink: executors stage changes in files, the driver applies them, one transaction per batch.

The ledger (positions, and the state of each table) is a row of JSON in the table `trucker_ledger`. It is written in the
transaction that writes the data, so a crash leaves both or neither.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from trucker.change import TRUNCATE, Changes, CopiedRows, TableId, as_changes
from trucker.errors import SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.finding import Finding, Level
from trucker.sinks.base import Batch, Capabilities, Phase, Receipt, Sink, Target, TruckState, Work, Workspace
from trucker.sinks.ledger import Ledger, foreign_rows
from trucker.sinks.ledger_file import ledger_from_json, ledger_to_json
from trucker.sinks.output_sql import refuse_truncate
from trucker.sinks.spool import Spool, Staged
from trucker_sqlite.adapter import SqliteConnection
from trucker_sqlite.table import Table, prepare_table

_MAKE = "CREATE TABLE IF NOT EXISTS trucker_ledger (project TEXT PRIMARY KEY, content TEXT NOT NULL) STRICT"
# Another program holds the file, or its disk does not answer: the same may work later.
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_PROTOCOL")


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a receipt carries: where the values are, and which of them is the last with a truncate."""

    values: Staged | None
    truncated_at: int | None = None


class SqliteSink(Sink):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    name: ClassVar[str] = "sqlite"
    capabilities: ClassVar[Capabilities] = Capabilities(
        guarantee="exactly once: data and positions in one transaction per batch"
    )

    def __init__(self, connection: SqliteConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
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
            return self._load(database).states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """Tables that are to be copied must be empty, unless their rows are ours."""
        if not self._connection.path.exists():
            return
        with self._explaining("reading"), closing(self._connect("ro")) as database:
            ledger = self._load(database)
            for target in targets:
                filled = (target.truck, target.source.table) in ledger.entries
                if target.source.table in due and not filled and Table(database, target).has_rows():
                    yield target, foreign_rows(target).reason

    # -- a run ------------------------------------------------------------------------------------------------------

    def open(self) -> Mapping[str, TruckState]:
        with self._explaining("opening"):
            if self._database is None:
                self._spool.clear()
                self._connection.path.parent.mkdir(parents=True, exist_ok=True)
                self._database = self._connect("rwc")
                self._database.execute("PRAGMA journal_mode = WAL")  # readers do not wait for commits
            with self._transaction() as database:
                database.execute(_MAKE)
                return self._load(database).states()

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)  # refuses output.sql
        with self._explaining(f"preparing table {target.table}"), self._transaction() as database:
            entry = self._load(database).entries.get((target.truck, target.source.table))
            filled = entry is not None and entry.phase is not Phase.COPYING and entry.target == target.table
            return prepare_table(Table(database, target), filled=filled and not target.stale)

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        """Runs on an executor: hands the values on, one at a time."""
        rows, values, truncated_at = 0, 0, None

        def each() -> Iterator[pa.RecordBatch]:
            nonlocal rows, values, truncated_at
            for value in as_changes(changes):
                if work.target.shared:
                    refuse_truncate(work.target, value)
                if np.any(value.op == TRUNCATE):
                    truncated_at = values
                rows, values = rows + len(value), values + 1
                yield pa.record_batch([pa.array([value.to_ipc()], pa.large_binary())], ["value"])

        staged = self._spool.stage(work, each())
        part = StagedPart(staged, truncated_at)
        return Receipt(work.target.truck, work.target.source.table, work.part, rows, part)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._spool.keep_only(batch, [receipt.staged.values for receipt in receipts])
        with self._explaining("writing"), self._transaction() as database:
            ledger = self._load(database)
            plan = ledger.plan(batch)
            for copy in plan.copies:
                if not copy.ours and Table(database, copy.target).has_rows():
                    raise foreign_rows(copy.target)
            due = [target for target in batch.targets if (target.truck, target.source.table) in plan.apply]
            # A copy replaces what is there, once, unless it adds to rows of other tables.
            kept = {target.table for target in due if (target.truck, target.source.table) in plan.adds}
            for target in due if batch.snapshot else ():
                if target.table not in kept:
                    Table(database, target).clear()
                    kept.add(target.table)
            for target in due:
                self._apply(database, target, receipts)
            self._store(database, ledger.after(plan))
        self._spool.discard(batch)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- steps ------------------------------------------------------------------------------------------------------

    def _apply(self, database: sqlite3.Connection, target: Target, receipts: Sequence[Receipt]) -> None:
        """The target's parts in order, from the last value with a truncate on."""
        mine = [r for r in receipts if (r.truck, r.table) == (target.truck, target.source.table)]
        mine.sort(key=lambda receipt: receipt.part)
        truncated = [number for number, receipt in enumerate(mine) if receipt.staged.truncated_at is not None]
        skip = 0
        table = Table(database, target)
        try:
            if truncated:
                table.clear()
                mine = mine[truncated[-1] :]
                skip = mine[0].staged.truncated_at
            for receipt in mine:
                for value in self._values(receipt, skip):
                    table.apply(value.reshaped(target.source))
                skip = 0
        except SinkError as error:
            raise TruckFailed(target.truck, error, target.source.table) from None
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            # The message of SQLite may hold values; its name of the error does not.
            reason = SinkError(
                f"table {target.table}: SQLite refuses a row ({error.sqlite_errorname})",
                remedy="compare the table's columns and constraints with the source's",
            )
            raise TruckFailed(target.truck, reason, target.source.table) from None

    def _values(self, receipt: Receipt, skip: int) -> Iterator[Changes]:
        if receipt.staged.values is not None:
            for number, staged in enumerate(self._spool.read(receipt.staged.values)):
                if number >= skip:
                    yield Changes.from_ipc(staged.column(0)[0].as_buffer())

    def _load(self, database: sqlite3.Connection) -> Ledger:
        there = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'trucker_ledger'").fetchone()
        query = "SELECT content FROM trucker_ledger WHERE project = ?"
        row = database.execute(query, [self._project]).fetchone() if there else None
        return ledger_from_json(json.loads(row[0])) if row else Ledger()

    def _store(self, database: sqlite3.Connection, ledger: Ledger) -> None:
        content = json.dumps(ledger_to_json(ledger))
        database.execute("INSERT OR REPLACE INTO trucker_ledger VALUES (?, ?)", [self._project, content])

    # -- SQLite -----------------------------------------------------------------------------------------------------

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._connection.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self._connection.lock_timeout,
            isolation_level=None,  # transactions begin and end where we say
            check_same_thread=False,  # trucker's threads use a sink in turn
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._database is None:
            raise SinkError(f"connection {self._connection.name} was not opened")
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

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
