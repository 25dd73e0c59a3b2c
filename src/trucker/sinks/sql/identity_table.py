"""Identities as text, in rows of trucker's own table `identities`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from trucker.sinks.batch import Phase
from trucker.sinks.sql.dialect import Dialect, T
from trucker.sinks.sql.filled_tables import FilledTables, I, N, StoredTable
from trucker.sinks.sql.ledger_tables import OF_TABLE, make_tables
from trucker.sinks.target import TruckTable
from trucker.table import TableId

_MAKE: Final = {
    "identities": "project {text} NOT NULL, truck {text} NOT NULL, source_schema {text} NOT NULL, "
    "source_table {text} NOT NULL, identity {text} NOT NULL"
}


class IdentityTable(FilledTables[T, I, N]):
    """One project's identities; a subclass says what text each has."""

    def __init__(self, dialect: Dialect[T], project: str) -> None:
        self._dialect = dialect
        self._project = project

    @abstractmethod
    def to_text(self, identity: I | None) -> str:
        """An identity as text; None is a table that is not there and may be created."""

    @abstractmethod
    def from_text(self, text: str) -> I: ...

    def make(self, transaction: T) -> None:
        """Create the table where it is missing."""
        make_tables(self._dialect, transaction, _MAKE)

    def load(self, transaction: T, truck_table: TruckTable | None = None) -> dict[TruckTable, StoredTable[I]]:
        tables = self._dialect.tables(transaction)
        if "tables" not in tables:
            return {}
        where, values = ("project = ?", (self._project,)) if truck_table is None else self._of(truck_table)
        identities = {
            (truck, TableId(schema, table)): self.from_text(text)
            for truck, schema, table, text in (
                self._dialect.run(
                    transaction,
                    f"SELECT truck, source_schema, source_table, identity FROM {self._name(transaction)} WHERE {where}",
                    values,
                )
                if "identities" in tables
                else ()
            )
        }
        rows = self._dialect.run(
            transaction,
            "SELECT truck, source_schema, source_table, phase, target_schema, target_table "
            f"FROM {self._dialect.name(transaction, 'tables')} WHERE {where}",
            values,
        )
        return {
            (each := (truck, TableId(source_schema, source))): StoredTable(
                Phase(phase), None if table is None else TableId(schema, table), identities.get(each)
            )
            for truck, source_schema, source, phase, schema, table in rows
        }

    def write(self, transaction: T, truck_table: TruckTable, identity: I | None) -> None:
        where, values = self._of(truck_table)
        name = self._name(transaction)
        self._dialect.run(transaction, f"DELETE FROM {name} WHERE {where}", values)
        self._dialect.run(transaction, f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)", [*values, self.to_text(identity)])

    def _of(self, truck_table: TruckTable) -> tuple[str, tuple[str, ...]]:
        truck, table = truck_table
        return OF_TABLE, (self._project, truck, table.schema, table.name)

    def _name(self, transaction: T) -> str:
        return self._dialect.name(transaction, "identities")
