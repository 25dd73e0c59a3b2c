"""Staged rows applied to a table one by one: for stores in which a prepared statement costs next to nothing.

A round is applied as the contract says: deletes; moves, as a set, from the rows as they were; the rest. A row is known
by its key. Without a key rows are added, and of rows that go one is removed that is equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trucker.change import DELETE, UPDATE
from trucker.errors import SinkError
from trucker.sinks.letters import Row
from trucker.sinks.target import Target
from trucker.sinks.transactional.staged_changes import MOVE, StagedRow
from trucker.table import quote_identifier

Cells = Sequence[Any]


class RowTable(ABC):
    """The table of a target, in the caller's transaction. `name` is what it is called in SQL."""

    equals: ClassVar[str] = "IS NOT DISTINCT FROM"
    """Compares a column with a value, NULL included."""

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self.name = name
        self.key = target.source.key

    @abstractmethod
    def run(self, statement: str, rows: Sequence[Cells]) -> int:
        """Run a statement for each row of values, in the places of its question marks; how many rows it touched."""

    @abstractmethod
    def find(self, key: Cells) -> Mapping[str, Any] | None:
        """The row with that key, all columns of the table included; None where there is none."""

    def quote(self, name: str) -> str:
        return quote_identifier(name)

    def apply(self, rows: Sequence[StagedRow]) -> None:
        """One round: each key at most once."""
        if self.key:
            self._apply_keyed(rows)
        else:
            self._apply_bag(rows)

    # -- with a key ---------------------------------------------------------------------------------------------------

    def _apply_keyed(self, rows: Sequence[StagedRow]) -> None:
        moves = [row for row in rows if row.action == MOVE]
        moved = [cells for row in moves if (cells := self._moved(row))]
        gone = [*(row.data for row in rows if row.action == DELETE), *(row.old_key for row in moves)]
        self.run(f"DELETE FROM {self.name} WHERE {self.where(self.key)}", [self._key_of(row) for row in gone])
        for cells in moved:
            self._put(list(cells), [list(cells.values())])
        for row in rows:
            if row.action == UPDATE and row.sent is not None:
                self._update(row)
        names = self.target.source.names
        whole = [[row.data[name] for name in names] for row in rows if row.action == UPDATE and row.sent is None]
        self._put(names, whole)

    def _key_of(self, row: Row) -> Cells:
        return [row[name] for name in self.key]

    def _moved(self, row: StagedRow) -> Mapping[str, Any]:
        """The whole row whose key moves, as it will be; empty where it is left out."""
        stored = self.find(self._key_of(row.old_key))
        if stored is None and row.sent is not None:
            self._is_missing()
            return {}
        return {**(stored or {}), **row.cells}

    def _put(self, names: Sequence[str], rows: Sequence[Cells]) -> None:
        """Insert rows, or give those that are there these cells."""
        marks = ", ".join("?" * len(names))
        self.run(f"INSERT INTO {self.name} ({self.listed(names)}) VALUES ({marks}) {self.on_conflict(names)}", rows)

    def on_conflict(self, names: Sequence[str]) -> str:
        """What makes of an INSERT of these columns an update where the key is there."""
        others = [self.quote(name) for name in names if name not in self.key]
        change = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        return f"ON CONFLICT ({self.listed(self.key)}) DO {change}"

    def _update(self, row: StagedRow) -> None:
        """Give a row the cells that were sent; the others stay (I7)."""
        cells = ", ".join(f"{self.quote(name)} = ?" for name in row.cells)
        statement = f"UPDATE {self.name} SET {cells} WHERE {self.where(self.key)}"
        if self.run(statement, [[*row.cells.values(), *self._key_of(row.data)]]) != 1:
            self._is_missing()

    def _is_missing(self) -> None:
        """A row lacks cells and is not there: an error, unless it is still to come as a whole."""
        if not self.target.awaits_rows:
            raise self._missing("TRK440")

    # -- without a key ------------------------------------------------------------------------------------------------

    def _apply_bag(self, rows: Sequence[StagedRow]) -> None:
        names = self.target.source.names
        cells = [[row.data[name] for name in names] for row in rows]
        marks = ", ".join("?" * len(names))
        added = [values for row, values in zip(rows, cells, strict=True) if row.action != DELETE]
        self.run(f"INSERT INTO {self.name} ({self.listed(names)}) VALUES ({marks})", added)
        gone = [values for row, values in zip(rows, cells, strict=True) if row.action == DELETE]
        if self.run(self.removal(names), gone) != len(gone):
            raise self._missing("TRK441")

    @abstractmethod
    def removal(self, names: Sequence[str]) -> str:
        """The statement that removes one of the rows with these cells."""

    # -- parts of statements ------------------------------------------------------------------------------------------

    def listed(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.quote, names))

    def where(self, names: Sequence[str]) -> str:
        """A condition on every column."""
        return " AND ".join(f"{self.quote(name)} {self.equals} ?" for name in names)

    def _missing(self, code: str) -> SinkError:
        return SinkError(
            f"table {self.target.table} lacks a row that the source changed",
            remedy="another program changed the table; to copy it again, run `trucker reset --truck"
            f" {self.target.truck}`, then `trucker run`",
            code=code,
        )
