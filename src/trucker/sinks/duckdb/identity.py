"""The tables of a DuckDB file as its catalogue has them, and marks in their comments (`sinks.sql.marked_tables`).

DuckDB numbers tables anew each time a file is opened. `COPY FROM DATABASE` keeps comments, `EXPORT DATABASE` does not:
tables imported from that are other ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from trucker.sinks.duckdb.session import catalog, run
from trucker.sinks.sql.marked_tables import WHOLE_TABLE, MarkedTables, SeenTable
from trucker.table import TableId, quote_identifier


class DuckDBIdentities(MarkedTables[duckdb.DuckDBPyConnection]):
    """The identities of one project."""

    def see(self, transaction: duckdb.DuckDBPyConnection, tables: Iterable[TableId]) -> dict[TableId, SeenTable]:
        """These tables as they are; none where there is none."""
        wanted = sorted(set(tables))
        if not wanted:
            return {}
        names = [[table.schema for table in wanted], [table.name for table in wanted]]
        join = "JOIN (SELECT unnest(?) AS s, unnest(?) AS t) w ON schema_name = w.s AND table_name = w.t"
        columns: dict[TableId, dict[str, str | None]] = {}
        for schema, table, name, comment in run(
            transaction,
            f"SELECT schema_name, table_name, column_name, comment FROM duckdb_columns() {join}"
            " WHERE database_name = current_database() ORDER BY column_index",
            names,
        ):
            columns.setdefault(TableId(schema, table), {})[name] = comment
        table_comments = {
            TableId(schema, table): comment
            for schema, table, comment in run(
                transaction,
                f"SELECT schema_name, table_name, comment FROM duckdb_tables() {join}"
                " WHERE database_name = current_database()",
                names,
            )
        }
        return {
            table: SeenTable(
                tuple(columns[table]),
                {
                    name: comment
                    for name, comment in {WHOLE_TABLE: table_comments[table], **columns[table]}.items()
                    if comment is not None
                },
            )
            for table in table_comments
        }

    def put_comment(self, transaction: duckdb.DuckDBPyConnection, table: TableId, column: str, comment: str) -> None:
        name = f"{catalog(transaction)}.{table.quoted}"
        what = f"COLUMN {name}.{quote_identifier(column)}" if column else f"TABLE {name}"
        run(transaction, f"COMMENT ON {what} IS '{comment}'")
