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
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.ledger import Ledger, Plan
from trucker.sinks.spool import Spool
from trucker.sinks.strict import refuse_columns
from trucker.sinks.table_identity import TableChange, TableIdentity
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.transactional import TransactionalSink
from trucker.sinks.transactional.staged_changes import StagedLoad
from trucker.table import TableId
from trucker.testing.memory_identities import MemoryIdentities, MemoryTables
from trucker.testing.memory_table import MemoryTable, check_integers

_UNLIMITED: Final = 1 << 62  # all rows travel in receipts: there is no folder


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
                check_integers(target.source, rows)
                table.apply_staged(rows, awaits_rows=target.awaits_rows)
        except SinkError as error:
            raise SinkError(f"table {target.table}: {error.message}") from error

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return super().stage(replace(work, room=_UNLIMITED), changes)

    # -- tables that another program drops or alters ----------------------------------------------------------------

    def prepare(self, target: Target) -> frozenset[str]:
        super().prepare(target)
        with self.transaction() as tables:
            state = self._identities.refuse_changed(tables, target, tables.get(target.table))
            table = tables.setdefault(target.table, MemoryTable.like(target.source))
            if target.strict:
                refuse_columns(target, table.columns, ())
            if table.key != target.source.key:
                raise SinkError(f"table {target.table} has the key {table.key}, not {target.source.key}")
            table.widen(target.source)
            self._identities.put(tables, target, table, state)
        return frozenset()

    @property
    def _identities(self) -> MemoryIdentities:
        return MemoryIdentities(self._project, self._store.ledgers, self._store.identities)

    def refuse_changed(self, transaction: MemoryTables, targets: Sequence[Target], *, copied: bool) -> None:
        for target, reason in self._identities.refuse_written(transaction, targets, copied=copied):
            raise TruckFailed(target.truck, reason)

    def changed_tables(self) -> Sequence[TableChange]:
        with self._store.lock:
            return self._identities.changed(self._store.tables)

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        with self._store.lock:
            self._identities.accept(self._store.tables, truck_tables)
