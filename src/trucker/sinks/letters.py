"""Dead letters: changes that a destination refuses for what is in them, kept there until they can be applied.

A letter is the *net change of one row*, from what the destination holds of it to what the source holds: either the
whole row as it is to be, or that it is to go. There is at most one letter for a key, because whatever comes for that
key later is folded into it (`fold`), exactly as the changes of one batch are (`engine.compact`), and tried again:

    a letter and a whole new row      the new row is tried; if it fits, the letter is gone
    a letter and a row in part        the cells that were not sent are the letter's (I7)
    a letter and a delete             the delete is tried; if it can be done, the letter is gone
    a letter and a truncate           the letter is gone

So a letter never holds anything older than what the destination has, and applying it can never undo a newer change,
however late that is done. When a letter is made of a row that was sent in part, the other cells are taken from the
destination, where that row still is as it was.

Without a key a letter is one copy of a row too few or too many; the opposite change of an equal row cancels it.

Letters are written, changed and removed in the transaction that moves the position (I3).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

from trucker.errors import DataError, SinkError
from trucker.lsn import Lsn
from trucker.sinks.target import Target
from trucker.table import Column, TableId, TableSchema

log = logging.getLogger("trucker.letters")

Row = Mapping[str, str | None]
Operation = Literal["insert", "update", "delete"]
Identity = tuple[TableId, tuple[str | None, ...]]
"""A source table and what identifies a row in it: the key's cells, or all cells where there is no key."""

