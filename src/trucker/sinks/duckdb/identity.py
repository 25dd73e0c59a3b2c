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
import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from trucker.errors import SinkError
from trucker.sinks.batch import Phase
from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.table_identity import TableChange, TableIdentity, compare, replaced_while_copied
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId, quote_identifier

log = logging.getLogger("trucker.sinks.duckdb")

MAKE: Final = (
    "CREATE TABLE IF NOT EXISTS {schema}.identities (project VARCHAR NOT NULL, truck VARCHAR NOT NULL, "
    "source_schema VARCHAR NOT NULL, source_table VARCHAR NOT NULL, identity VARCHAR NOT NULL)",
)
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


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of a table of a truck."""

    phase: Phase
    target: TableId | None
    marked: Marked | None

    @property
    def filled(self) -> bool:
        """Whether rows are in a table that count, so that another table would lack them."""
        return self.phase is not Phase.COPYING and self.target is not None and self.target.schema != ""


class Identities:
    """Reads and writes one project's identities; the caller owns the transaction."""

    def __init__(self, project: str) -> None:
        self._project = project

    # -- what is stored, and what is there -----------------------------------------------------------------------

    def load(self, connection: duckdb.DuckDBPyConnection) -> dict[TruckTable, Stored]:
        """What is stored of the project's tables; nothing where trucker's own tables are not there."""
        tables = {
            name
            for (name,) in run(
                connection,
                "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
                " AND schema_name = 'trucker'",
            )
        }
        if "tables" not in tables:
            return {}
        schema = f"{catalog(connection)}.trucker"
        marked = {
            (truck, TableId(source_schema, source)): Marked.from_json(text)
            for truck, source_schema, source, text in (
                run(
                    connection,
                    f"SELECT truck, source_schema, source_table, identity FROM {schema}.identities WHERE project = ?",
                    [self._project],
                )
                if "identities" in tables
                else ()
            )
        }
        rows = run(
            connection,
            "SELECT truck, source_schema, source_table, phase, target_schema, target_table "
            f"FROM {schema}.tables WHERE project = ?",
            [self._project],
        )
        return {
            (truck_table := (truck, TableId(source_schema, source))): Stored(
                Phase(phase), TableId(target_schema, target) if target is not None else None, marked.get(truck_table)
            )
            for truck, source_schema, source, phase, target_schema, target in rows
        }

    def see(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[TableId]) -> dict[TableId, SeenTable]:
        """These tables as they are; none where there is none."""
        wanted = sorted(set(tables))
        if not wanted:
            return {}
        names = [[table.schema for table in wanted], [table.name for table in wanted]]
        join = "JOIN (SELECT unnest(?) AS s, unnest(?) AS t) w ON schema_name = w.s AND table_name = w.t"
        columns: dict[TableId, dict[str, str | None]] = {}
        for schema, table, name, comment in run(
            connection,
            f"SELECT schema_name, table_name, column_name, comment FROM duckdb_columns() {join}"
            " WHERE database_name = current_database() ORDER BY column_index",
            names,
        ):
            columns.setdefault(TableId(schema, table), {})[name] = comment
        table_comments = {
            TableId(schema, table): comment
            for schema, table, comment in run(
                connection,
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

    def _put(self, connection: duckdb.DuckDBPyConnection, truck_table: TruckTable, marked: Marked) -> None:
        truck, table = truck_table
        where = [self._project, truck, table.schema, table.name]
        schema = f"{catalog(connection)}.trucker"
        run(
            connection,
            f"DELETE FROM {schema}.identities"
            " WHERE project = ? AND truck = ? AND source_schema = ? AND source_table = ?",
            where,
        )
        run(connection, f"INSERT INTO {schema}.identities VALUES (?, ?, ?, ?, ?)", [*where, marked.to_json()])

    def _mark(
        self, connection: duckdb.DuckDBPyConnection, table: TableId, seen: SeenTable, written: Collection[str]
    ) -> Marked:
        """Put marks where there are none yet."""
        comments = dict(seen.comments)
        columns = [name for name in seen.order if name in written]
        free = [name for name in reversed(columns) if comments.get(name, _PREFIX).startswith(_PREFIX)]
        name = f"{catalog(connection)}.{table.quoted}"
        for marked in (_TABLE, *free[:1]):
            if marked in comments:
                continue
            comments[marked] = f"{_PREFIX}{uuid.uuid4().hex}"
            what = f"COLUMN {name}.{quote_identifier(marked)}" if marked else f"TABLE {name}"
            run(connection, f"COMMENT ON {what} IS '{comments[marked]}'")
        marks = {
            each: text for each, text in comments.items() if text.startswith(_PREFIX) and each in (_TABLE, *columns)
        }
        return Marked(seen.order, frozenset(columns), marks)

    # -- prepare -------------------------------------------------------------------------------------------------

    def refuse_changed(self, connection: duckdb.DuckDBPyConnection, target: Target) -> Stored | None:
        """Raise for a table that has been filled and is another one now; what is stored of it."""
        state = self.load(connection).get((target.truck, target.source.table))
        if state is not None and _judged(state, target):
            change = self._compare(connection, target, state)
            if change is not None:
                raise change.error()
        return state

    def put(self, connection: duckdb.DuckDBPyConnection, target: Target, state: Stored | None) -> None:
        """Store what a prepared table is, inside the transaction that prepared it.

        Not while rows of the truck are in another table, or are going to be copied again: the stored identity is
        that of those rows.
        """
        if state is not None and state.filled and not _judged(state, target):
            return
        seen = self.see(connection, [target.table]).get(target.table)
        if seen is None:
            return
        marked = self._mark(connection, target.table, seen, target.source.names)
        if state is None or state.marked != marked:
            self._put(connection, (target.truck, target.source.table), marked)

    def _compare(self, connection: duckdb.DuckDBPyConnection, target: Target, state: Stored) -> TableChange | None:
        seen = self.see(connection, [target.table]).get(target.table)
        return _compared(
            (target.truck, target.source.table), target.table, state.marked, seen, target, shared=target.shared
        )

    # -- commit --------------------------------------------------------------------------------------------------

    def refuse_written(
        self, connection: duckdb.DuckDBPyConnection, targets: Sequence[Target], *, copied: bool
    ) -> Iterable[tuple[Target, SinkError]]:
        """Of the targets that a commit writes, those whose table is another one, with the reason."""
        stored = self.load(connection) if targets else {}
        for target in targets:
            state = stored.get((target.truck, target.source.table))
            if state is None or (not copied and not _judged(state, target)):
                continue
            change = self._compare(connection, target, state)
            if change is not None:
                yield target, replaced_while_copied(change.source, change.table) if copied else change.error()

    # -- open, check, accept -------------------------------------------------------------------------------------

    def adopt(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Store the identity of tables that an older trucker, which stored no identities, has filled."""
        unknown = {truck_table: s for truck_table, s in self.load(connection).items() if s.filled and s.marked is None}
        tables = self.see(connection, (s.target for s in unknown.values() if s.target))
        adopted = [(truck_table, s.target) for truck_table, s in unknown.items() if s.target in tables]
        for truck_table, target in adopted:
            assert target is not None
            self._put(connection, truck_table, self._mark(connection, target, tables[target], tables[target].order))
            tables = self.see(connection, tables)  # a table that is shared has its marks now
        if adopted:
            log.info(
                "tables written by an earlier version are accepted without a check",
                extra={"tables": sorted(str(table) for (_, table), _ in adopted)},
            )

    def changed(self, connection: duckdb.DuckDBPyConnection) -> list[TableChange]:
        """The tables that have been filled and are others now."""
        filled = {truck_table: state for truck_table, state in self.load(connection).items() if state.filled}
        tables = self.see(connection, (state.target for state in filled.values() if state.target))
        sharing = Counter((truck, state.target) for (truck, _), state in filled.items())
        changes = [
            _compared(
                truck_table,
                state.target,
                state.marked,
                tables.get(state.target),
                shared=sharing[truck_table[0], state.target] > 1,
            )
            for truck_table, state in sorted(filled.items(), key=lambda item: item[0])
            if state.target is not None
        ]
        return [change for change in changes if change is not None]

    def accept(self, connection: duckdb.DuckDBPyConnection, truck_tables: Collection[TruckTable]) -> None:
        """Store the identity of what is there now."""
        for truck_table, state in self.load(connection).items():
            if truck_table not in truck_tables or not state.filled or state.target is None:
                continue
            seen = self.see(connection, [state.target]).get(state.target)
            if seen is None:
                self._put(connection, truck_table, Marked((), frozenset(), {}))
                continue
            written = state.marked.written if state.marked and state.marked.order else frozenset(seen.order)
            self._put(connection, truck_table, self._mark(connection, state.target, seen, written))


def _judged(state: Stored, target: Target) -> bool:
    return state.filled and state.target == target.table and not target.stale


def _compared(
    truck_table: TruckTable,
    table: TableId,
    marked: Marked | None,
    seen: SeenTable | None,
    target: Target | None = None,
    *,
    shared: bool,
) -> TableChange | None:
    return compare(
        *truck_table,
        table,
        marked.identity if marked else None,
        (marked.recognise(seen) if marked else TableIdentity("same")) if seen else None,
        target.source.columns if target else None,
        shared=shared,
    )
