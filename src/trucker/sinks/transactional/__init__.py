"""The base of sinks for tables in a store with transactions: a batch and its positions become visible at once (I3, I5).

A store implements, besides `prepare`:

    transaction()                    a transaction of one writer, as a context manager; yields what the others take
    load(transaction)                the ledger that is stored there
    is_empty(transaction, table)     whether a destination table has no rows
    empty(transaction, target)       remove all rows of the target's table
    apply(transaction, load)         apply staged rows (`staged_changes`), by column or row by row
    store(transaction, ledger, …)    store the ledger

Executors stage the changes as flat rows of text, which go to the driver in receipts, and in files where they are many.
A store that offers a `letter_store` has dead letters: which rows it refuses is found here (`publication`). `store` has
what else a store can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trucker.change import Changes, CopiedRows
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Choice, Redriven, reshaped
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.sinks.transactional.publication import Publication, redrive
from trucker.sinks.transactional.staged_changes import stage_changes
from trucker.sinks.transactional.store import T, TransactionalStore


class TransactionalSink(TransactionalStore[T], Sink):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    def __init__(self, workspace: Workspace) -> None:
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._opened = False
        self.letters: Mapping[str, int] = {}

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        with self.transaction() as transaction:
            ledger = self.load(transaction)
            self.letters = self.letter_store.count(transaction) if self.letter_store is not None else {}
        self._opened = True
        return ledger

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return stage_changes(self._spool, work, changes)

    def publish(self, delivery: Delivery) -> None:
        self._spool.keep_only(delivery.batch, [receipt.staged.rows for receipt in delivery.receipts])
        publication = Publication(self, self._spool, delivery)
        publication.run()
        self.letters = publication.letter_counts
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    # -- dead letters, where the store has them ------------------------------------------------------------------------

    def count_letters(self) -> Mapping[str, int]:
        if self.letter_store is None:
            return {}
        with self.transaction() as transaction:
            return self.letter_store.count(transaction)

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        # Nothing is created, or waited for, where there is nothing to redrive.
        return redrive(self, self._spool, choice, dry_run=dry_run) if self.count_letters() else []

    def reshape_letters(self, transaction: T, target: Target) -> None:
        """Columns have been added to the target's table: a row that was there then holds what the source gave all older
        rows."""
        store = self.letter_store
        if store is not None and self.letters.get(target.truck):
            for letter in reshaped(store.read(transaction, target.truck), target.source):
                store.put(transaction, letter)
