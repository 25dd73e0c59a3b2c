"""Accumulates the net change of one table over the pieces of a part.

Pieces are read one after the other, so that no more than one is in memory. What is left of a piece when its changes
are folded waits for the next one and is folded with that, as long as it is small: changes of few keys, however many,
become one row for each key of the part. What is not small is written before the next piece is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trucker.change import Changes
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.compact import compact, has_moves

SMALL: Final = 2
"""What is left of a piece is small if it is at most one in so many of the piece's changes."""


class FoldAccumulator:
    """For those who read a table alike. `read` and `left` count the changes taken and the rows given."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self.assignments = assignments
        self.read = self.left = 0
        self._number = 0
        self._changes: list[Changes] = []
        self._small = True

    def add(self, number: int, changes: Sequence[Changes]) -> None:
        """What happened in piece `number`, which comes after all that was added before."""
        count = sum(map(len, changes))
        if not count:
            return
        self.read += count
        self._number = self._number if self._changes else number
        self._changes = [each for each in compact([*self._changes, *changes]) if len(each)]
        self._small = SMALL * self._rows <= count and not has_moves(self._changes)

    @property
    def due(self) -> bool:
        """Whether it is to be taken before more is added."""
        return not self._small

    def take(self) -> tuple[int, list[Changes]]:
        """The number of the first piece that is in it, and what is left of it and the others; begin anew."""
        self.left += self._rows
        changes, self._changes, self._small = self._changes, [], True
        return self._number, changes

    @property
    def _rows(self) -> int:
        return sum(map(len, self._changes))
