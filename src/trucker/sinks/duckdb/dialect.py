"""Trucker's own tables in a DuckDB file, in the schema `trucker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb

from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.sql.dialect import Dialect

SCHEMA: Final = "trucker"


class DuckDBDialect(Dialect[duckdb.DuckDBPyConnection]):
    """The SQL of one file. Letters are numbered by a sequence."""

    def __init__(self) -> None:
        self._catalog: str | None = None

    def run(
        self, transaction: duckdb.DuckDBPyConnection, statement: str, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        return run(transaction, statement, list(values))

    def name(self, transaction: duckdb.DuckDBPyConnection, table: str) -> str:
        if self._catalog is None:
            self._catalog = catalog(transaction)
        return f"{self._catalog}.{SCHEMA}.{table}"

    def tables(self, transaction: duckdb.DuckDBPyConnection) -> frozenset[str]:
        rows = run(
            transaction,
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = ?",
            [SCHEMA],
        )
        return frozenset(name for (name,) in rows)

    def new_number(self, transaction: duckdb.DuckDBPyConnection) -> str:
        return f"nextval('{self.name(transaction, 'dead_letter_ids')}')"

    def prepare(self, transaction: duckdb.DuckDBPyConnection) -> None:
        run(transaction, f"CREATE SCHEMA IF NOT EXISTS {catalog(transaction)}.{SCHEMA}")
        run(transaction, f"CREATE SEQUENCE IF NOT EXISTS {self.name(transaction, 'dead_letter_ids')}")
