"""A destination table as it was at one moment, for a comparison with the source (`trucker verify`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa

from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.sinks.target import Target


class ComparedTable(ABC):
    """Rows of the table, and rows that are expected there, in digests of the store's own making.

    Expected rows come as text cells, under the names of the target's columns; what the store would do to a value when
    it writes it, it does before it digests it. Used by one thread at a time, but for `cancel`.
    """

    columns: DigestedColumns
    """What is compared: of the target's columns those that the table has."""

    fingerprint: str = ""
    """What the digests depend on. A source that names the same one gives equal rows equal digests itself."""

    @abstractmethod
    def sums(self) -> GroupSums:
        """Of the table's rows."""

    @abstractmethod
    def rows(self, groups: Collection[int]) -> Iterator[DigestedRow]:
        """The table's rows in these groups."""

    @abstractmethod
    def sums_of(self, expected: pa.RecordBatch) -> GroupSums:
        """Of expected rows, as they would be stored. `DataError` where a value of one of them cannot be: the table can
        go on being used."""

    @abstractmethod
    def rows_of(self, expected: pa.RecordBatch, groups: Collection[int]) -> Iterator[DigestedRow]:
        """The expected rows in these groups, likewise."""

    @abstractmethod
    def cancel(self) -> None:
        """Have what is being computed in another thread fail soon."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the table's rows."""


@runtime_checkable
class ComparesTables(Protocol):
    """A sink whose tables can be compared with the source."""

    def compare(self, target: Target, groups: int) -> ComparedTable:
        """The target's table with all that was published until now, whatever is published later. Needs no `open`."""
