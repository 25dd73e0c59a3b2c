"""`trucker.dead_letters` in a DuckDB file: letters as rows. See `LetterStore`."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

import duckdb

from trucker.lsn import Lsn
from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.letters import Letter, Reason, to_json
from trucker.sinks.target import TruckTable
from trucker.table import TableId

# Numbers are given once, by the sequence: a number that a user has read must not come to mean another letter.
MAKE: Final = (
    "CREATE SEQUENCE IF NOT EXISTS {schema}.dead_letter_ids",
    "CREATE TABLE IF NOT EXISTS {schema}.dead_letters (id BIGINT NOT NULL, project VARCHAR NOT NULL, "
    "truck VARCHAR NOT NULL, source_schema VARCHAR NOT NULL, source_table VARCHAR NOT NULL, "
    "target_schema VARCHAR NOT NULL, target_table VARCHAR NOT NULL, operation VARCHAR NOT NULL, "
    "lsn VARCHAR NOT NULL, ordinal BIGINT NOT NULL, key VARCHAR NOT NULL, data VARCHAR NOT NULL, "
    "sqlstate VARCHAR NOT NULL, reason VARCHAR NOT NULL, constraint_name VARCHAR, column_name VARCHAR, "
    "tries INTEGER NOT NULL, created_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ NOT NULL)",
)
_COLUMNS: Final = (
    "id, truck, source_schema, source_table, target_schema, target_table, operation, lsn, ordinal, key, data, "
    "sqlstate, reason, constraint_name, column_name, tries"
)


class LetterTable:
    """One project's letters."""

    def __init__(self, project: str) -> None:
        self._project = project

    def count(self, connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
        """How many each truck has; none in a file that has no such table."""
        exists = run(
            connection,
            "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() "
            "AND schema_name = 'trucker' AND table_name = 'dead_letters'",
        )
        if not exists:
            return {}
        statement = f"SELECT truck, count(*) FROM {_table(connection)} WHERE project = ? GROUP BY truck"
        return dict(run(connection, statement, [self._project]))

    def read(self, connection: duckdb.DuckDBPyConnection, truck: str) -> list[Letter]:
        statement = f"SELECT {_COLUMNS} FROM {_table(connection)} WHERE project = ? AND truck = ?"
        return [_letter(row) for row in run(connection, statement, [self._project, truck])]

    def remove(self, connection: duckdb.DuckDBPyConnection, numbers: Collection[int]) -> None:
        run(connection, f"DELETE FROM {_table(connection)} WHERE id IN (SELECT unnest(?))", [sorted(numbers)])

    def put(self, connection: duckdb.DuckDBPyConnection, letter: Letter) -> None:
        names, values = zip(*_content(letter).items(), strict=True)
        if letter.number:
            cells = ", ".join(f"{name} = ?" for name in names)
            statement = f"UPDATE {_table(connection)} SET {cells}, updated_at = now() WHERE id = ?"
            run(connection, statement, [*values, letter.number])
            return
        columns, places = ", ".join(names), ", ".join("?" * len(names))
        run(
            connection,
            f"INSERT INTO {_table(connection)} (id, project, {columns}, created_at, updated_at) "
            f"VALUES (nextval('{_schema(connection)}.dead_letter_ids'), ?, {places}, now(), now())",
            [self._project, *values],
        )

    def forget(self, connection: duckdb.DuckDBPyConnection, truck_tables: Collection[TruckTable]) -> None:
        for truck, table in truck_tables:
            run(
                connection,
                f"DELETE FROM {_table(connection)} "
                "WHERE project = ? AND truck = ? AND source_schema = ? AND source_table = ?",
                [self._project, truck, table.schema, table.name],
            )


def _letter(row: tuple[Any, ...]) -> Letter:
    number, truck, schema, table, to_schema, to_table, operation, lsn, ordinal, key, data, *reason, tries = row
    return Letter(
        truck,
        TableId(schema, table),
        TableId(to_schema, to_table),
        tuple(json.loads(key)),
        operation,
        json.loads(data),
        Lsn.parse(lsn),
        ordinal,
        Reason(*reason),
        tries,
        number,
    )


def _content(letter: Letter) -> dict[str, object]:
    reason = letter.reason
    return {
        "truck": letter.truck,
        "source_schema": letter.source.schema,
        "source_table": letter.source.name,
        "target_schema": letter.target.schema,
        "target_table": letter.target.name,
        "operation": letter.operation,
        "lsn": str(letter.lsn),
        "ordinal": letter.ordinal,
        "key": to_json(letter.key_row),
        "data": to_json(letter.data),
        "sqlstate": reason.sqlstate,
        "reason": reason.message,
        "constraint_name": reason.constraint,
        "column_name": reason.column,
        "tries": letter.tries,
    }


def _schema(connection: duckdb.DuckDBPyConnection) -> str:
    return f"{catalog(connection)}.trucker"


def _table(connection: duckdb.DuckDBPyConnection) -> str:
    return f"{_schema(connection)}.dead_letters"
