"""Finding the rows that a destination refuses among those it takes, in one transaction.

All of a truck's rows are tried at once; where that fails they are halved, and each half tried inside a savepoint, down
to the single row: some two dozen statements for one bad row among a million. What is refused is tried again at the end,
as long as that helps: a row may only have come before the one it refers to, or before another gave up a value that
must be unique. For the same reason deletes come before everything else, those of referring tables first, and rows are
written to tables that are referred to first. What could heal within the batch has healed then, and what is left is
refused for good: letters, or, for a truck that sets nothing aside, the reason that it stops.

Deferred constraints are looked at when all is done. Only where they do not hold is it all done again, looking at them
after every step.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import psycopg

from trucker.errors import DataError, TruckFailed
from trucker.sinks.letters import Letter, Pending, Reason, fold, name_row, too_many
from trucker.sinks.postgres.apply.merge_sql import check_touched
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.failure import blaming, explain, of_data, passing
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.staged_rows import DELETE_ROW
from trucker.sinks.postgres.stage.text_stage import StagedText, TextStage, letter_stage
from trucker.sinks.sql.examination import parents_first
from trucker.sinks.target import Target
from trucker.table import TableId

Describe = Callable[[Session, Target], DestinationTable]
Refused = Callable[[int, psycopg.Error], None]

# Rows that are refused at first but not in the end are no letters: some more than there may be are looked at.
_SLACK: Final = 200

# What rows that are refused alone may be taken with others: a foreign key, a unique key, an exclusion.
_TOGETHER: Final = ("23503", "23505", "23P01")

# Trucks that are committed together share a transaction, and the names of temporary tables in it.
_numbers: Final = itertools.count()


class Isolation:
    """Applies the rows of one truck inside the caller's transaction; `pending` then has its letters.

    `most` is how many letters the truck may have; None where the first refused row is an error.
    """

    def __init__(
        self, session: Session, truck: str, describe: Describe, stored: Sequence[Letter], most: int | None
    ) -> None:
        self.pending = Pending(stored)
        self._session = session
        self._truck = truck
        self._describe = describe
        self._stored = stored
        self._most = most
        self._strict = False
        self._errors: dict[int, DataError] = {}
        self._order: dict[TableId, int] = {}

    def run(self, rounds: Sequence[Sequence[TextStage]], emptied: Sequence[TableId] = ()) -> None:
        """Apply the stages of every round, one round after the other. `emptied` are source tables truncated before."""
        self._order = self._references([stage.target.table for stages in rounds for stage in stages])
        held = self._violated() is None
        self._session.run("savepoint trucker_truck")
        self._attempt(rounds, emptied)
        if held and self._violated() is not None:
            self._session.run("rollback to savepoint trucker_truck")
            self.pending = Pending(self._stored)
            self._strict = True
            self._attempt(rounds, emptied)
        self._session.run("release savepoint trucker_truck")
        self._refuse()

    def redrive(self, letters: Sequence[Letter]) -> None:
        """Try stored letters again, in order."""
        self._order = self._references([letter.target for letter in letters])
        self._strict = True
        self._drive(letters)

    def _attempt(self, rounds: Sequence[Sequence[TextStage]], emptied: Sequence[TableId]) -> None:
        for table in emptied:
            self.pending.clear(table)
        for stages in rounds:
            ordered = sorted(stages, key=lambda stage: self._order[stage.target.table])
            contents = [stage.contents for stage in stages]
            for stage in stages:
                self._take_up(stage)
            for stage in reversed(ordered):
                self._bisect(stage, self._refusing(stage), deletes=True)
            for stage in ordered:
                self._bisect(stage, self._refusing(stage), deletes=False)
            for stage, before in zip(stages, contents, strict=True):
                stage.contents = before  # an attempt that is taken back leaves the rows as they were staged
        self._drive(self.pending.changed)

    def _refuse(self) -> None:
        """Raise where a truck that sets nothing aside has a row that is refused."""
        changed = self.pending.changed
        if changed and self._most is None:
            raise TruckFailed(self._truck, self._errors[id(changed[0])], changed[0].source)

    # -- by halves --------------------------------------------------------------------------------------------------

    def _bisect(self, stage: TextStage, refused: Refused, *, deletes: bool) -> None:
        span = stage.span(deletes=deletes)
        waiting = [span] if span else []
        while waiting:
            first, last = waiting.pop()
            error = self._try(lambda first=first, last=last: stage.apply(first, last, deletes=deletes))  # type: ignore[misc]
            if error is None:
                continue
            if first == last:
                refused(first, error)
                continue
            middle = (first + last) // 2
            waiting += [(middle + 1, last), (first, middle)]

    def _try(self, work: Callable[[], object]) -> psycopg.Error | None:
        """Run it, or roll back and return the error of the data; raises every other error."""
        self._session.run("savepoint trucker_try")
        try:
            done = work()
            if self._strict:
                self._session.run("savepoint trucker_look")
                self._session.run("set constraints all immediate")
                self._session.run("rollback to savepoint trucker_look")
        except psycopg.Error as error:
            if passing(error) or not of_data(error):
                raise
            self._session.run("rollback to savepoint trucker_try")
            self._session.run("release savepoint trucker_try")
            return error
        if isinstance(done, list):
            check_touched(done)
        self._session.run("release savepoint trucker_try")
        return None

    def _violated(self) -> psycopg.Error | None:
        """Which deferred constraint does not hold as things stand, if one does not."""
        self._session.run("savepoint trucker_look")
        try:
            self._session.run("set constraints all immediate")
        except psycopg.Error as error:
            if passing(error):
                raise
            return error
        finally:
            if not self._session.connection.closed:
                self._session.run("rollback to savepoint trucker_look")
        return None

    def _refusing(self, stage: TextStage) -> Refused:
        def refused(number: int, error: psycopg.Error) -> None:
            (row,) = stage.rows(f"i = {number}")
            reason = self._explained(stage, row, error)
            letter = replace(stage.letter(row, Reason.of(reason)), data=stage.whole(row))
            self._set_aside(letter, name_row(reason, stage.target, letter.key_row))

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

    def _explained(self, stage: TextStage, row: StagedText, error: psycopg.Error) -> DataError:
        """Why a row is refused, the column included where that can be found out."""
        columns: tuple[str, ...] = ()
        if (error.sqlstate or "").startswith("22") and row.kind != DELETE_ROW:
            said = self._try(lambda: stage.column_of(row))
            self._session.run("drop table if exists pg_temp.t_unfit")
            error, columns = said or error, tuple(row.cells)
        reason = explain(error, f"table {stage.target.table}", table=stage.target.table, columns=columns)
        assert isinstance(reason, DataError)
        return reason

    # -- letters ----------------------------------------------------------------------------------------------------

    def _take_up(self, stage: TextStage) -> None:
        """Fold changes of rows that have letters into those letters; split each move into a delete and a whole row."""
        with blaming(stage.target):
            letters = self.pending.of(stage.target)
            if not stage.target.source.key:
                stage.cancel()
                self._cancel(stage, letters)
                return
            if stage.contents.moves:
                stage.settle_moves(self._lent(stage, letters))
            stage.once_per_key()
            self._fold(stage, letters)

    def _matching(self, stage: TextStage, letters: Sequence[Letter], *, old_key: bool = False) -> list[StagedText]:
        if not letters:
            return []
        names = letters[0].key or sorted(letters[0].data)
        wanted = [_as_json([letter.data[name] for name in names]) for letter in letters]
        same = f"{stage.identity(names, 'o' if old_key else '')} = any($1::text[]::jsonb[])"
        return stage.rows(same, wanted, old_key=old_key)

    def _lent(self, stage: TextStage, letters: Sequence[Letter]) -> dict[int, dict[str, str | None]]:
        """The cells that moved rows keep of those that are letters."""
        cells = {}
        moves = {move.code: move for move in stage.contents.moves}
        for row in self._matching(stage, letters, old_key=True):
            letter = self.pending.find(
                (stage.target.source.table, tuple(row.cells[n] for n in stage.target.source.key))
            )
            if row.kind in moves and letter is not None and not letter.deletes:
                cells[row.number] = {name: letter.data[name] for name in moves[row.kind].columns}
        return cells

    def _fold(self, stage: TextStage, letters: Sequence[Letter]) -> None:
        """What is written is tried at the end, in its letter's place. A delete is done in its turn, letter or not: a
        row with an equal key, of another text perhaps, may come after it."""
        folded = []
        for row in self._matching(stage, letters):
            after = stage.letter(row)
            before = self.pending.find(after.identity)
            assert before is not None
            if after.deletes:
                self.pending.remove(before)
                continue
            patch = stage.patch(row.kind)
            self.pending.change(before, fold(before, after, patch.columns if patch else None))
            folded.append(row.number)
        if folded:
            stage.drop(folded)

    def _cancel(self, stage: TextStage, letters: Sequence[Letter]) -> None:
        dropped = []
        for row in self._matching(stage, letters):
            after = stage.letter(row)
            before = self.pending.find(after.identity)
            if before is not None and before.deletes != after.deletes:
                self.pending.remove(before)
                dropped.append(row.number)
        if dropped:
            stage.drop(dropped)

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
        stages = self._stages(letters)
        for deletes in (True, False):
            for stage, group in reversed(stages) if deletes else stages:

                def refused(
                    number: int, error: psycopg.Error, stage: TextStage = stage, group: list[Letter] = group
                ) -> None:
                    (row,) = stage.rows(f"i = {number}")
                    failures[id(group[number])] = self._explained(stage, row, error)

                self._bisect(stage, refused, deletes=deletes)
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
        stages = self._stages(letters)

        def work() -> None:
            for deletes in (True, False):
                for stage, _ in reversed(stages) if deletes else stages:
                    span = stage.span(deletes=deletes)
                    if span:
                        check_touched(stage.apply(*span, deletes=deletes))

        return self._try(work) is None

    def _stages(self, letters: Sequence[Letter]) -> list[tuple[TextStage, list[Letter]]]:
        """Letters by target and columns, tables that are referred to first."""
        groups: dict[tuple[TableId, tuple[str, ...]], list[Letter]] = defaultdict(list)
        for letter in letters:
            groups[letter.target, tuple(letter.data)].append(letter)
        stages = []
        for _, group in sorted(groups.items(), key=lambda item: self._order[item[0][0]]):
            with blaming(group[0].as_target()):
                table = self._describe(self._session, group[0].as_target())
                stages.append((letter_stage(self._session, group, table, f"p_letters_{next(_numbers)}"), group))
        return stages

    def _references(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """A number for each table, less than those of tables that refer to it (circles are cut somewhere)."""
        names = sorted(set(tables))
        rows = self._session.run(
            """select w.n, v.n from unnest($1::text[]) with ordinality w(name, n)
            join pg_constraint c on c.conrelid = to_regclass(w.name) and c.contype = 'f'
            join unnest($1::text[]) with ordinality v(name, n) on c.confrelid = to_regclass(v.name)
            where w.n <> v.n""",
            [table.quoted for table in names],
        )
        parents: dict[TableId, set[TableId]] = defaultdict(set)
        for child, parent in rows:
            parents[names[child - 1]].add(names[parent - 1])
        return {table: place for place, table in enumerate(parents_first(names, parents))}


def _as_json(cells: Sequence[str | None]) -> str:
    return json.dumps(list(cells), ensure_ascii=False)
