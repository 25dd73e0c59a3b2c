"""What the statements for trucker's own tables must know of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")
"""What stands for a transaction: a connection, a session."""


class Dialect(ABC, Generic[T]):
    """A store's SQL. The statements are those that SQL databases have in common; what differs is here."""

    text: ClassVar[str] = "VARCHAR"
    """The type of a text of any length."""
    instant: ClassVar[str] = "TIMESTAMPTZ"
    now: ClassVar[str] = "now()"
    letter_number: ClassVar[str] = "BIGINT NOT NULL"
    """How the column of the letters' numbers is defined. A number is given once, even when its letter is gone."""

    @abstractmethod
    def run(self, transaction: T, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement with these values in the places of its question marks; the rows that it returns."""

    @abstractmethod
    def name(self, transaction: T, table: str) -> str:
        """What one of trucker's own tables is called in SQL."""

    @abstractmethod
    def tables(self, transaction: T) -> frozenset[str]:
        """Which of trucker's own tables are there."""

    @abstractmethod
    def new_number(self, transaction: T) -> str:
        """The SQL of the number of a new letter."""

    def cell(self, column: str) -> str:
        """The SQL that reads a column of trucker's tables as text."""
        return column

    def prepare(self, transaction: T) -> None:
        """Make what trucker's tables need to be made, such as a schema."""
