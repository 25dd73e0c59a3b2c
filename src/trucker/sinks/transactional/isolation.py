"""Finding the rows that a store with savepoints refuses among those it takes, in one transaction.

All of a truck's rows are tried at once; where that fails they are halved, and each half tried inside a savepoint, down
to the single row: some two dozen statements for one bad row among a million. What is refused is tried again at the end,
as long as that helps: a row may only have come before the one it refers to, or before another gave up a value that
must be unique. For the same reason deletes come before everything else, those of referring tables first, and rows are
written to tables that are referred to first. What could heal within the batch has healed then, and what is left is
refused for good: letters, or, for a truck that sets nothing aside, the reason that it stops.

Deferred constraints are looked at when all is done. Only where they do not hold is it all done again, looking at them
after every step.

`transactional.trials` has both over rows that are staged as those of any store with transactions. A store that stages
rows of its own kind implements the abstract methods of `Isolation` and of `TrialRows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from trucker.errors import DataError, TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.letters import Letter, Pending, Reason, Row, fold, name_row, too_many
from trucker.sinks.target import Target
from trucker.table import TableId

Check = Callable[[], None]
"""Raises where a statement has touched other rows than the source's changes say."""
Refused = Callable[[int, Exception], None]

# Rows that are refused at first but not in the end are no letters: some more than there may be are looked at.
_SLACK: Final = 200

# What rows that are refused alone may be taken with others: a foreign key, a unique key, an exclusion.
_TOGETHER: Final = ("23503", "23505", "23P01")
_UNKNOWN: Final = Reason("", "")


@dataclass(frozen=True)
class TrialRow:
    """One of `TrialRows`; `cells` are those that are there, `kind` is the store's."""

    number: int
    kind: int
    cells: dict[str, str | None]
    lsn: Lsn
    ordinal: int


class TrialRows(ABC):
    """Staged rows of one value for one target, each with a number, any range of which can be applied."""

    target: Target

    @abstractmethod
    def span(self, *, deletes: bool) -> tuple[int, int] | None:
        """The first and the last number of the rows that delete, or of the others; None where there are none."""

    @abstractmethod
    def apply(self, first: int, last: int, *, deletes: bool) -> Check:
        """Do what these rows say."""

    @abstractmethod
    def row(self, number: int) -> TrialRow: ...

    @abstractmethod
    def matching(self, letters: Sequence[Letter], *, old_key: bool = False) -> list[TrialRow]:
        """The rows that letters of the table are about, by their key, or by the key that they move from."""

    @abstractmethod
    def letter(self, row: TrialRow, reason: Reason = _UNKNOWN) -> Letter:
        """A row as a letter, as far as its cells were sent."""

    @abstractmethod
    def whole(self, row: TrialRow) -> Row:
        """A row with the cells that were not sent, which are at the destination (I7)."""

    @abstractmethod
    def sent(self, row: TrialRow) -> Sequence[str] | None:
        """The columns that an update in part brings; None for a whole row."""

    @abstractmethod
    def kept(self, row: TrialRow) -> Sequence[str] | None:
        """The columns that a row which moves takes along; None for one that does not move."""

    @abstractmethod
    def settle_moves(self, lent: Mapping[int, Row]) -> None:
        """Split every move into a delete of the old key and a whole row, so that each can be tried alone. Cells that
        were not sent are taken from the row at the old key; those of `lent`, by number, come from there."""

    @abstractmethod
    def once_per_key(self) -> None:
        """A row that is deleted and written is written."""

    @abstractmethod
    def cancel(self) -> None:
        """Remove pairs of a row inserted and the same row deleted, in a table without key."""

    @abstractmethod
    def drop(self, numbers: Collection[int]) -> None: ...

    @abstractmethod
    def restore(self) -> None:
        """An attempt was rolled back to before the rows were changed."""


Rounds = Callable[[], Iterable[Sequence[TrialRows]]]
"""Reads the rounds from the beginning: the rows of each, by target."""


