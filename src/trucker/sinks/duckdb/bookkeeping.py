"""Trucker's own tables in a DuckDB file, in the schema `trucker`: the ledger as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

from trucker.errors import SinkError
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.duckdb import identity, letter_table
from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.ledger import Entry, Ledger, Plan
from trucker.table import TableId

SCHEMA: Final = "trucker"
FORMAT: Final = 1

# No keys: rows are deleted and inserted again inside one transaction, which DuckDB's unique indexes do not allow.
_MAKE: Final = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE IF NOT EXISTS {schema}.format (version INTEGER NOT NULL)",
    "INSERT INTO {schema}.format SELECT {version} WHERE NOT EXISTS (FROM {schema}.format)",
    "CREATE TABLE IF NOT EXISTS {schema}.positions "
    "(project VARCHAR NOT NULL, truck VARCHAR NOT NULL, lsn VARCHAR NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {schema}.tables (project VARCHAR NOT NULL, truck VARCHAR NOT NULL, "
    "source_schema VARCHAR NOT NULL, source_table VARCHAR NOT NULL, phase VARCHAR NOT NULL, lsn VARCHAR NOT NULL, "
    "target_schema VARCHAR, target_table VARCHAR, snapshot VARCHAR NOT NULL)",
)


class Bookkeeping:
    """Reads and writes one project's ledger; the caller owns the transaction."""

    def __init__(self, project: str, path: Path) -> None:
        self._project = project
        self._path = path

    def make(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create what is missing. Raises `SinkError` for tables of a newer trucker."""
        schema = _schema(connection)
        for statement in (*_MAKE, *letter_table.MAKE, *identity.MAKE):
            run(connection, statement.format(schema=schema, version=FORMAT))
        self._refuse_format(connection)

    def read(self, connection: duckdb.DuckDBPyConnection) -> Ledger:
        """What is stored, where trucker's tables are there. Changes nothing."""
        format_count = run(
            connection,
            "SELECT count(*) FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = 'format'",
            [SCHEMA],
        )
        if format_count == [(0,)]:
            return Ledger()
        self._refuse_format(connection)
        return self.load(connection)

    def _refuse_format(self, connection: duckdb.DuckDBPyConnection) -> None:
        schema = _schema(connection)
        ((version,),) = run(connection, f"SELECT max(version) FROM {schema}.format")
        if version > FORMAT:
            raise SinkError(
                f"{self._path} was written by a newer trucker (format {version}, this one knows {FORMAT})",
                remedy="upgrade trucker",
                code="TRK434",
            )

    def load(self, connection: duckdb.DuckDBPyConnection) -> Ledger:
        schema = _schema(connection)
        positions = run(connection, f"SELECT truck, lsn FROM {schema}.positions WHERE project = ?", [self._project])
        tables = run(
            connection,
            "SELECT truck, source_schema, source_table, phase, lsn, target_schema, target_table, snapshot "
            f"FROM {schema}.tables WHERE project = ?",
            [self._project],
        )
        return Ledger(
            {truck: Lsn.parse(lsn) for truck, lsn in positions},
            {
                (truck, TableId(source_schema, source_table)): Entry(
                    Phase(phase), Lsn.parse(lsn), TableId(schema, table) if table is not None else None, snapshot
                )
                for truck, source_schema, source_table, phase, lsn, schema, table, snapshot in tables
            },
        )

    def store(self, connection: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        """Write what a plan changes."""
        schema = _schema(connection)
        gone = sorted({*plan.forgotten, *plan.positions})
        if gone:
            statement = f"DELETE FROM {schema}.positions WHERE project = ? AND truck IN (SELECT unnest(?))"
            run(connection, statement, [self._project, gone])
        for truck, lsn in plan.positions.items():
            run(connection, f"INSERT INTO {schema}.positions VALUES (?, ?, ?)", [self._project, truck, str(lsn)])
        for (truck, table), entry in plan.entries.items():
            truck_table = [self._project, truck, table.schema, table.name]
            run(
                connection,
                f"DELETE FROM {schema}.tables "
                "WHERE project = ? AND truck = ? AND source_schema = ? AND source_table = ?",
                truck_table,
            )
            target = [entry.target.schema, entry.target.name] if entry.target else [None, None]
            run(
                connection,
                f"INSERT INTO {schema}.tables VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [*truck_table, entry.phase.value, str(entry.lsn), *target, entry.snapshot],
            )


def _schema(connection: duckdb.DuckDBPyConnection) -> str:
    return f"{catalog(connection)}.{SCHEMA}"
