"""Which tables and columns of a DuckDB file trucker has filled (`sinks.table_identity`).

DuckDB numbers tables anew each time a file is opened, so that no number tells one from another. What stays with a
table or a column through ALTER, CHECKPOINT and reopening is its comment, and what a new one never has is a comment. So
trucker puts a mark into comments, of a table and of the last column that it writes, where they have none: a comment of
the user's is left as it is. One column is enough: a column that is added again comes last, so that it has either
moved behind others or taken the place, without the mark, of the one that was last. A table of which every comment is
taken has no mark; then only what is missing, or in another order, is noticed.

`COPY FROM DATABASE` keeps comments, `EXPORT DATABASE` does not: tables imported from that are other ones.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.sql.identity_table import IdentityTable
from trucker.sinks.table_identity import TableChange, TableIdentity, compare
from trucker.sinks.target import TruckTable
from trucker.table import Column, TableId, quote_identifier

_PREFIX: Final = "trucker:"
_TABLE: Final = ""
"""Stands for the table itself among its columns."""
_REPLACED: Final = -1


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table as the catalogue has it: its columns in order, and the comments of those that have one, the table's own
    under `_TABLE`."""

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


class Identities(IdentityTable[duckdb.DuckDBPyConnection, Marked, SeenTable]):
    """Reads and writes one project's identities; the caller owns the transaction."""

    def to_text(self, identity: Marked | None) -> str:
        return (identity or Marked((), frozenset(), {})).to_json()

    def from_text(self, text: str) -> Marked:
        return Marked.from_json(text)

    def see(self, transaction: duckdb.DuckDBPyConnection, tables: Iterable[TableId]) -> dict[TableId, SeenTable]:
        """These tables as they are; none where there is none."""
        wanted = sorted(set(tables))
        if not wanted:
            return {}
        names = [[table.schema for table in wanted], [table.name for table in wanted]]
        join = "JOIN (SELECT unnest(?) AS s, unnest(?) AS t) w ON schema_name = w.s AND table_name = w.t"
        columns: dict[TableId, dict[str, str | None]] = {}
        for schema, table, name, comment in run(
            transaction,
            f"SELECT schema_name, table_name, column_name, comment FROM duckdb_columns() {join}"
            " WHERE database_name = current_database() ORDER BY column_index",
            names,
        ):
            columns.setdefault(TableId(schema, table), {})[name] = comment
        table_comments = {
            TableId(schema, table): comment
            for schema, table, comment in run(
                transaction,
                f"SELECT schema_name, table_name, comment FROM duckdb_tables() {join}"
                " WHERE database_name = current_database()",
                names,
            )
        }
        return {
            table: SeenTable(
                tuple(columns[table]),
                {
                    name: comment
                    for name, comment in {_TABLE: table_comments[table], **columns[table]}.items()
                    if comment is not None
                },
            )
            for table in table_comments
        }

    def identify(
        self, transaction: duckdb.DuckDBPyConnection, table: TableId, now: SeenTable, written: Collection[str] | None
    ) -> Marked:
        """Put marks where there are none yet."""
        comments = dict(now.comments)
        columns = [name for name in now.order if written is None or name in written]
        free = [name for name in reversed(columns) if comments.get(name, _PREFIX).startswith(_PREFIX)]
        name = f"{catalog(transaction)}.{table.quoted}"
        for marked in (_TABLE, *free[:1]):
            if marked in comments:
                continue
            comments[marked] = f"{_PREFIX}{uuid.uuid4().hex}"
            what = f"COLUMN {name}.{quote_identifier(marked)}" if marked else f"TABLE {name}"
            run(transaction, f"COMMENT ON {what} IS '{comments[marked]}'")
        marks = {
            each: text for each, text in comments.items() if text.startswith(_PREFIX) and each in (_TABLE, *columns)
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
