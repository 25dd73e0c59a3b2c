"""Tables in memory: the oracle that sinks are compared with in property tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final
from uuid import uuid4

from trucker.change import DELETE, INSERT, NO_OLD, TRUNCATE, UPDATE, Changes
from trucker.errors import SinkError
from trucker.sinks.table_identity import TableIdentity
from trucker.sinks.transactional.staged_changes import StagedRow
from trucker.table import TableSchema

StoredRow = dict[str, str | None]
_numbers: Final = count()
_INTEGERS: Final = frozenset({20, 21, 23})


@dataclass(slots=True)
class MemoryTable:
    """Rows of text cells. With a key at most one row per key; without, a bag of rows."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: list[StoredRow] = field(default_factory=list)
    missing: dict[str, str | None] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.columns:
            self.number(name)

    def number(self, column: str) -> None:
        """Give a new column a number that no other has had."""
        self.numbers[column] = next(_numbers)

    @property
    def identity(self) -> TableIdentity:
        return TableIdentity(self.mark, {name: self.numbers[name] for name in self.columns})

    @classmethod
    def like(cls, schema: TableSchema) -> MemoryTable:
        return cls(schema.names, schema.key, missing={c.name: c.missing_value for c in schema.columns})

    def widen(self, schema: TableSchema) -> None:
        """Take columns that are new; rows that are here get their `missing_value`."""
        for column in schema.columns:
            self.missing[column.name] = column.missing_value
            if column.name not in self.columns:
                self.columns = (*self.columns, column.name)
                self.number(column.name)
                for row in self.rows:
                    row[column.name] = column.missing_value

    def apply_each(self, changes: Changes) -> None:
        """Every change in commit order, as the source made them: the oracle of compaction."""
        for change in _Change.each(changes):
            if change.op == TRUNCATE:
                self.rows.clear()
                continue
            old_row = self._remove(change.old or change.new) if change.op != INSERT else None
            if change.op != DELETE:
                self.rows.append(self._row(change, old_row))

    def apply_net(self, parts: Sequence[Sequence[Changes]], *, awaits_rows: bool = False) -> None:
        """A batch as sinks apply it: truncate once, then part by part and value by value the net changes.

        Everything before the last truncate is ignored, in earlier parts too. See `Target.awaits_rows`.
        """
        values = [value for part in parts for value in part]
        truncated = [number for number, value in enumerate(values) if TRUNCATE in value.op]
        if truncated:
            self.rows.clear()
        for value in values[truncated[-1] if truncated else 0 :]:
            changes = [change for change in _Change.each(value) if change.op != TRUNCATE]
            self._apply_keyed(changes, awaits_rows) if self.key else self._apply_bag(changes)

    def apply_staged(self, rows: Sequence[StagedRow], *, awaits_rows: bool = False) -> None:
        """One round of staged rows."""
        changes = [_Change.of(row) for row in rows]
        self._apply_keyed(changes, awaits_rows) if self.key else self._apply_bag(changes)

    def _apply_keyed(self, changes: Sequence[_Change], awaits_rows: bool) -> None:
        """Deletes, then key-moving updates as a set from the rows before, then the rest."""
        original_rows = {self._key(row): row for row in self.rows}
        rows = dict(original_rows)
        if awaits_rows:
            changes = [c for c in changes if not c.unchanged or self._key(c.old or c.new) in original_rows]
        for change in changes:
            if change.op == DELETE or self._moves(change):
                rows.pop(self._key(change.old or change.new), None)
        for change in changes:
            if change.op != DELETE:
                base = original_rows if self._moves(change) else rows
                rows[self._key(change.new)] = self._row(change, base.get(self._key(change.old or change.new)))
        self.rows = list(rows.values())

    def _apply_bag(self, changes: Sequence[_Change]) -> None:
        """Inserts before removals: a bag ends the same in any order in which every removal finds its row."""
        for change in changes:
            if change.op != DELETE:
                self.rows.append(self._row(change, change.old))
        for change in changes:
            if change.op != INSERT and self._remove(change.old) is None:
                raise SinkError("a row to delete is not there")

    def _key(self, row: Mapping[str, str | None] | None) -> tuple[str | None, ...]:
        return tuple((row or {}).get(name) for name in self.key or self.columns)

    def _moves(self, change: _Change) -> bool:
        return change.new is not None and change.old is not None and self._key(change.old) != self._key(change.new)

    def _remove(self, row: Mapping[str, str | None] | None) -> StoredRow | None:
        key = self._key(row)
        for index, candidate in enumerate(self.rows):
            if self._key(candidate) == key:
                return self.rows.pop(index)
        return None

    def _row(self, change: _Change, old_row: Mapping[str, str | None] | None) -> StoredRow:
        if change.unchanged and old_row is None:
            raise SinkError("a row with unchanged cells is not there")
        row = dict(old_row or self.missing)
        row.update({name: cell for name, cell in (change.new or {}).items() if name not in change.unchanged})
        return {name: row.get(name) for name in self.columns}


@dataclass(frozen=True, slots=True)
class _Change:
    op: int
    new: StoredRow | None
    old: StoredRow | None
    unchanged: frozenset[str]

    @classmethod
    def of(cls, row: StagedRow) -> _Change:
        if row.action == DELETE:
            return cls(DELETE, None, dict(row.data), frozenset())
        op = INSERT if row.action == INSERT else UPDATE
        return cls(op, dict(row.data), dict(row.old_key) or None, frozenset(row.data) - frozenset(row.cells))

    @classmethod
    def each(cls, changes: Changes) -> Iterator[_Change]:
        new, old = changes.new.to_pylist(), changes.old.to_pylist()
        for i in range(len(changes)):
            op = int(changes.op[i])
            yield cls(
                op,
                None if op in (DELETE, TRUNCATE) else new[i],
                None if changes.old_kind[i] == NO_OLD else old[i],
                frozenset(name for name, mask in changes.unchanged.items() if mask[i]),
            )


def check_integers(schema: TableSchema, rows: Sequence[StagedRow]) -> None:
    """The only typing here, so that bad data can be tried on this sink as on any other."""
    for column in schema.columns:
        cells = [row.cells.get(column.name) for row in rows]
        if column.type_oid in _INTEGERS and any(c is not None and not c.lstrip("-").isdigit() for c in cells):
            raise SinkError(f"column {column.name} holds what is no {column.type_name or 'integer'}")
