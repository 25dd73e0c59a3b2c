"""A DuckDB file as a destination: executors stage, the driver applies, one transaction per batch.

Only the driver opens the file. The ledger is in the file's schema `trucker` and commits with the data (I3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import duckdb
import pyarrow as pa

from trucker.change import Changes, CopiedRows, TableId
from trucker.config.models import DuckDBConnection
from trucker.errors import SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.finding import Finding, Level
from trucker.sinks.base import Batch, Capabilities, Receipt, Sink, Target, TruckState, Work, Workspace
from trucker.sinks.duckdb.apply import Applier, Load
from trucker.sinks.duckdb.bookkeeping import Bookkeeping
from trucker.sinks.duckdb.session import Session, connect, run
from trucker.sinks.duckdb.staging import StagedPart, later_rounds, stage
from trucker.sinks.duckdb.table import Table, is_empty, prepare_table, table_of
from trucker.sinks.ledger import Copy, Plan, foreign_rows
from trucker.sinks.spool import Spool

_VALUES: tuple[type[duckdb.Error], ...] = (duckdb.DataError, duckdb.InvalidInputException)


class DuckDBSink(Sink):
    """Guarantee: exactly once; whole source transactions, positions committed with the data."""

    name: ClassVar[str] = "duckdb"
    capabilities: ClassVar[Capabilities] = Capabilities(
        guarantee="exactly once: data and positions in one transaction per batch"
    )

    def __init__(self, connection: DuckDBConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._path = connection.path
        self._spool = Spool(workspace.folder)
        self._session = Session(connection.path, connection.memory)
        self._books = Bookkeeping(workspace.project, connection.path)
        self._opened = False

    def check(self) -> list[Finding]:
        """Whether the file can be written, or made. Creates nothing."""
        subject = f"connection {self._connection.name}"
        folder = next(path for path in self._path.absolute().parents if path.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            return [Finding(Level.ERROR, subject, f"{folder} cannot be written", f"chmod u+wx {folder}", "TRK433")]
        if not self._path.exists():
            return [Finding(Level.OK, subject, f"{self._path} will be created")]
        if not os.access(self._path, os.W_OK):
            return [Finding(Level.ERROR, subject, f"{self._path} is read-only", f"chmod u+w {self._path}", "TRK433")]
        try:
            if not self._session.is_open:
                connect(self._path, read_only=True).close()
        except TruckerError as error:
            level = Level.WARNING if error.transient else Level.ERROR
            return [Finding(level, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{self._path} can be opened")]

    def open(self) -> Mapping[str, TruckState]:
        with self._explaining(f"opening {self._path}"):
            if not self._opened:
                self._spool.clear()
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._session.transaction() as connection:
                self._books.make(connection)
                ledger = self._books.load(connection)
        self._opened = True
        return ledger.states()

    def prepare(self, target: Target) -> None:
        with self._explaining(f"preparing table {target.table}"), self._session.transaction() as connection:
            self._session.tables.pop(target.table, None)
            prepare_table(connection, target)

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return stage(self._spool, work, changes)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._spool.keep_only(batch, [receipt.staged.rows for receipt in receipts])
        with self._explaining(f"writing to {self._path}"), self._session.transaction() as connection:
            plan = self._books.load(connection).plan(batch)
            if not plan.empty:
                _Commit(connection, self._session.tables, self._spool, batch, receipts).run(plan)
                self._books.store(connection, plan)
        self._spool.discard(batch)

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        """DuckDB's errors as ours. Their text may hold values of rows: only that of file errors is shown."""
        try:
            yield
        except (duckdb.IOException, OSError) as error:
            raise SinkUnavailable(
                f"{doing} failed: {str(error).splitlines()[0][:300]}",
                remedy=f"make sure that trucker may write to {self._path.parent} and that there is room",
                code="TRK443",
            ) from error
        except duckdb.TransactionException as error:
            raise SinkUnavailable(f"{doing} met another transaction", code="TRK444") from error
        except duckdb.OutOfMemoryException as error:
            raise SinkUnavailable(
                f"{doing} needs more memory than DuckDB may use ({self._connection.memory >> 20} MiB)",
                remedy=f"raise `memory` of connection {self._connection.name}, or lower batch.max_bytes",
                code="TRK445",
            ) from error
        except duckdb.Error as error:
            raise SinkError(f"{doing} failed: {type(error).__name__}", code="TRK446") from None


class _Commit:
    """One batch inside its transaction."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        tables: dict[TableId, Table],
        spool: Spool,
        batch: Batch,
        receipts: Sequence[Receipt],
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._spool = spool
        self._batch = batch
        self._receipts = receipts

    def run(self, plan: Plan) -> None:
        for copy in plan.copies:
            with _blaming(copy.target):
                self._begin_copy(copy)
        for target in self._batch.targets:
            if (target.truck, target.source.table) in plan.apply:
                with _blaming(target):
                    self._apply(target)

    def _table(self, target: Target) -> Table:
        known = self._tables.get(target.table)
        if known is None or not known.types.keys() >= set(target.source.names):
            known = self._tables[target.table] = table_of(self._connection, target)
        return known

    def _begin_copy(self, copy: Copy) -> None:
        table = self._table(copy.target)
        if copy.ours:
            run(self._connection, f"DELETE FROM {table.sql}")
        elif not is_empty(self._connection, table):
            raise foreign_rows(copy.target)

    def _apply(self, target: Target) -> None:
        slot = (target.truck, target.source.table)
        receipts = _that_count([receipt for receipt in self._receipts if (receipt.truck, receipt.table) == slot])
        if not receipts:
            return
        load = Load(target, [receipt.staged for receipt in receipts], lambda: _rows(self._spool, receipts))
        applier = Applier(self._connection, self._table(target), load)
        try:
            applier.copy() if self._batch.snapshot else applier.run()
        except _VALUES as error:
            # The transaction is lost; what is staged is not, and tells which value it was.
            run(self._connection, "ROLLBACK")
            reason = applier.explain() if load.rounds else None
            raise reason or SinkError(
                f"table {target.table} refuses what the source holds: {type(error).__name__}", code="TRK447"
            ) from None
        except duckdb.ConstraintException:
            raise SinkError(
                f"table {target.table} has a constraint that the source's rows do not keep",
                remedy="drop the constraint; trucker's own tables have none",
                code="TRK448",
            ) from None


def _that_count(receipts: Sequence[Receipt]) -> list[Receipt]:
    """A target's receipts in order, from the last one with a truncate on."""
    ordered = sorted(receipts, key=lambda receipt: receipt.part)
    truncated = [number for number, receipt in enumerate(ordered) if receipt.staged.truncated]
    return ordered[truncated[-1] if truncated else 0 :]


def _rows(spool: Spool, receipts: Sequence[Receipt]) -> Iterator[pa.RecordBatch]:
    """All rows that no truncate has voided; each part's rounds come after those of the part before."""
    before = 0
    for receipt in receipts:
        part: StagedPart = receipt.staged
        if part.rows is not None:
            for number, batch in enumerate(spool.read(part.rows)):
                if number >= part.skip:
                    yield later_rounds(batch, before)
        before += part.rounds


@contextmanager
def _blaming(target: Target) -> Iterator[None]:
    """A permanent failure is the target's truck's alone."""
    try:
        yield
    except TruckFailed:
        raise
    except SinkError as error:
        if error.transient:
            raise
        raise TruckFailed(target.truck, error) from error
