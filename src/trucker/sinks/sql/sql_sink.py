"""The base of sinks for SQL databases: what `TransactionalSink` asks of trucker's own tables is done here.

A sink implements, besides `prepare`, `transaction`, `is_empty`, `empty` and `apply` (`sinks.transactional`) and its
dialect. With `keeps_letters` it has dead letters.
"""

from __future__ import annotations

from typing import ClassVar, Generic

from trucker.sinks.base import Workspace
from trucker.sinks.ledger import Ledger, Plan
from trucker.sinks.sql.dialect import Dialect, T
from trucker.sinks.sql.ledger_tables import LedgerTables
from trucker.sinks.sql.letter_table import LetterTable
from trucker.sinks.transactional import TransactionalSink


class SqlSink(TransactionalSink[T], Generic[T]):
    """Guarantee: exactly once; a batch becomes visible as a whole, positions committed with the data."""

    keeps_letters: ClassVar[bool] = False

    def __init__(self, dialect: Dialect[T], workspace: Workspace, place: str) -> None:
        super().__init__(workspace)
        self.dialect = dialect
        self.ledger_tables = LedgerTables(dialect, workspace.project, place)
        self.letter_table = LetterTable(dialect, workspace.project)

    def open(self) -> Ledger:
        with self.transaction() as transaction:
            self.make_tables(transaction)
        return super().open()

    def make_tables(self, transaction: T) -> None:
        """Create those of trucker's own tables that are missing."""
        self.dialect.prepare(transaction)
        self.ledger_tables.make(transaction)
        if self.keeps_letters:
            self.letter_table.make(transaction)

    def load(self, transaction: T) -> Ledger:
        return self.ledger_tables.load(transaction)

    def store(self, transaction: T, ledger: Ledger, plan: Plan) -> None:
        self.ledger_tables.store(transaction, plan)

    def execute(self, transaction: T, statement: str) -> None:
        self.dialect.run(transaction, statement)

    @property
    def letter_store(self) -> LetterTable[T] | None:
        return self.letter_table if self.keeps_letters else None
