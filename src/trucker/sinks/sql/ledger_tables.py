"""The ledger as rows of trucker's own tables.

format      the version of these tables
positions   truck                    → LSN
tables      truck and source table   → phase, LSN, where its rows are, the attempt that copied it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic

from trucker.errors import SinkError
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.ledger import Entry, Ledger, Plan
from trucker.sinks.sql.dialect import Dialect, T
from trucker.table import TableId

FORMAT: Final = 1
ENTRY_COLUMNS: Final = "truck, source_schema, source_table, phase, lsn, target_schema, target_table, snapshot"
# What names a table of a truck in trucker's own tables.
OF_TABLE: Final = "project = ? AND truck = ? AND source_schema = ? AND source_table = ?"

# No keys: rows are deleted and inserted again in one transaction, which not every store's unique indexes allow.
_MAKE: Final = {
    "format": "version INTEGER NOT NULL",
    "positions": "project {text} NOT NULL, truck {text} NOT NULL, lsn {text} NOT NULL",
    "tables": "project {text} NOT NULL, truck {text} NOT NULL, source_schema {text} NOT NULL, "
    "source_table {text} NOT NULL, phase {text} NOT NULL, lsn {text} NOT NULL, target_schema {text}, "
    "target_table {text}, snapshot {text} NOT NULL",
}


def ledger_of(positions: Iterable[tuple[Any, ...]], entries: Iterable[tuple[Any, ...]]) -> Ledger:
    """The ledger of rows of positions (truck, LSN) and of tables (`ENTRY_COLUMNS`)."""
    return Ledger(
        {truck: Lsn.parse(lsn) for truck, lsn in positions if lsn is not None},
        {
            (truck, TableId(source_schema, source)): Entry(
                Phase(phase), Lsn.parse(lsn), None if table is None else TableId(schema, table), snapshot
            )
            for truck, source_schema, source, phase, lsn, schema, table, snapshot in entries
        },
    )


class LedgerTables(Generic[T]):
    """Reads and writes one project's ledger; the caller owns the transaction. `place` is what errors call the store."""

    def __init__(self, dialect: Dialect[T], project: str, place: str) -> None:
        self._dialect = dialect
        self._project = project
        self._place = place

    def make(self, transaction: T) -> None:
        """Create what is missing. Raises `SinkError` for tables of a newer trucker."""
        make_tables(self._dialect, transaction, _MAKE)
        name = self._dialect.name(transaction, "format")
        if not self._dialect.run(transaction, f"SELECT version FROM {name}"):
            self._dialect.run(transaction, f"INSERT INTO {name} VALUES (?)", [FORMAT])
        self._refuse_format(transaction)

    def read(self, transaction: T) -> Ledger:
        """What is stored, where trucker's tables are there. Changes nothing."""
        if "format" not in self._dialect.tables(transaction):
            return Ledger()
        self._refuse_format(transaction)
        return self.load(transaction)

    def _refuse_format(self, transaction: T) -> None:
        ((version,),) = self._run(transaction, "SELECT max(version) FROM {format}")
        if version > FORMAT:
            raise SinkError(
                f"{self._place} was written by a newer trucker (format {version}, this one knows {FORMAT})",
                remedy="upgrade trucker",
                code="TRK434",
            )

    def load(self, transaction: T) -> Ledger:
        positions = self._run(transaction, "SELECT truck, lsn FROM {positions} WHERE project = ?", self._project)
        entries = f"SELECT {ENTRY_COLUMNS} FROM {{tables}} WHERE project = ?"
        return ledger_of(positions, self._run(transaction, entries, self._project))

    def store(self, transaction: T, plan: Plan) -> None:
        """Write what a plan changes."""
        gone = sorted({*plan.forgotten, *plan.positions})
        if gone:
            trucks = ", ".join("?" * len(gone))
            statement = f"DELETE FROM {{positions}} WHERE project = ? AND truck IN ({trucks})"
            self._run(transaction, statement, self._project, *gone)
        for truck, lsn in plan.positions.items():
            self._run(transaction, "INSERT INTO {positions} VALUES (?, ?, ?)", self._project, truck, str(lsn))
        for (truck, table), entry in plan.entries.items():
            truck_table = (self._project, truck, table.schema, table.name)
            self._run(transaction, f"DELETE FROM {{tables}} WHERE {OF_TABLE}", *truck_table)
            target = (entry.target.schema, entry.target.name) if entry.target else (None, None)
            self._run(
                transaction,
                "INSERT INTO {tables} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(*truck_table, entry.phase.value, str(entry.lsn), *target, entry.snapshot),
            )

    def _run(self, transaction: T, statement: str, *values: object) -> list[tuple[Any, ...]]:
        names = {table: self._dialect.name(transaction, table) for table in _MAKE}
        return self._dialect.run(transaction, statement.format(**names), values)


def make_tables(dialect: Dialect[T], transaction: T, columns: dict[str, str]) -> None:
    """Create those of trucker's own tables that are missing, with these columns."""
    for table, definition in columns.items():
        types = definition.format(text=dialect.text, instant=dialect.instant, letter_number=dialect.letter_number)
        dialect.run(transaction, f"CREATE TABLE IF NOT EXISTS {dialect.name(transaction, table)} ({types})")
