"""The primary key of a table that trucker made, left off while its first copy is loaded and made when all is there.

An index that is built from rows in place costs a fraction of one that is kept up row by row, in time and in WAL. Only
a table that trucker itself has made goes without its key for that time, only a large one, and only where no row has to
be identified when it is refused: nothing relies on the key yet, and chunks are copied once by their records, not
by the key.

That a key is put off is written down in `trucker.late_keys`, in the transaction that takes it away, and crossed out in
the one that makes it. A copy that broke off finds it there and begins from an empty table with its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from trucker.errors import DataError
from trucker.sinks.letters import name_row
from trucker.sinks.postgres.failure import explain, of_data
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId, quote_identifier

LARGE: Final = 16 << 20
"""From so many bytes on it pays."""

TABLE: Final = """create table trucker.late_keys (
    project text, truck text, source_schema text, source_table text, target_schema text not null,
    target_table text not null, name text not null, columns text[] not null,
    primary key (project, truck, source_schema, source_table))"""

_KEY: Final = """
select k.conname, array(select a.attname::text from unnest(k.conkey) with ordinality c(number, place)
        join pg_attribute a on a.attrelid = k.conrelid and a.attnum = c.number order by c.place)
from pg_constraint k
where k.conrelid = $1::regclass and k.contype = 'p' and not k.condeferrable
    and not exists (select from pg_constraint f where f.confrelid = k.conrelid)"""
_OF_SLOT: Final = "project = $1 and truck = $2 and source_schema = $3 and source_table = $4"


@dataclass(frozen=True, slots=True)
class LateKey:
    """A key that is due."""

    table: TableId
    name: str
    columns: tuple[str, ...]


def find(session: Session, project: str, truck_tables: Iterable[TruckTable]) -> Mapping[TruckTable, LateKey]:
    """Which of these tables have a key that is due."""
    wanted = sorted(truck_tables)
    if not wanted:
        return {}
    rows = session.run(
        """select truck, source_schema, source_table, target_schema, target_table, name, columns
        from trucker.late_keys join unnest($2::text[], $3::text[], $4::text[]) w(truck, source_schema, source_table)
            using (truck, source_schema, source_table)
        where project = $1""",
        project,
        [truck for truck, _ in wanted],
        [table.schema for _, table in wanted],
        [table.name for _, table in wanted],
    )
    return {
        (truck, TableId(schema, table)): LateKey(TableId(into, called), name, tuple(columns))
        for truck, schema, table, into, called, name, columns in rows
    }


def is_due(session: Session, table: TableId, key: Iterable[str]) -> bool:
    """Whether a table will have this key once its copy is complete."""
    if session.run("select to_regclass('trucker.late_keys') is null").fetchone() == (True,):
        return False
    row = session.run(
        "select columns from trucker.late_keys where target_schema = $1 and target_table = $2", table.schema, table.name
    ).fetchone()
    return row is not None and frozenset(row[0]) == frozenset(key)


def put_off(session: Session, project: str, target: Target) -> None:
    """Take the primary key off a table that is empty, inside the caller's transaction, unless others need it."""
    row = session.run(_KEY, target.table.quoted).fetchone()
    if row is None or frozenset(row[1]) != frozenset(target.source.key):
        return
    name, columns = row
    try:
        with session.connection.transaction():
            session.run(f"alter table {target.table.quoted} drop constraint {quote_identifier(name)}")
    except psycopg.errors.DependentObjectsStillExist:
        return
    session.run(
        "insert into trucker.late_keys values ($1, $2, $3, $4, $5, $6, $7, $8)",
        project,
        target.truck,
        target.source.table.schema,
        target.source.table.name,
        target.table.schema,
        target.table.name,
        name,
        list(columns),
    )


def make(session: Session, project: str, target: Target) -> None:
    """Make the key that is due, inside the caller's transaction; a second caller finds nothing to do.

    The table can be read while the index is built.
    """
    truck_table = (project, target.truck, target.source.table.schema, target.source.table.name)
    row = session.run(
        f"delete from trucker.late_keys where {_OF_SLOT} returning target_schema, target_table, name, columns",
        *truck_table,
    ).fetchone()
    if row is None:
        return
    table, name = TableId(row[0], row[1]), quote_identifier(row[2])
    columns = ", ".join(map(quote_identifier, row[3]))
    session.run(f"create unique index {name} on {table.quoted} ({columns})")
    session.run(f"alter table {table.quoted} add constraint {name} primary key using index {name}")


def finish(session: Session, project: str, target: Target) -> None:
    """`make`, in a transaction of its own. Rows that have the same key are a `DataError` that names it."""
    try:
        with session.connection.transaction():
            make(session, project, target)
    except psycopg.Error as error:
        if not of_data(error):
            raise
        reason = explain(error, f"table {target.table}", table=target.table)
        assert isinstance(reason, DataError)
        keys = [quote_identifier(name) for name in target.source.key]
        twice = session.run(
            f"select {', '.join(f'{key}::text' for key in keys)} from {target.table.quoted}"
            f" group by {', '.join(keys)} having count(*) > 1 limit 1"
        ).fetchone()
        raise name_row(reason, target, dict(zip(target.source.key, twice or (), strict=False))) from None
