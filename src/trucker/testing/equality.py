"""Whether destinations hold what the source holds, by counts and checksums that PostgreSQL computes.

A checksum is a sum over a hash of each row's text, so the order of rows does not matter. What another kind of store
holds is read back as text into a temporary table of the source's types, and summed by the same PostgreSQL: values are
equal when PostgreSQL, reading them, says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from trucker.pg.connection import PgConnection
from trucker.table import TableId, quote_identifier


@dataclass(frozen=True, slots=True)
class Sum:
    """A table's rows and the checksum of their content."""

    rows: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.rows:,} {self.checksum % 0xFFFFFFFB:08x}"


def columns(connection: PgConnection, schema: str, table: str) -> list[str]:
    """The table's columns in their order; none where there is no such table."""
    names = connection.execute(
        "select attname from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n"
        " on n.oid = c.relnamespace where nspname = %s and relname = %s and attnum > 0 and not attisdropped"
        " order by attnum",
        [schema, table],
    )
    return [name for (name,) in names]


def postgres_sum(connection: PgConnection, schema: str, table: str, names: Sequence[str]) -> Sum | None:
    """The sum of a table over the named columns; None where it has not all of them.

    The rows are the table's own and its partitions', not those of tables that inherit from it.
    """
    if not set(names) <= set(columns(connection, schema, table)):
        return None
    return _sum(connection, _own_rows(connection, schema, table), names)


def _own_rows(connection: PgConnection, schema: str, table: str) -> sql.Composable:
    name = sql.Identifier(schema, table)
    partitioned = connection.execute(
        "select relkind = 'p' from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where nspname = %s and relname = %s",
        [schema, table],
    ).fetchone()
    return name if partitioned == (True,) else sql.SQL("only {}").format(name)


def duckdb_sums(source: PgConnection, file: Path, schema: str, tables: Iterable[str]) -> dict[str, Sum | None]:
    """The sums of tables in a DuckDB file, which no other process may hold open for writing."""
    import duckdb

    sums: dict[str, Sum | None] = {}
    with duckdb.connect(str(file), read_only=True) as store:
        for table in tables:
            names = columns(source, schema, table)
            place = TableId(schema, table).quoted
            try:
                kinds = {name: kind for name, kind, *_ in store.execute(f"describe {place}").fetchall()}
            except duckdb.CatalogException:
                kinds = {}
            if not set(names) <= kinds.keys():
                sums[table] = None
                continue
            texts = ", ".join(_duckdb_text(name, kinds[name]) for name in names)
            rows = store.execute(f"select {texts} from {place}")
            with source.transaction(force_rollback=True):
                sums[table] = sum_of_texts(source, schema, table, names, iter(rows.fetchone, None))
    return sums


def _duckdb_text(name: str, kind: str) -> str:
    """The SQL of a column's values as PostgreSQL reads them."""
    column = quote_identifier(name)
    if kind == "BLOB":
        return f"'\\x' || hex({column})"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"replace(cast({column} as varchar), '(BC)', 'BC')"
    return f"cast({column} as varchar)"


def sum_of_texts(
    source: PgConnection, schema: str, table: str, names: Sequence[str], rows: Iterable[tuple[str | None, ...]]
) -> Sum:
    """The sum that rows, given as PostgreSQL's text, have as rows of this table. Call it in a transaction."""
    copy = sql.Identifier("equality_copy")
    source.execute(
        sql.SQL("create temporary table {} on commit drop as select * from {} limit 0").format(
            copy, sql.Identifier(schema, table)
        )
    )
    with source.cursor().copy(sql.SQL("copy {} from stdin").format(copy)) as target:
        for row in rows:
            target.write_row(row)
    return _sum(source, copy, names)


def _sum(connection: PgConnection, table: sql.Composable, names: Sequence[str]) -> Sum:
    row = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    result = connection.execute(
        sql.SQL(
            "select count(*), coalesce(sum(('x' || left(md5(row({})::text), 15))::bit(60)::bigint), 0) from {}"
        ).format(row, table)
    ).fetchone()
    assert result is not None
    return Sum(result[0], int(result[1]))
