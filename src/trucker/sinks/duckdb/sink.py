"""A DuckDB file as a destination: executors stage, the driver applies, one transaction per batch.

Only the driver opens the file. The ledger is in the file's schema `trucker` and commits with the data (I3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import duckdb

from trucker.abilities import Abilities
from trucker.adapters.duckdb import DUCKDB, DuckDBConnection
from trucker.change import Changes, CopiedRows, TableId
from trucker.errors import DataError, SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.file_errors import file_error, file_trouble
from trucker.finding import Finding, Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Receipt, TruckState, Work
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.duckdb import output_sql
from trucker.sinks.duckdb.apply import Applier, apply_load
from trucker.sinks.duckdb.compared_table import DuckDBComparedTable
from trucker.sinks.duckdb.dialect import DuckDBDialect
from trucker.sinks.duckdb.identity import DuckDBIdentities
from trucker.sinks.duckdb.session import Session, connect, refuse_held, run, written_here
from trucker.sinks.duckdb.table import (
    Table,
    examine_tables,
    has_keys,
    in_order,
    is_empty,
    nulled,
    prepare_table,
    read_row,
    table_of,
    unique_columns,
)
from trucker.sinks.duckdb.types import to_text
from trucker.sinks.ledger import Copy, Ledger
from trucker.sinks.letters import Choice, Redriven, Row
from trucker.sinks.sql.output_statements import stage_rows
from trucker.sinks.sql.sql_sink import SqlSink
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.table import Key, quote_identifier

# A COMMIT that cannot write its log fails as a transaction, with the file's error in its text.
_FILE_TROUBLE = re.compile(r'Could not \w+ (?:\w+ )?file "[^"]*": [^\n]*')


class DuckDBSink(SqlSink[duckdb.DuckDBPyConnection]):
    """Guarantee: exactly once; whole source transactions, positions committed with the data."""

    name: ClassVar[str] = "duckdb"
    abilities: ClassVar[Abilities] = DUCKDB.abilities
    keeps_letters: ClassVar[bool] = True

    def __init__(self, connection: DuckDBConnection, workspace: Workspace) -> None:
        super().__init__(DuckDBDialect(), workspace, str(connection.path))
        self._connection = connection
        self._path = connection.path
        self._session = Session(connection.path, connection.memory)
        self._identities = DuckDBIdentities(self.dialect, workspace.project)
        self._looked = -1
        self._changes: Sequence[TableChange] = ()

    def check(self) -> list[Finding]:
        """Whether the file can be written, or made. Creates nothing."""
        subject = f"connection {self._connection.name}"
        if (trouble := file_trouble(self._path)) is not None:
            error = self._unusable(trouble)
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        if not self._path.exists():
            return [Finding(Level.OK, subject, f"{self._path} will be created")]
        try:
            self.stored()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{self._path} can be opened")]

    def _exists(self) -> bool:
        try:
            return self._path.exists()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> TruckerError:
        return file_error(error, "opening", self._path, SinkError, code="TRK433", setting="path")

    def stored(self) -> Mapping[str, TruckState]:
        if (trouble := file_trouble(self._path)) is not None:
            raise self._unusable(trouble)
        if not self._exists():
            return {}
        with self._explaining(f"reading {self._path}"):
            refuse_held(self._path)
            with self._reading() as connection:
                return self.ledger_tables.read(connection).states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        if not self._exists():
            return
        with self._explaining(f"reading {self._path}"), self._reading() as connection:
            yield from examine_tables(connection, self.ledger_tables.read(connection), targets, due)

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection that only reads: this sink's own where it has one, since it holds the file."""
        if self._session.is_open:
            with self._session.use() as connection:
                yield connection
            return
        with connect(self._path, read_only=True) as connection:
            yield connection

    def select_keys(self, target: Target, where: str) -> Iterator[Key]:
        if not self._exists():
            return
        with self._explaining(f"reading table {target.table}"), self._reading() as connection:
            table = table_of(connection, target)
            names = [(quote_identifier(name), table.types[name]) for name in target.source.key]
            keys = ", ".join(to_text(name, kind) or f"CAST({name} AS VARCHAR)" for name, kind in names)
            yield from run(connection, f"SELECT {keys} FROM {table.sql} WHERE ({where}\n)")

    def compare(self, target: Target, groups: int) -> DuckDBComparedTable:
        return DuckDBComparedTable(
            self._session, target, groups, lambda: self._explaining(f"comparing table {target.table}")
        )

    def unique_columns(self, table: TableId) -> list[tuple[str, ...]]:
        if not self._exists() or self._session.is_open:
            return []
        connection = connect(self._path, read_only=True)
        try:
            return unique_columns(connection, table)
        finally:
            connection.close()

    def open(self) -> Ledger:
        if (trouble := file_trouble(self._path)) is not None:
            raise self._unusable(trouble)
        with self._explaining(f"opening {self._path}"):
            if not self._opened:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            return super().open()

    def make_tables(self, transaction: duckdb.DuckDBPyConnection) -> None:
        super().make_tables(transaction)
        self._identities.make(transaction)
        self._identities.adopt(transaction)

    def prepare(self, target: Target) -> frozenset[str]:
        if target.statement is not None:
            with self._explaining(f"checking {target.statement.label}"), self._session.transaction() as connection:
                output_sql.prepare(connection, self._spool, target)
            return frozenset()
        with self._explaining(f"preparing table {target.table}"), self._session.transaction() as connection:
            self._session.tables.pop(target.table, None)
            now = self._identities.see(connection, [target.table]).get(target.table)
            state = self._identities.refuse_changed(connection, target, now)
            missing = prepare_table(connection, target)
            now = self._identities.see(connection, [target.table]).get(target.table)
            self._identities.put(connection, target, now, state)
            self.reshape_letters(connection, target)
        return missing

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        if work.target.statement is not None:
            return stage_rows(self._spool, work, changes)
        return super().stage(work, changes)

    def publish(self, delivery: Delivery) -> None:
        with self._explaining(f"writing to {self._path}"):
            super().publish(delivery)

    # -- in a transaction ---------------------------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return self._session.transaction()

    def _table(self, connection: duckdb.DuckDBPyConnection, target: Target) -> Table:
        tables: dict[TableId, Table] = self._session.tables
        table = tables.get(target.table)
        if table is None or not table.types.keys() >= set(target.source.names):
            table = tables[target.table] = table_of(connection, target)
        return table

    def begin_copy(self, transaction: duckdb.DuckDBPyConnection, copy: Copy) -> None:
        table = self._table(transaction, copy.target)
        super().begin_copy(transaction, copy)
        if not copy.adds and has_keys(transaction, copy.target.table):
            run(transaction, f"DELETE FROM {table.sql}")

    def is_empty(self, transaction: duckdb.DuckDBPyConnection, table: TableId) -> bool:
        return is_empty(transaction, table)

    def refuse_changed(
        self, transaction: duckdb.DuckDBPyConnection, targets: Sequence[Target], *, copied: bool
    ) -> None:
        """Asked once after the file is opened: no other process can alter a table meanwhile."""
        unknown = [target for target in targets if copied or target.table not in self._session.tables]
        for target, reason in self._identities.refuse_written(transaction, unknown, copied=copied):
            raise TruckFailed(target.truck, reason)

    def in_order(self, transaction: duckdb.DuckDBPyConnection, targets: Sequence[Target]) -> list[Target]:
        return in_order(transaction, targets)

    def empty(self, transaction: duckdb.DuckDBPyConnection, target: Target) -> None:
        run(transaction, f"DELETE FROM {self._table(transaction, target).sql}")

    def apply(self, transaction: duckdb.DuckDBPyConnection, load: StagedLoad) -> None:
        apply_load(transaction, self._table(transaction, load.target), load)

    def run_statements(self, transaction: duckdb.DuckDBPyConnection, loads: Sequence[Load]) -> None:
        output_sql.DuckDBOutputs(transaction, self._spool, self._connection.timeouts.statement).run(loads)
        self._session.tables.clear()  # the statements may have altered them

    # -- dead letters -------------------------------------------------------------------------------------------------

    def unfit_rows(self, load: StagedLoad) -> list[tuple[int, DataError]]:
        with self._session.use() as connection:
            return Applier(connection, table_of(connection, load.target), load).unfit()

    def current_row(self, transaction: duckdb.DuckDBPyConnection, target: Target, key: Row) -> Row | None:
        return read_row(transaction, self._table(transaction, target), target, key)

    def as_stored(self, transaction: duckdb.DuckDBPyConnection, target: Target, row: Row) -> Row:
        return nulled(transaction, self._table(transaction, target), target, row)

    def count_letters(self) -> Mapping[str, int]:
        if not self._exists():
            return {}
        with self._explaining(f"reading {self._path}"), self._reading() as connection:
            return self.letter_table.count(connection)

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        with self._explaining(f"redriving dead letters of {self._path}"):
            return super().redrive(choice, dry_run=dry_run)

    # -- tables that other programs drop or alter ----------------------------------------------------------------------

    def changed_tables(self) -> Sequence[TableChange]:
        if not self._path.exists():
            return ()
        if self._looked == self._session.writers and not self._changes:
            return ()  # no other process has written to the file since; opening it would keep readers out
        with self._explaining(f"reading {self._path}"):
            if written_here(self._path):
                with self._session.use() as connection:
                    self._looked = self._session.writers
                    self._changes = self._identities.changed(connection)
            else:
                with connect(self._path, read_only=True) as connection:
                    self._changes = self._identities.changed(connection)
        return self._changes

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        with self._explaining(f"accepting tables of {self._path}"), self._session.transaction() as connection:
            self._identities.accept(connection, truck_tables)

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        """DuckDB's errors as ours. Their text may hold values of rows: only that of file errors is shown."""
        try:
            yield
        except OSError as error:
            raise file_error(error, doing, self._path, SinkUnavailable, code="TRK443") from error
        except duckdb.IOException as error:
            raise self._file_trouble(doing, str(error).splitlines()[0][:300]) from error
        except duckdb.TransactionException as error:
            reason = _FILE_TROUBLE.search(str(error))
            if reason is not None:
                raise self._file_trouble(doing, reason[0]) from error
            raise SinkUnavailable(f"{doing} conflicts with another transaction", code="TRK444") from error
        except duckdb.OutOfMemoryException as error:
            raise SinkUnavailable(
                f"{doing} needs more memory than DuckDB may use ({self._connection.memory >> 20} MiB)",
                remedy=f"raise `memory` of connection {self._connection.name}, or lower batch.max_bytes",
                code="TRK445",
            ) from error
        except duckdb.Error as error:
            raise SinkError(f"{doing} failed: {type(error).__name__}", code="TRK446") from None

    def _file_trouble(self, doing: str, reason: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"{doing} failed: {reason}",
            remedy=f"check that trucker may write to {self._path.parent}, and that the disk is not full",
            code="TRK443",
        )
