"""A sink whose destination is this process's memory.

    sink = MemorySink("shop")
    ...
    store("shop").tables[TableId("public", "orders")].rows

`stage` carries the rows in the receipt, so it may run in another process; `publish` must run in the one that looks.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from trucker.abilities import Abilities
from trucker.change import Changes, CopiedRows
from trucker.errors import SinkError, TruckFailed
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Phase, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Entry, Ledger, Plan
from trucker.sinks.spool import Spool
from trucker.sinks.strict import refuse_columns
from trucker.sinks.table_identity import TableChange, TableIdentity, compare, replaced_while_copied
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.transactional import TransactionalSink
from trucker.sinks.transactional.staged_changes import StagedLoad, StagedRow
from trucker.table import TableId, TableSchema
from trucker.testing.memory_table import MemoryTable

_INTEGERS: Final = frozenset({20, 21, 23})
# All rows travel in receipts: there is no folder.
_UNLIMITED: Final = 1 << 62


@dataclass(slots=True)
class Store:
    """A destination: tables, and what each project has stored. Take `lock` to look while a sink commits."""

    tables: dict[TableId, MemoryTable] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    identities: dict[str, dict[TruckTable, TableIdentity]] = field(default_factory=dict)
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


MemoryTables = dict[TableId, MemoryTable]


class MemorySink(TransactionalSink[MemoryTables]):
    """Guarantee: exactly once, for as long as the process lives; a batch becomes visible as a whole."""

    name: ClassVar[str] = "memory"
    abilities: ClassVar[Abilities] = Abilities(guarantee="exactly once while the process lives")

    def __init__(self, destination: str, project: str = "") -> None:
        super().__init__(Workspace(project, Path("nowhere")))
        self._spool = Spool(Path("nowhere"), inline_bytes=_UNLIMITED)
        self._destination = destination

    @property
    def _store(self) -> Store:
        return store(self._destination)

    @contextmanager
    def transaction(self) -> Iterator[MemoryTables]:
        with self._store.lock:
            tables, ledgers = deepcopy(self._store.tables), dict(self._store.ledgers)
            try:
                yield tables
            except BaseException:
                self._store.ledgers = ledgers
                raise
            self._store.tables.clear()
            self._store.tables.update(tables)

    def load(self, transaction: MemoryTables) -> Ledger:
        return self._store.ledgers.setdefault(self._project, Ledger())

    def store(self, transaction: MemoryTables, ledger: Ledger, plan: Plan) -> None:
        self._store.ledgers[self._project] = ledger

    def is_empty(self, transaction: MemoryTables, table: TableId) -> bool:
        return table not in transaction or not transaction[table].rows

    def empty(self, transaction: MemoryTables, target: Target) -> None:
        if target.table in transaction:
            transaction[target.table].rows.clear()

    def apply(self, transaction: MemoryTables, load: StagedLoad) -> None:
        target = load.target
        table = transaction.setdefault(target.table, MemoryTable.like(target.source))
        try:
            for rows in load.rows_by_round():
                _check_integers(target.source, rows)
                table.apply_staged(rows, awaits_rows=target.awaits_rows)
        except SinkError as error:
            raise SinkError(f"table {target.table}: {error.message}") from error

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return super().stage(replace(work, room=_UNLIMITED), changes)

    # -- tables that somebody else drops or alters -----------------------------------------------------------------

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
                self._identities[target.truck_table] = table.identity.only(target.source.names)
        return frozenset()

    def publish(self, delivery: Delivery) -> None:
        with self._store.lock:
            for target in delivery.targets:
                change = (
                    self._compare(target.truck_table, target.table, target)
                    if target.truck_table in self._identities
                    else None
                )
                if change is not None:
                    copied = replaced_while_copied(change.source, change.table)
                    raise TruckFailed(target.truck, copied if delivery.snapshot else change.error())
            super().publish(delivery)

    @property
    def _identities(self) -> dict[TruckTable, TableIdentity]:
        return self._store.identities.setdefault(self._project, {})

    def _refuse_changed(self, target: Target) -> Entry | None:
        """Raise where a table that was filled has been dropped or replaced. Returns its entry, if it was filled."""
        entry = self._filled().get(target.truck_table)
        change = self._compare(target.truck_table, target.table, target) if entry and _judged(entry, target) else None
        if change is not None:
            raise change.error()
        return entry

    def _filled(self) -> dict[TruckTable, Entry]:
        entries = self._store.ledgers.get(self._project, Ledger()).entries
        return {
            truck_table: entry
            for truck_table, entry in entries.items()
            if entry.phase is not Phase.COPYING and entry.target
        }

    def _compare(self, truck_table: TruckTable, table: TableId, target: Target | None = None) -> TableChange | None:
        stored = self._store.tables.get(table)
        sharing = [
            other for other, entry in self._filled().items() if (other[0], entry.target) == (truck_table[0], table)
        ]
        return compare(
            *truck_table,
            table,
            self._identities.get(truck_table),
            stored.identity if stored else None,
            target.source.columns if target else None,
            shared=len(sharing) > 1,
        )

    def changed_tables(self) -> Sequence[TableChange]:
        with self._store.lock:
            changes = [
                self._compare(truck_table, entry.target)
                for truck_table, entry in self._filled().items()
                if entry.target
            ]
        return [change for change in changes if change is not None]

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        with self._store.lock:
            for truck_table, entry in self._filled().items():
                if truck_table in truck_tables and entry.target is not None:
                    stored, known_identity = self._store.tables.get(entry.target), self._identities.get(truck_table)
                    columns = (
                        known_identity.columns
                        if known_identity and known_identity.columns
                        else stored.columns
                        if stored
                        else ()
                    )
                    self._identities[truck_table] = stored.identity.only(columns) if stored else TableIdentity("")


def _judged(entry: Entry, target: Target) -> bool:
    return entry.target == target.table and not target.stale


def _check_integers(schema: TableSchema, rows: Sequence[StagedRow]) -> None:
    """The only typing here, so that bad data can be tried on this sink as on any other."""
    for column in schema.columns:
        cells = [row.cells.get(column.name) for row in rows]
        if column.type_oid in _INTEGERS and any(c is not None and not c.lstrip("-").isdigit() for c in cells):
            raise SinkError(f"column {column.name} holds what is no {column.type_name or 'integer'}")
