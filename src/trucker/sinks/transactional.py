"""The base of sinks for tables in a store with transactions: a batch and its positions become visible at once (I3, I5).

A store implements, besides `prepare`:

    transaction()                      a transaction of one writer, as a context manager; yields what the others take
    load(transaction)                  the ledger that is stored there
    is_empty(transaction, table)       whether a destination table has no rows
    empty(transaction, target)         remove all rows of the target's table
    apply(transaction, target, value)  apply a set of net changes
    store(transaction, ledger)         store the ledger

Staged rows go from executors to the driver in receipts, and in files where they are many.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import pyarrow as pa

from trucker.change import Changes, CopiedRows, as_changes
from trucker.errors import SinkError, TruckFailed
from trucker.failpoint import reach
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import Ledger, foreign_rows
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.table import TableId

T = TypeVar("T")
"""What stands for a transaction: a connection, a cursor."""


class TransactionalSink(Sink, Generic[T]):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    def __init__(self, workspace: Workspace) -> None:
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._opened = False

    @abstractmethod
    def transaction(self) -> AbstractContextManager[T]:
        """A transaction that commits when the block ends and rolls back when it raises. Nobody else writes meanwhile.
        Raises trucker's errors in place of the store's."""

    @abstractmethod
    def load(self, transaction: T) -> Ledger:
        """The project's ledger; an empty one where there is none."""

    @abstractmethod
    def store(self, transaction: T, ledger: Ledger) -> None:
        """Replace the project's ledger."""

    @abstractmethod
    def is_empty(self, transaction: T, table: TableId) -> bool:
        """Whether the table has no rows, or is not there."""

    @abstractmethod
    def empty(self, transaction: T, target: Target) -> None:
        """Remove all rows of the target's table."""

    @abstractmethod
    def apply(self, transaction: T, target: Target, value: Changes) -> None:
        """Apply net changes, which have the target's columns. Raises `SinkError` for what its table does not take."""

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        with self.transaction() as transaction:
            ledger = self.load(transaction)
        self._opened = True
        return ledger

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        rows = 0

        def values() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for value in as_changes(changes):
                rows += len(value)
                shaped = value.reshaped(work.target.source)
                yield pa.record_batch([pa.array([shaped.to_ipc()], pa.large_binary())], ["value"])

        staged = self._spool.stage(work, values())
        return work.receipt(rows, staged)

    def publish(self, delivery: Delivery) -> None:
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in delivery.receipts])
        with self.transaction() as transaction:
            ledger = delivery.verify(self.load(transaction))
            for copy in delivery.copies:
                if not copy.ours and not self.is_empty(transaction, copy.target.table):
                    raise foreign_rows(copy.target)
            for target in delivery.replaced():
                self.empty(transaction, target)
            for load in delivery.loads():
                self._apply(transaction, load)
            reach("sink.position.before")
            self.store(transaction, ledger)
            reach("sink.position.after")
            reach("sink.commit.before")
        reach("sink.commit.after")
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def _apply(self, transaction: T, load: Load) -> None:
        try:
            for value in self.values(load):
                self.apply(transaction, load.target, value)
        except TruckFailed:
            raise
        except SinkError as error:
            if error.transient:
                raise
            raise TruckFailed(load.target.truck, error, load.target.source.table) from error

    def values(self, load: Load) -> Iterator[Changes]:
        """The staged values of a load, in order."""
        for batch in self._spool.read_all(load.parts):
            yield Changes.from_ipc(batch.column(0)[0].as_buffer())
