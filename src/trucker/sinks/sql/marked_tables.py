"""Which tables and columns of a destination trucker has filled, where nothing but comments tells tables apart
(`sinks.table_identity`).

Some stores number tables anew each time a database is opened, so that no number tells one from another. What stays with
a table or a column through ALTER and reopening is its comment, and what a new one never has is a comment. So trucker
puts a mark into comments, of a table and of the last column that it writes, where they have none: a comment of the
user's is left as it is. One column is enough: a column that is added again comes last, so that it has either moved
behind others or taken the place, without the mark, of the one that was last. A table of which every comment is taken
has no mark; then only what is missing, or in another order, is noticed.
"""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trucker.sinks.sql.dialect import T
from trucker.sinks.sql.identity_table import IdentityTable
from trucker.sinks.table_identity import TableChange, TableIdentity, compare
from trucker.sinks.target import TruckTable
from trucker.table import Column, TableId

_PREFIX: Final = "trucker:"
WHOLE_TABLE: Final = ""
"""Stands for the table itself among its columns."""
_REPLACED: Final = -1


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table as the catalogue has it: its columns in order, and the comments of those that have one, the table's own
    under `WHOLE_TABLE`."""

    order: tuple[str, ...]
    comments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Marked:
    """What is stored of a table: all its columns in order, those that trucker writes, and where its marks are.

    With `order` empty there is no table, which has been accepted: it may be made.
    """

    order: tuple[str, ...]
    written: frozenset[str]
    marks: Mapping[str, str]

    def to_json(self) -> str:
        return json.dumps(
            {"order": self.order, "written": sorted(self.written), "marks": dict(self.marks)}, ensure_ascii=False
        )

    @classmethod
    def from_json(cls, text: str) -> Marked:
        raw: dict[str, Any] = json.loads(text)
        return cls(tuple(raw["order"]), frozenset(raw["written"]), raw["marks"])

    @property
    def identity(self) -> TableIdentity:
        """Columns by their place among all that there were."""
        return TableIdentity(
            "same" if self.order else "", {name: n for n, name in enumerate(self.order) if name in self.written}
        )

    def recognise(self, seen: SeenTable) -> TableIdentity:
        """The table as it is now, in the numbers of `identity`, as far as its columns are those that were there."""
        if self.marks and not any(mark in seen.comments.values() for mark in self.marks.values()):
            return TableIdentity("other")
        numbers = {name: number for number, name in enumerate(self.order)}
        columns: dict[str, int] = {}
        last = -1
        for name in seen.order:
            number = numbers.get(name)
            if number is None:
                continue
            columns[name] = number if number > last and self._keeps_mark(name, seen) else _REPLACED
            last = max(last, number)
        return TableIdentity("same", {**self._renamed(seen, columns), **columns})

    def _keeps_mark(self, name: str, seen: SeenTable) -> bool:
        mark = self.marks.get(name)
        return mark is None or seen.comments.get(name) == mark

    def _renamed(self, seen: SeenTable, columns: Mapping[str, int]) -> dict[str, int]:
        """Columns under a name that was not there: those that bear a mark, and those that stand where as many others
        stood, before one that is the same. Behind the last there may be new ones."""
        place = {name: number for number, name in enumerate(self.order)}
        renamed = {
            name: place[marked]
            for marked, mark in self.marks.items()
            for name in seen.order
            if marked in place and name not in place and seen.comments.get(name) == mark
        }
        numbers = {**renamed, **{name: number for name, number in columns.items() if number != _REPLACED}}
        new: list[str] = []
        last = -1
        for name in seen.order:
            if name not in numbers:
                new += [name] if name not in place else []
                continue
            gap = [n for n in range(last + 1, numbers[name]) if self.order[n] not in seen.order]
            if len(gap) == len(new):
                renamed |= dict(zip(new, gap, strict=True))
            new, last = [], numbers[name]
        return renamed


class MarkedTables(IdentityTable[T, Marked, SeenTable]):
    """Reads and writes one project's identities; the caller owns the transaction. A store says how it looks at tables
    and puts a comment."""

    @abstractmethod
    def put_comment(self, transaction: T, table: TableId, column: str, comment: str) -> None:
        """Give a column, or the table itself (`WHOLE_TABLE`), this comment."""

    def to_text(self, identity: Marked | None) -> str:
        return (identity or Marked((), frozenset(), {})).to_json()

    def from_text(self, text: str) -> Marked:
        return Marked.from_json(text)

    def identify(self, transaction: T, table: TableId, now: SeenTable, written: Collection[str] | None) -> Marked:
        """Put marks where there are none yet."""
        comments = dict(now.comments)
        columns = [name for name in now.order if written is None or name in written]
        free = [name for name in reversed(columns) if comments.get(name, _PREFIX).startswith(_PREFIX)]
        for marked in (WHOLE_TABLE, *free[:1]):
            if marked not in comments:
                comments[marked] = f"{_PREFIX}{uuid.uuid4().hex}"
                self.put_comment(transaction, table, marked, comments[marked])
        marks = {
            each: text
            for each, text in comments.items()
            if text.startswith(_PREFIX) and each in (WHOLE_TABLE, *columns)
        }
        return Marked(now.order, frozenset(columns), marks)

    def written(self, identity: Marked) -> Collection[str] | None:
        return identity.written if identity.order else None

    def compare(
        self,
        truck_table: TruckTable,
        table: TableId,
        identity: Marked | None,
        now: SeenTable | None,
        columns: Sequence[Column] | None,
        *,
        shared: bool,
    ) -> TableChange | None:
        return compare(
            *truck_table,
            table,
            identity.identity if identity else None,
            (identity.recognise(now) if identity else TableIdentity("same")) if now else None,
            columns,
            shared=shared,
        )
