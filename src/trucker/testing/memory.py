"""A sink whose destination is this process's memory, and tables that serve as the oracle of other sinks.

    sink = MemorySink("shop")
    ...
    store("shop").tables[TableId("public", "orders")].rows

`write` carries its rows in the receipt, so it may run in another process; `commit` must run in the one that looks.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final
from uuid import uuid4

from trucker.change import (
    DELETE,
    INSERT,
    NO_OLD,
    TRUNCATE,
    Changes,
    CopiedRows,
    TableId,
    TableSchema,
    as_changes,
)
from trucker.errors import SinkError, TruckFailed
from trucker.sinks.base import Batch, Capabilities, Phase, Receipt, Sink, Target, TruckState, Work
from trucker.sinks.ledger import Entry, Ledger, Slot, foreign_rows
from trucker.sinks.output_sql import refuse_truncate
from trucker.sinks.strict import refuse_columns
from trucker.sinks.table_identity import TableChange, TableIdentity, compare, replaced_while_copied

StoredRow = dict[str, str | None]
Key = tuple[str | None, ...]

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
            before = self._remove(change.old or change.new) if change.op != INSERT else None
            if change.op != DELETE:
                self.rows.append(self._row(change, before))

    def apply_net(self, parts: Sequence[Sequence[Changes]], *, awaits_rows: bool = False) -> None:
        """A batch as sinks apply it: truncate once, then part by part and value by value the net changes.

        What comes before the last truncate is void, in earlier parts too. See `Target.awaits_rows`.
        """
        values = [value for part in parts for value in part]
        truncated = [number for number, value in enumerate(values) if TRUNCATE in value.op]
        if truncated:
            self.rows.clear()
        for value in values[truncated[-1] if truncated else 0 :]:
            changes = [change for change in _Change.each(value) if change.op != TRUNCATE]
            self._apply_keyed(changes, awaits_rows) if self.key else self._apply_bag(changes)

    def _apply_keyed(self, changes: Sequence[_Change], awaits_rows: bool) -> None:
        """Deletes, then key-moving updates as a set from the rows before, then the rest."""
        before = {self._key(row): row for row in self.rows}
        rows = dict(before)
        if awaits_rows:
            changes = [c for c in changes if not c.unchanged or self._key(c.old or c.new) in before]
        for change in changes:
            if change.op == DELETE or self._moves(change):
                rows.pop(self._key(change.old or change.new), None)
        for change in changes:
            if change.op != DELETE:
                kept = before if self._moves(change) else rows
                rows[self._key(change.new)] = self._row(change, kept.get(self._key(change.old or change.new)))
        self.rows = list(rows.values())

    def _apply_bag(self, changes: Sequence[_Change]) -> None:
        """Inserts before removals: a bag ends the same in any order in which every removal finds its row."""
        for change in changes:
            if change.op != DELETE:
                self.rows.append(self._row(change, change.old))
        for change in changes:
            if change.op != INSERT and self._remove(change.old) is None:
                raise SinkError("a row to delete is not there")

    def _key(self, row: Mapping[str, str | None] | None) -> Key:
        return tuple((row or {}).get(name) for name in self.key or self.columns)

    def _moves(self, change: _Change) -> bool:
        return change.new is not None and change.old is not None and self._key(change.old) != self._key(change.new)

    def _remove(self, row: Mapping[str, str | None] | None) -> StoredRow | None:
        wanted = self._key(row)
        for index, candidate in enumerate(self.rows):
            if self._key(candidate) == wanted:
                return self.rows.pop(index)
        return None

    def _row(self, change: _Change, before: Mapping[str, str | None] | None) -> StoredRow:
        if change.unchanged and before is None:
            raise SinkError("a row with unchanged cells is not there")
        row = dict(before or self.missing)
        row.update({name: cell for name, cell in (change.new or {}).items() if name not in change.unchanged})
        return {name: row.get(name) for name in self.columns}


@dataclass(frozen=True, slots=True)
class _Change:
    op: int
    new: StoredRow | None
    old: StoredRow | None
    unchanged: frozenset[str]

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


@dataclass(slots=True)
class Store:
    """A destination: tables, and what each project has stored. Take `lock` to look while a sink commits."""

    tables: dict[TableId, MemoryTable] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    identities: dict[str, dict[Slot, TableIdentity]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


_stores: dict[str, Store] = {}
_stores_lock: Final = threading.Lock()


def store(name: str) -> Store:
    """The destination of that name in this process, made when first asked for."""
    with _stores_lock:
        return _stores.setdefault(name, Store())


def drop_store(name: str) -> None:
    """Forget a destination."""
    with _stores_lock:
        _stores.pop(name, None)


class MemorySink(Sink):
    """Guarantee: exactly once, for as long as the process lives; a batch becomes visible as a whole."""

    name: ClassVar[str] = "memory"
    capabilities: ClassVar[Capabilities] = Capabilities(guarantee="exactly once while the process lives")

    def __init__(self, destination: str, project: str = "") -> None:
        self._destination = destination
        self._project = project

    @property
    def _store(self) -> Store:
        return store(self._destination)

    def open(self) -> Mapping[str, TruckState]:
        with self._store.lock:
            return self._store.ledgers.setdefault(self._project, Ledger()).states()

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)
        with self._store.lock:
            filled = self._refuse_changed(target)
            table = self._store.tables.setdefault(target.table, MemoryTable.like(target.source))
            if target.strict:
                refuse_columns(target, table.columns, ())
            if table.key != target.source.key:
                raise SinkError(f"table {target.table} has the key {table.key}, not {target.source.key}")
            table.widen(target.source)
            if not filled or _judged(filled, target):
                slot = (target.truck, target.source.table)
                self._identities[slot] = table.identity.only(target.source.names)
        return frozenset()

    @property
    def _identities(self) -> dict[Slot, TableIdentity]:
        return self._store.identities.setdefault(self._project, {})

    def _refuse_changed(self, target: Target) -> Entry | None:
        """Raise for a table that has been filled and is another one now; where it was filled."""
        slot = (target.truck, target.source.table)
        entry = self._filled().get(slot)
        change = self._compare(slot, target.table, target) if entry and _judged(entry, target) else None
        if change is not None:
            raise change.error()
        return entry

    def _filled(self) -> dict[Slot, Entry]:
        entries = self._store.ledgers.get(self._project, Ledger()).entries
        return {slot: entry for slot, entry in entries.items() if entry.phase is not Phase.COPYING and entry.target}

    def _compare(self, slot: Slot, table: TableId, target: Target | None = None) -> TableChange | None:
        held = self._store.tables.get(table)
        sharing = [other for other, entry in self._filled().items() if (other[0], entry.target) == (slot[0], table)]
        return compare(
            *slot,
            table,
            self._identities.get(slot),
            held.identity if held else None,
            target.source.columns if target else None,
            shared=len(sharing) > 1,
        )

    def changed_tables(self) -> Sequence[TableChange]:
        with self._store.lock:
            found = [self._compare(slot, entry.target) for slot, entry in self._filled().items() if entry.target]
        return [change for change in found if change is not None]

    def accept_tables(self, slots: Collection[Slot]) -> None:
        with self._store.lock:
            for slot, entry in self._filled().items():
                if slot in slots and entry.target is not None:
                    held, known = self._store.tables.get(entry.target), self._identities.get(slot)
                    columns = known.columns if known and known.columns else held.columns if held else ()
                    self._identities[slot] = held.identity.only(columns) if held else TableIdentity("")

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        values = [value.only(work.target.source.names) for value in as_changes(changes)]
        for value in values if work.target.shared else ():
            refuse_truncate(work.target, value)
        staged = tuple(value.to_ipc() for value in values)
        rows = sum(len(value) for value in values)
        return Receipt(work.target.truck, work.target.source.table, work.part, rows, staged)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        with self._store.lock:
            ledger = self._store.ledgers.get(self._project, Ledger())
            plan = ledger.plan(batch)
            tables = deepcopy(self._store.tables)
            for copy in plan.copies:
                table = tables.setdefault(copy.target.table, MemoryTable.like(copy.target.source))
                if table.rows and not copy.ours:
                    raise foreign_rows(copy.target)
            due = [target for target in batch.targets if (target.truck, target.source.table) in plan.apply]
            for target in due:
                if (target.truck, target.source.table) not in self._identities:
                    continue  # never prepared
                change = self._compare((target.truck, target.source.table), target.table, target)
                if change is not None:
                    copied = replaced_while_copied(change.source, change.table)
                    raise TruckFailed(target.truck, copied if batch.snapshot else change.error())
            added = {target.table for target in due if (target.truck, target.source.table) in plan.adds}
            for target in due:
                if batch.snapshot and target.table in tables and target.table not in added:
                    tables[target.table].rows.clear()
                    added.add(target.table)
            for target in due:
                _apply(tables, target, receipts)
            self._store.tables.clear()
            self._store.tables.update(tables)
            self._store.ledgers[self._project] = ledger.after(plan)


def _apply(tables: dict[TableId, MemoryTable], target: Target, receipts: Sequence[Receipt]) -> None:
    table = tables.setdefault(target.table, MemoryTable.like(target.source))
    mine = [r for r in receipts if (r.truck, r.table) == (target.truck, target.source.table)]
    parts = [[Changes.from_ipc(value) for value in receipt.staged] for receipt in sorted(mine, key=_part)]
    try:
        for part in parts:
            for value in part:
                _check_integers(value)
        table.apply_net(parts, awaits_rows=target.awaits_rows)
    except SinkError as error:
        reason = SinkError(f"table {target.table}: {error.message}")
        raise TruckFailed(target.truck, reason, target.source.table) from error


def _judged(entry: Entry, target: Target) -> bool:
    return entry.target == target.table and not target.stale


def _part(receipt: Receipt) -> int:
    return receipt.part


def _check_integers(changes: Changes) -> None:
    """The only typing here, so that bad data can be tried on this sink as on any other."""
    for column in changes.schema.columns:
        cells: list[Any] = changes.new.column(column.name).to_pylist()
        if column.type_oid in _INTEGERS and any(c is not None and not c.lstrip("-").isdigit() for c in cells):
            raise SinkError(f"column {column.name} holds what is no {column.type_name or 'integer'}")
