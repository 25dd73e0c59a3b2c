"""Accumulates the net change of one table over the pieces of a part.

Pieces are read one after the other, so that no more than one is in memory. The net change of a piece is kept and folded
with that of the next one as long as it is small: changes of few keys, however many, become one row for each key of the
part. A net change that is not small is written before the next piece is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trucker.change import Changes
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.compact import compact, has_moves

SMALL: Final = 2
"""A net change is small if it has at most one row for so many of the piece's changes."""


class FoldAccumulator:
    """For assignments that read a table alike. `read` counts the changes added, `left` the rows of their net change.
    `reselected`: unsent values were read at the source before they were written."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self.assignments = assignments
        self.read = self.left = 0
        self.reselected = False
        self._number = 0
        self._changes: list[Changes] = []
        self._small = True

    def add(self, number: int, changes: Sequence[Changes]) -> None:
        """Add the changes of piece `number`, which follows those added before."""
        count = sum(map(len, changes))
        if not count:
            return
        self.read += count
        self._number = self._number if self._changes else number
        self._changes = [each for each in compact([*self._changes, *changes]) if len(each)]
        self._small = SMALL * self._rows <= count and not has_moves(self._changes)

    @property
    def due(self) -> bool:
        """Whether `take` must be called before the next `add`."""
        return not self._small

    def take(self) -> tuple[int, list[Changes]]:
        """The number of the first piece, and the net change of all pieces; the accumulator is empty afterwards."""
        self.left += self._rows
        changes, self._changes, self._small = self._changes, [], True
        return self._number, changes

    @property
    def _rows(self) -> int:
        return sum(map(len, self._changes))
