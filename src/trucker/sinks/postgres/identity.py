"""Which tables and columns trucker has filled, by oid and attnum (`sinks.table_identity`).

`trucker.identities` has a row for each table of a truck; `table_oid` 0 stands for a table that is not there and may be
made. PostgreSQL gives no oid and no attnum of a table a second time, and keeps both through TRUNCATE, ALTER, VACUUM
FULL and pg_upgrade; a restored dump has others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import psycopg

from trucker.sinks.batch import Phase
from trucker.sinks.postgres.session import Session
from trucker.sinks.sql.filled_tables import FilledTables, StoredTable
from trucker.sinks.table_identity import TableChange, TableIdentity, compare
from trucker.sinks.target import TruckTable
from trucker.table import Column, TableId

TABLE: Final = """create table trucker.identities (
    project text, truck text, source_schema text, source_table text, table_oid oid not null, columns json not null,
    updated_at timestamptz not null default now(), primary key (project, truck, source_schema, source_table))"""

_STORED: Final = """select t.truck, t.source_schema, t.source_table, t.phase, t.target_schema, t.target_table,
        i.table_oid::bigint, i.columns
    from trucker.tables t left join trucker.identities i using (project, truck, source_schema, source_table)
    where t.project = $1"""
_OF_TABLE: Final = " and t.truck = $2 and t.source_schema = $3 and t.source_table = $4"
_BEFORE_IDENTITIES: Final = """select t.truck, t.source_schema, t.source_table, t.phase, t.target_schema,
        t.target_table, null, null from trucker.tables t where t.project = $1"""

# Run with every commit: of the ways to ask this is the quickest to plan.
_NOW: Final = """select w.number, w.oid::bigint, array(select a.attnum::text || ' ' || a.attname from pg_attribute a
        where a.attrelid = w.oid and a.attnum > 0 and not a.attisdropped)
    from (select number, to_regclass(name)::oid as oid from unnest($1::text[]) with ordinality u(name, number)) w
    where w.oid is not null"""

_PUT: Final = """insert into trucker.identities as i (project, truck, source_schema, source_table, table_oid, columns)
    values ($1, $2, $3, $4, $5::bigint::oid, $6::json)
    on conflict (project, truck, source_schema, source_table) do update set
        table_oid = excluded.table_oid, columns = excluded.columns, updated_at = now()"""


class OidIdentities(FilledTables[Session, TableIdentity, TableIdentity]):
    """The identities of one project."""

    def __init__(self, project: str) -> None:
        self._project = project

    def load(
        self, transaction: Session, truck_table: TruckTable | None = None
    ) -> dict[TruckTable, StoredTable[TableIdentity]]:
        if truck_table is None:
            rows = self._all(transaction)
        else:
            truck, table = truck_table
            rows = transaction.run(_STORED + _OF_TABLE, self._project, truck, table.schema, table.name)
        return {
            (truck, TableId(schema, name)): StoredTable(
                Phase(phase),
                None if target is None else TableId(target_schema, target),
                None if oid is None else TableIdentity(str(oid or ""), columns),
            )
            for truck, schema, name, phase, target_schema, target, oid, columns in rows
        }

    def _all(self, session: Session) -> Iterable[tuple[Any, ...]]:
        """What is stored, as far as trucker's own tables are there."""
        present = session.run("select to_regclass('trucker.tables') is null, to_regclass('trucker.identities') is null")
        without_tables, without_identities = present.fetchone() or (True, True)
        if without_tables:
            return ()
        return session.run(_BEFORE_IDENTITIES if without_identities else _STORED, self._project)

    def write(self, transaction: Session, truck_table: TruckTable, identity: TableIdentity | None) -> None:
        truck, table = truck_table
        oid, columns = (int(identity.table or 0), dict(identity.columns)) if identity else (0, {})
        transaction.run(_PUT, self._project, truck, table.schema, table.name, oid, json.dumps(columns))

    def see(self, transaction: Session, tables: Iterable[TableId]) -> dict[TableId, TableIdentity]:
        """All columns included."""
        wanted = list(tables)
        rows = ask(transaction, wanted) if wanted else ()
        return {wanted[number - 1]: identity_of((oid, columns)) for number, oid, columns in rows}

    def identify(
        self, transaction: Session, table: TableId, now: TableIdentity, written: Collection[str] | None
    ) -> TableIdentity:
        return now if written is None else now.only(written)

    def written(self, identity: TableIdentity) -> Collection[str] | None:
        return identity.columns or None

    def compare(
        self,
        truck_table: TruckTable,
        table: TableId,
        identity: TableIdentity | None,
        now: TableIdentity | None,
        columns: Sequence[Column] | None,
        *,
        shared: bool,
    ) -> TableChange | None:
        return compare(*truck_table, table, identity, now, columns, shared=shared)


def ask(session: Session, tables: Sequence[TableId]) -> psycopg.Cursor[Any]:
    """The query for what these tables are now, for a pipeline."""
    return session.run(_NOW, [table.quoted for table in tables])


def identity_of(seen: tuple[int, Sequence[str]]) -> TableIdentity:
    """A table of the query's answer: its oid, and its columns with their numbers."""
    oid, columns = seen
    pairs = (column.partition(" ") for column in columns)
    return TableIdentity(str(oid), {name: int(number) for number, _, name in pairs})
