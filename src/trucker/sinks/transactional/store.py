"""What a store with transactions does for `TransactionalSink`; `T` stands for a transaction of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, Protocol, TypeVar

from trucker.errors import DataError, SinkError, TruckFailed
from trucker.sinks.delivery import Load
from trucker.sinks.ledger import Copy, Ledger, Plan, foreign_rows
from trucker.sinks.letters import Letter, Row
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.table import TableId

T = TypeVar("T")
"""What stands for a transaction: a connection, a cursor."""
T_contra = TypeVar("T_contra", contravariant=True)


class LetterStore(Protocol[T_contra]):
    """Where a store keeps dead letters (`sinks.letters`), written in the transaction of the batch."""

    def count(self, transaction: T_contra, /) -> Mapping[str, int]:
        """How many letters each truck has; none in a store that was never opened."""

    def read(self, transaction: T_contra, truck: str, /) -> Iterable[Letter]:
        """The letters of a truck."""

    def put(self, transaction: T_contra, letter: Letter, /) -> None:
        """Store a letter: a new one if its number is 0, under a number that no other letter has had."""

    def remove(self, transaction: T_contra, numbers: Collection[int], /) -> None:
        """Remove the letters with these numbers."""

    def forget(self, transaction: T_contra, truck_tables: Collection[TruckTable], /) -> None:
        """Remove the letters of these tables."""


class TransactionalStore(ABC, Generic[T]):
    """A store must implement the abstract methods; the others have a default."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[T]:
        """A transaction that commits when the block ends and rolls back when it raises. No other process writes
        meanwhile. Raises trucker's errors in place of the store's."""

    @abstractmethod
    def load(self, transaction: T) -> Ledger:
        """The project's ledger; an empty one where there is none."""

    @abstractmethod
    def store(self, transaction: T, ledger: Ledger, plan: Plan) -> None:
        """Replace the project's ledger; `plan` has what is new in it."""

    @abstractmethod
    def is_empty(self, transaction: T, table: TableId) -> bool:
        """Whether the table has no rows, or is not there."""

    @abstractmethod
    def empty(self, transaction: T, target: Target) -> None:
        """Remove all rows of the target's table."""

    @abstractmethod
    def apply(self, transaction: T, load: StagedLoad) -> None:
        """Apply staged rows. Raises `DataError` for a row that is refused for what is in it, and `SinkError` for
        everything else that the table does not take. The table has been emptied where the load says so."""

    # -- for stores that can do more ----------------------------------------------------------------------------------

    def begin_copy(self, transaction: T, copy: Copy) -> None:
        """A copy of a table begins. Raises where the table has rows that are not trucker's."""
        if not copy.ours and not self.is_empty(transaction, copy.target.table):
            raise foreign_rows(copy.target)

    def refuse_changed(self, transaction: T, targets: Sequence[Target], *, copied: bool) -> None:
        """Raise `TruckFailed` where the table of a target is not the one that trucker has filled."""

    def in_order(self, transaction: T, targets: Sequence[Target]) -> list[Target]:
        """The targets in the order in which they are applied: tables that others refer to come first."""
        return list(targets)

    def run_statements(self, transaction: T, loads: Sequence[Load]) -> None:
        """Run the output.sql of these targets over what was staged for them. `Sink.prepare` refuses those of a store
        that cannot."""

    has_savepoints: ClassVar[bool] = False
    """Whether a part of a transaction can be rolled back. Refused rows are then found in one transaction
    (`transactional.isolation`), and otherwise by trials, each of which is a transaction."""

    def execute(self, transaction: T, statement: str) -> None:
        """Run a statement about savepoints."""
        raise NotImplementedError

    # -- for stores with dead letters ---------------------------------------------------------------------------------

    @property
    def letter_store(self) -> LetterStore[T] | None:
        """Where dead letters are; None for a store without."""
        return None

    def unfit_rows(self, load: StagedLoad) -> list[tuple[int, DataError]]:
        """Rows with a value that its column cannot hold, by their position in the load, if the store can tell without
        trying. Called outside a transaction."""
        return []

    def current_row(self, transaction: T, target: Target, key: Row) -> Row | None:
        """The row with that key as PostgreSQL's text; None where there is none."""
        return None

    def as_stored(self, transaction: T, target: Target, row: Row) -> Row:
        """The row as it would be stored: with NULL where the truck asks for that in place of a value that does not
        fit."""
        return row


@contextmanager
def blaming(target: Target) -> Iterator[None]:
    """A permanent failure is the target's truck's alone. A `DataError` is not permanent yet: its row may be set
    aside."""
    try:
        yield
    except (TruckFailed, DataError):
        raise
    except SinkError as error:
        if error.transient:
            raise
        raise TruckFailed(target.truck, error, target.source.table) from error