# The longest text of a key's column that an error shows.
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a row was refused, without its data (I10)."""

    sqlstate: str
    message: str
    constraint: str | None = None
    column: str | None = None

    @classmethod
    def of(cls, error: DataError) -> Reason:
        return cls(error.sqlstate, error.message, error.constraint, error.column)


@dataclass(frozen=True, slots=True)
class Letter:
    """One row's net change. `data` is the row as PostgreSQL wrote it; of a delete, what identifies it.

    `key` names the columns that identify it, none where there is no key. `lsn` and `ordinal` are the position of the
    last change in it. `number` is the destination's, 0 for one that is not stored.
    """

    truck: str
    source: TableId
    target: TableId
    key: tuple[str, ...]
    operation: Operation
    data: Row
    lsn: Lsn
    ordinal: int
    reason: Reason
    tries: int = 1
    number: int = 0

    @property
    def identity(self) -> Identity:
        names = self.key or tuple(sorted(self.data))
        return self.source, tuple(self.data[name] for name in names)

    @property
    def deletes(self) -> bool:
        return self.operation == "delete"

    @property
    def key_row(self) -> dict[str, str | None]:
        return {name: self.data[name] for name in self.key}

    def reshaped(self, source: TableSchema) -> Row:
        """Its data once the table has these columns: a row that was there when one was added holds what the source
        gave all older rows. Without a key the columns are what a row is known by: those that are gone go, too."""
        if self.source != source.table or (self.deletes and source.key):
            return self.data
        data = {**{column.name: column.missing_value for column in source.columns}, **self.data}
        return data if source.key else {name: data[name] for name in source.names}

    def as_target(self) -> Target:
        """Where it goes, as far as a letter knows: the columns' types are the destination's."""
        columns = tuple(Column(name, 0) for name in self.data)
        return Target(self.truck, TableSchema(self.source, columns, self.key), self.target)


def fold(before: Letter, after: Letter, sent: Sequence[str] | None = None) -> Letter:
    """What is to be done once `after` has come for the row of `before`, a row with a key.

    `sent` names the cells that `after` has, None where it has all. Raises for a row that the source changed after
    it deleted it: something is missing in between.
    """
    data: Row = after.data
    if sent is not None and not after.deletes:
        if before.deletes:
            raise SinkError(
                f"table {after.target}: a partial row arrived for a key whose deletion is a dead letter",
                remedy=f"run `trucker reset --truck {after.truck}`, then `trucker run`, which copies the table again",
                code="TRK471",
            )
        data = {**before.data, **{name: after.data[name] for name in sent}}
    operation = after.operation
    if operation == "update" and before.operation == "insert":
        operation = "insert"
    elif operation == "insert" and before.operation != "insert":
        operation = "update"
    return replace(after, data=data, operation=operation, tries=before.tries, number=before.number)


class Pending:
    """The letters of one truck while a batch is applied: those that are stored and those that have come up.

    `changed` are those that the batch has touched, in order; `gone` the numbers of stored ones that are no more.
    """

    def __init__(self, stored: Sequence[Letter]) -> None:
        self._letters: dict[Identity, list[Letter]] = {}
        self._changed: dict[int, Letter] = {}
        self.gone: set[int] = set()
        for letter in stored:
            self._letters.setdefault(letter.identity, []).append(letter)

    def __len__(self) -> int:
        return sum(map(len, self._letters.values()))

    def of(self, target: Target) -> list[Letter]:
        """The letters of a table. Raises where its key has changed since: they could not be found by it."""
        table_letters = [x for letters in self._letters.values() for x in letters if x.source == target.source.table]
        for letter in table_letters:
            if set(letter.key) != set(target.source.key):
                raise key_changed(target)
        return table_letters

    def numbered(self, numbers: Container[int]) -> list[Letter]:
        """The stored letters with these numbers."""
        return [x for letters in self._letters.values() for x in letters if x.number in numbers]

    def find(self, identity: Identity) -> Letter | None:
        letters = self._letters.get(identity)
        return letters[0] if letters else None

    def add(self, letter: Letter) -> None:
        """A row that has been refused."""
        self._letters.setdefault(letter.identity, []).append(letter)
        self._changed[id(letter)] = letter

    def remove(self, letter: Letter) -> None:
        """It has been applied, or there is nothing left of it to apply."""
        letters = self._letters[letter.identity]
        letters.remove(letter)
        if not letters:
            del self._letters[letter.identity]
        self._changed.pop(id(letter), None)
        if letter.number:
            self.gone.add(letter.number)

    def change(self, before: Letter, after: Letter) -> None:
        """`after` stands in the place of `before`, whose row it is."""
        letters = self._letters[before.identity]
        letters[letters.index(before)] = after
        self._changed.pop(id(before), None)
        self._changed[id(after)] = after

    def clear(self, table: TableId) -> None:
        """The table has been emptied."""
        for letters in [letters for (of, _), letters in self._letters.items() if of == table]:
            for letter in list(letters):
                self.remove(letter)

    @property
    def changed(self) -> list[Letter]:
        return sorted(self._changed.values(), key=lambda letter: (letter.lsn, letter.ordinal))


def reshaped(letters: Iterable[Letter], source: TableSchema) -> list[Letter]:
    """Those of the letters whose data is other data once the table has these columns."""
    data = ((letter, letter.reshaped(source)) for letter in letters)
    return [replace(letter, data=row) for letter, row in data if row != letter.data]


@dataclass(frozen=True, slots=True)
class Redriven:
    """The outcome of a redriven letter: `applied`, or the reason for which it is still refused. In a dry run `applied`
    is None where the destination cannot try without doing: the reason is that of the last time."""

    letter: Letter
    applied: bool | None

    def shown(self) -> dict[str, Any]:
        """Without the row's data."""
        letter, reason = self.letter, self.letter.reason
        return {
            "id": letter.number,
            "truck": letter.truck,
            "table": str(letter.source),
            "target": str(letter.target),
            "operation": letter.operation,
            "key": letter.key_row,
            "lsn": str(letter.lsn),
            "ordinal": letter.ordinal,
            "applied": self.applied,
            "tries": letter.tries,
            "sqlstate": reason.sqlstate,
            "reason": reason.message,
            "constraint": reason.constraint,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters to redrive: of these trucks, of one source table, with these numbers; None is any."""

    trucks: tuple[str, ...]
    table: TableId | None = None
    numbers: tuple[int, ...] | None = None

    def takes(self, letter: Letter) -> bool:
        return (
            letter.truck in self.trucks
            and self.table in (None, letter.source)
            and (self.numbers is None or letter.number in self.numbers)
        )


@runtime_checkable
class KeepsLetters(Protocol):
    """A sink that sets failing rows aside for trucks that say so.

    `letters` is how many each truck has, as far as the sink has seen; `count_letters` asks the destination.
    """

    letters: Mapping[str, int]

    def count_letters(self) -> Mapping[str, int]: ...

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        """Apply letters again, in the order of their positions and in one transaction for each truck: those that are
        applied are removed, the others stay with the new reason. With `dry_run` nothing is changed in the end.

        A stream sends its letters again as they were, and tries nothing with `dry_run` (`sinks.event_letters`)."""
        ...


def name_row(error: DataError, target: Target, key: Row) -> DataError:
    """The same error with the key of the row it is about."""
    row = ", ".join(f"{name} = {_short(value)}" for name, value in key.items())
    what = f"row ({row}) of table {target.table}" if row else f"a row of table {target.table}, which has no key,"
    reason = error.message.removeprefix(f"table {target.table}: ")
    return DataError(
        f"{what}: {reason}",
        remedy=f"{error.remedy}; or write on_error: dead_letter in truck.yml to set such rows aside",
        code=error.code,
        sqlstate=error.sqlstate,
        constraint=error.constraint,
        column=error.column,
    )


def too_many(truck: str, most: int, reason: Reason) -> SinkError:
    """More rows fail than a truck may set aside."""
    return SinkError(
        f"truck {truck} would have more than {most} dead letters; the last error is: {reason.message}",
        remedy="fix the cause and run `trucker redrive`, or raise dead_letters_max in truck.yml",
        code="TRK470",
    )


def key_changed(target: Target) -> SinkError:
    return SinkError(
        f"the key of {target.source.table} has changed, and truck {target.truck} has dead letters with the old key",
        remedy=f"fix the cause and run `trucker redrive --truck {target.truck}`, then `trucker run`",
        code="TRK472",
    )


def log_set_aside(letters: Sequence[Letter]) -> None:
    """Log that rows have become dead letters, a line for each table, never with data (I10)."""
    tables: dict[tuple[str, TableId], list[Letter]] = {}
    for letter in letters:
        tables.setdefault((letter.truck, letter.source), []).append(letter)
    for (truck, table), group in tables.items():
        facts = {"truck": truck, "table": str(table), "count": len(group), "reason": group[-1].reason.message}
        log.warning("rows set aside as dead letters", extra=facts)


def to_json(row: Row) -> str:
    return json.dumps(dict(row), ensure_ascii=False)


def _short(value: str | None) -> str:
    if value is None:
        return "NULL"
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
