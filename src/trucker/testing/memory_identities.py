"""Which tables of a destination in memory trucker has filled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from trucker.sinks.ledger import Ledger
from trucker.sinks.sql.filled_tables import FilledTables, StoredTable
from trucker.sinks.table_identity import TableChange, TableIdentity, compare
from trucker.sinks.target import TruckTable
from trucker.table import Column, TableId
from trucker.testing.memory_table import MemoryTable

MemoryTables = dict[TableId, MemoryTable]


class MemoryIdentities(FilledTables[MemoryTables, TableIdentity, MemoryTable]):
    """The identities of one project; `ledgers` and `identities` are those of all projects."""

    def __init__(
        self, project: str, ledgers: Mapping[str, Ledger], identities: dict[str, dict[TruckTable, TableIdentity]]
    ) -> None:
        self._project = project
        self._ledgers = ledgers
        self._identities = identities

    def load(
        self, transaction: MemoryTables, truck_table: TruckTable | None = None
    ) -> dict[TruckTable, StoredTable[TableIdentity]]:
        identities = self._identities.get(self._project, {})
        entries = self._ledgers.get(self._project, Ledger()).entries
        return {
            each: StoredTable(entry.phase, entry.target, identities.get(each))
            for each, entry in entries.items()
            if truck_table in (None, each)
        }

    def write(self, transaction: MemoryTables, truck_table: TruckTable, identity: TableIdentity | None) -> None:
        self._identities.setdefault(self._project, {})[truck_table] = identity or TableIdentity("")

    def see(self, transaction: MemoryTables, tables: Iterable[TableId]) -> dict[TableId, MemoryTable]:
        return {table: transaction[table] for table in tables if table in transaction}

    def identify(
        self, transaction: MemoryTables, table: TableId, now: MemoryTable, written: Collection[str] | None
    ) -> TableIdentity:
        return now.identity if written is None else now.identity.only(written)

    def written(self, identity: TableIdentity) -> Collection[str] | None:
        return identity.columns or None

    def compare(
        self,
        truck_table: TruckTable,
        table: TableId,
        identity: TableIdentity | None,
        now: MemoryTable | None,
        columns: Sequence[Column] | None,
        *,
        shared: bool,
    ) -> TableChange | None:
        return compare(*truck_table, table, identity, now.identity if now else None, columns, shared=shared)