class Isolation(ABC):
    """Applies the rows of one truck inside the caller's transaction; `pending` then has its letters.

    `most` is how many letters the truck may have; None where the first refused row is an error.
    """

    failures: ClassVar[type[Exception]]
    """What the store's driver raises."""

    def __init__(self, truck: str, stored: Sequence[Letter], most: int | None) -> None:
        self.pending = Pending(stored)
        self._truck = truck
        self._stored = stored
        self._most = most
        self._strict = False
        self._errors: dict[int, DataError] = {}
        self._order: Mapping[TableId, int] = {}

    # -- what a store does --------------------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, statement: str) -> object:
        """Run a statement about savepoints."""

    @abstractmethod
    def check_constraints(self) -> None:
        """Fail where a deferred constraint does not hold as things stand."""

    @abstractmethod
    def passes(self, error: Exception) -> bool:
        """Whether the same statement may succeed later."""

    @abstractmethod
    def refuses_row(self, error: Exception) -> bool:
        """Whether a row was refused for what is in it."""

    @abstractmethod
    def explain(self, rows: TrialRows, row: TrialRow, error: Exception) -> DataError:
        """Why a row is refused, the column included where that can be found out."""

    @abstractmethod
    def blaming(self, target: Target) -> AbstractContextManager[None]:
        """Permanent errors inside are `TruckFailed` of the target's truck."""

    @abstractmethod
    def places(self, targets: Sequence[Target]) -> Mapping[TableId, int]:
        """A number for each target's table, less than those of tables that refer to it (circles are cut somewhere)."""

    @abstractmethod
    def stage_letters(self, letters: Sequence[Letter]) -> TrialRows:
        """Letters of one target with the same columns; row `i` is letter `i`, from 0."""

    # -- batches and letters ------------------------------------------------------------------------------------------

    def run(self, targets: Sequence[Target], rounds: Rounds, emptied: Sequence[TableId] = ()) -> None:
        """Apply the rows of every round, one round after the other. `emptied` are source tables truncated before."""
        self._order = self.places(targets)
        held = self._violated() is None
        self.execute("savepoint trucker_truck")
        self._attempt(rounds, emptied)
        if held and self._violated() is not None:
            self.execute("rollback to savepoint trucker_truck")
            self.pending = Pending(self._stored)
            self._strict = True
            self._attempt(rounds, emptied)
        self.execute("release savepoint trucker_truck")
        self._refuse()

    def redrive(self, letters: Sequence[Letter]) -> None:
        """Try stored letters again, in order."""
        self._order = self.places([letter.as_target() for letter in letters])
        self._strict = True
        self._drive(letters)

    def _attempt(self, rounds: Rounds, emptied: Sequence[TableId]) -> None:
        for table in emptied:
            self.pending.clear(table)
        for group in rounds():
            ordered = sorted(group, key=lambda rows: self._order[rows.target.table])
            for rows in group:
                self._take_up(rows)
            for rows in reversed(ordered):
                self._bisect(rows, self._refusing(rows), deletes=True)
            for rows in ordered:
                self._bisect(rows, self._refusing(rows), deletes=False)
            for rows in group:
                rows.restore()
        self._drive(self.pending.changed)

    def _refuse(self) -> None:
        """Raise where a truck that sets nothing aside has a row that is refused."""
        changed = self.pending.changed
        if changed and self._most is None:
            raise TruckFailed(self._truck, self._errors[id(changed[0])], changed[0].source)

    # -- by halves ----------------------------------------------------------------------------------------------------

    def _bisect(self, rows: TrialRows, refused: Refused, *, deletes: bool) -> None:
        span = rows.span(deletes=deletes)
        waiting = [span] if span else []
        while waiting:
            first, last = waiting.pop()
            error = self._try(lambda first=first, last=last: rows.apply(first, last, deletes=deletes))  # type: ignore[misc]
            if error is None:
                continue
            if first == last:
                refused(first, error)
                continue
            middle = (first + last) // 2
            waiting += [(middle + 1, last), (first, middle)]

    def _try(self, work: Callable[[], Check]) -> Exception | None:
        """Run it, or roll back and return why a row was refused; raises every other error."""
        self.execute("savepoint trucker_try")
        try:
            check = work()
            if self._strict:
                self.execute("savepoint trucker_look")
                self.check_constraints()
                self.execute("rollback to savepoint trucker_look")
        except self.failures as error:
            if self.passes(error) or not self.refuses_row(error):
                raise
            self.execute("rollback to savepoint trucker_try")
            self.execute("release savepoint trucker_try")
            return error
        check()
        self.execute("release savepoint trucker_try")
        return None

    def _violated(self) -> Exception | None:
        """Which deferred constraint does not hold as things stand, if one does not."""
        violation = None
        self.execute("savepoint trucker_look")
        try:
            self.check_constraints()
        except self.failures as error:
            if self.passes(error):
                raise
            violation = error
        self.execute("rollback to savepoint trucker_look")
        return violation

    def _refusing(self, rows: TrialRows) -> Refused:
        def refused(number: int, error: Exception) -> None:
            row = rows.row(number)
            reason = self.explain(rows, row, error)
            letter = replace(rows.letter(row, Reason.of(reason)), data=rows.whole(row))
            self._set_aside(letter, name_row(reason, rows.target, letter.key_row))

        return refused

    def _set_aside(self, letter: Letter, error: DataError) -> None:
        self.pending.add(letter)
        self._errors[id(letter)] = error
        # What another row may heal is a constraint; a value that does not fit never will.
        if self._most is None and not error.sqlstate.startswith("23"):
            raise TruckFailed(self._truck, error, letter.source)
        if len(self.pending.changed) > (self._most or 0) + _SLACK:
            first = self.pending.changed[0]
            if self._most is None:
                raise TruckFailed(self._truck, self._errors[id(first)], first.source)
            raise TruckFailed(self._truck, too_many(self._truck, self._most, first.reason))

    # -- letters ------------------------------------------------------------------------------------------------------

    def _take_up(self, rows: TrialRows) -> None:
        """Fold changes of rows that have letters into those letters; split each move into a delete and a whole row."""
        with self.blaming(rows.target):
            letters = self.pending.of(rows.target)
            if not rows.target.source.key:
                rows.cancel()
                self._cancel(rows, letters)
                return
            rows.settle_moves(self._lent(rows, letters))
            rows.once_per_key()
            self._fold(rows, letters)

    def _lent(self, rows: TrialRows, letters: Sequence[Letter]) -> dict[int, Row]:
        """The cells that moved rows keep of those that are letters."""
        source, cells = rows.target.source, dict[int, Row]()
        for row in rows.matching(letters, old_key=True) if letters else ():
            kept = rows.kept(row)
            letter = self.pending.find((source.table, tuple(row.cells[name] for name in source.key)))
            if kept is not None and letter is not None and not letter.deletes:
                cells[row.number] = {name: letter.data[name] for name in kept}
        return cells

    def _fold(self, rows: TrialRows, letters: Sequence[Letter]) -> None:
        """What is written is tried at the end, in its letter's place. A delete is done in its turn, letter or not: a
        row with an equal key, of another text perhaps, may come after it."""
        folded = []
        for row in rows.matching(letters) if letters else ():
            after = rows.letter(row)
            before = self.pending.find(after.identity)
            assert before is not None
            if after.deletes:
                self.pending.remove(before)
                continue
            self.pending.change(before, fold(before, after, rows.sent(row)))
            folded.append(row.number)
        if folded:
            rows.drop(folded)

    def _cancel(self, rows: TrialRows, letters: Sequence[Letter]) -> None:
        dropped = []
        for row in rows.matching(letters) if letters else ():
            after = rows.letter(row)
            before = self.pending.find(after.identity)
            if before is not None and before.deletes != after.deletes:
                self.pending.remove(before)
                dropped.append(row.number)
        if dropped:
            rows.drop(dropped)

    def _drive(self, letters: Sequence[Letter]) -> None:
        """Apply these letters; retry the refused ones as long as at least one of them succeeds."""
        remaining = list(letters)
        while remaining:
            before, remaining = len(remaining), self._drive_once(remaining)
            if len(remaining) == before:
                break
        waiting = [letter for letter in remaining if letter.reason.sqlstate in _TOGETHER]
        if len(waiting) > 1 and self._together(waiting):
            for letter in waiting:
                self.pending.remove(letter)

    def _drive_once(self, letters: Sequence[Letter]) -> list[Letter]:
        """Apply each letter once; returns the refused letters, with the new reason."""
        failures: dict[int, DataError] = {}
        staged = self._staged(letters)
        for deletes in (True, False):
            for rows, group in reversed(staged) if deletes else staged:

                def refused(number: int, error: Exception, rows: TrialRows = rows, group: list[Letter] = group) -> None:
                    failures[id(group[number])] = self.explain(rows, rows.row(number), error)

                self._bisect(rows, refused, deletes=deletes)
        remaining = []
        for letter in letters:
            error = failures.get(id(letter))
            if error is None:
                self.pending.remove(letter)
                continue
            again = replace(letter, reason=Reason.of(error))
            self.pending.change(letter, again)
            self._errors[id(again)] = name_row(error, again.as_target(), again.key_row)
            remaining.append(again)
        return remaining

    def _together(self, letters: Sequence[Letter]) -> bool:
        """Whether letters that are refused one by one are not when all of them are applied: they take values from each
        other, or refer to each other in a circle, by constraints that are deferred."""
        staged = self._staged(letters)

        def work() -> Check:
            for deletes in (True, False):
                for rows, _ in reversed(staged) if deletes else staged:
                    span = rows.span(deletes=deletes)
                    if span:
                        rows.apply(*span, deletes=deletes)()
            return _nothing_to_check

        return self._try(work) is None

    def _staged(self, letters: Sequence[Letter]) -> list[tuple[TrialRows, list[Letter]]]:
        """Letters by target and columns, tables that are referred to first."""
        groups: dict[tuple[TableId, tuple[str, ...]], list[Letter]] = defaultdict(list)
        for letter in letters:
            groups[letter.target, tuple(letter.data)].append(letter)
        staged = []
        for _, group in sorted(groups.items(), key=lambda item: self._order[item[0][0]]):
            with self.blaming(group[0].as_target()):
                staged.append((self.stage_letters(group), group))
        return staged


def _nothing_to_check() -> None:
    """The work has checked what it touched."""
