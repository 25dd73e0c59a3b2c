"""The shape of a table in the catalogue at one moment, with what distinguishes one DDL statement from another.

The stream names columns and types. It does not say which column a name means (a renamed one, or another that was added
under the name of a dropped one), nor that the server wrote all rows anew (a volatile default, `TYPE … USING`). The
catalogue does, by comparison of two looks: a column keeps its number for life, `xmin` of its row is the transaction
that last altered it, and rows that were written anew are in another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import errors

from trucker.lsn import Lsn
from trucker.pg.connection import PgConnection
from trucker.postgres.catalog import source_types
from trucker.postgres.connect import translated
from trucker.source.look import Look, SeenColumn, Sighting
from trucker.source.source_table import SourceType
from trucker.table import Column, TableId

# Inserted, not flushed: a commit need not be flushed to be seen.
_NOW = """
    select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text"""

_TABLE = """
    select c.oid::bigint, c.relnatts,
           coalesce((select array_agg(a.attname::text order by k.place)
                       from pg_index i
                       cross join lateral unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality k(number, place)
                       join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
                      where i.indrelid = c.oid and i.indisprimary), '{}')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')"""

_TREE = """
    with recursive tree as (
        select %s::oid as oid
        union all
        select i.inhrelid from tree t join pg_inherits i on i.inhparent = t.oid
          join pg_class c on c.oid = i.inhrelid and c.relispartition)"""

# The text of attmissingval, an array of one, is read back as text[] to take the element as its type wrote it. Only
# tables that hold rows have it: of a partitioned table the partitions.
_COLUMNS = f"""{_TREE},
    missing as (
        select m.attname, min((m.attmissingval::text::text[])[1]) as value,
               count(distinct (m.attmissingval::text::text[])[1]) <= 1 as same
          from tree t join pg_attribute m on m.attrelid = t.oid
         where m.atthasmissing and m.attnum > 0 and not m.attisdropped
         group by m.attname)
    select a.attnum::int, a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnotnull and not exists (
             select from pg_constraint k
              where k.conrelid = a.attrelid and k.contype = 'n' and not k.convalidated and k.conkey = array[a.attnum]),
           case when m.same then m.value end, coalesce(m.same, false), a.xmin::text::bigint,
           array(select e.enumlabel::text from pg_type t
                   join pg_enum e on e.enumtypid = case when t.typtype = 'e' then t.oid else t.typelem end
                  where t.oid = a.atttypid order by e.enumsortorder)
      from pg_attribute a left join missing m on m.attname = a.attname
     where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
     order by a.attnum"""

# A table that was created as a partition has columns as they were inserted into the catalogue together with its system
# columns, by one command; ATTACH and DETACH update each of them. So it has been a partition for all of its life, if
# the partitioned tables between it and the root have been, too.
_LEAVES = """
    with recursive tree as (
        select %s::oid as oid, '' as attached, true as born
        union all
        select i.inhrelid, t.attached || '.' || i.xmin::text, t.born and exists (
                 select from pg_attribute s
                   join pg_attribute a on a.attrelid = s.attrelid and a.attnum > 0
                    and (a.xmin::text, a.cmin::text) = (s.xmin::text, s.cmin::text)
                  where s.attrelid = i.inhrelid and s.attnum = -1)
          from tree t join pg_inherits i on i.inhparent = t.oid
          join pg_class c on c.oid = i.inhrelid and c.relispartition)
    select c.oid::bigint, c.relfilenode::bigint, case when t.born then '' else t.attached end,
           n.nspname, c.relname
      from tree t join pg_class c on c.oid = t.oid join pg_namespace n on n.oid = c.relnamespace
     where c.relkind <> 'p'"""

_HORIZON = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

_AGE = """
    select pg_snapshot_xmax(pg_current_snapshot())::text::bigint - %s < 1::bigint << 31"""

# Rows of a leaf that were there before transaction %s ended, among the first: a rewrite keeps a row's xmin, TRUNCATE
# leaves no row. Transactions 0 to 2 are none; xids count modulo 2^32.
_OLD_ROWS = """
    select exists (
        select from (select xmin::text::bigint as xid from only {leaf} limit 1000) r
         where xid > 2 and (%s::bigint - xid) & 4294967295 between 1 and 2147483647)"""

# Generated columns are in pg_publication_tables where they are sent; attnames came with 15.
_SENT = """
    select t.schemaname, t.tablename, array_agg(a.attname::text)
      from pg_publication_tables t
      join pg_namespace n on n.nspname = t.schemaname
      join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where t.pubname = %s and coalesce(to_jsonb(t) -> 'attnames' ? a.attname::text, a.attgenerated = '')
       and (t.schemaname, t.tablename) in (select * from unnest(%s::name[], %s::name[]))
     group by 1, 2"""

# One row for each table, in one round trip: whether to look closer.
_DIGESTS = """
    select w.schema, w.name, c.oid::bigint, md5(concat(
             (select string_agg(concat_ws(' ', a.attnum, a.attname, a.xmin), ',' order by a.attnum)
                from pg_attribute a where a.attrelid = c.oid and a.attnum > 0),
             c.relfilenode,
             (select string_agg(concat_ws(' ', l.oid, l.relfilenode, i.xmin), ',' order by l.oid)
                from pg_partition_tree(c.oid) p join pg_class l on l.oid = p.relid
                left join pg_inherits i on i.inhrelid = l.oid)))
      from unnest(%s::text[], %s::text[]) w(schema, name)
      join pg_namespace n on n.nspname = w.schema
      join pg_class c on c.relnamespace = n.oid and c.relname = w.name and c.relkind in ('r', 'p')"""


@translated("reading the catalogue")
def look(connection: PgConnection, table: TableId, lsn: Lsn | None = None) -> Look | None:
    """The table as it is now, or in the connection's snapshot, whose `lsn` is given then; None where there is none."""
    row = connection.execute(_TABLE, [table.schema, table.name]).fetchone()
    if row is None:
        return None
    oid, width, key = row
    rows = connection.execute(_COLUMNS.encode(), [oid, oid]).fetchall()
    types = source_types(connection, ((column[2], column[3]) for column in rows))
    columns = tuple(
        SeenColumn(
            number,
            Column(name, type_oid, typmod, kind.name, not_null, missing, kind.definition, tuple(labels)),
            filled,
            altered,
        )
        for number, name, type_oid, typmod, not_null, missing, filled, altered, labels in rows
        for kind in [types.get((type_oid, typmod), SourceType())]
    )
    leaves = connection.execute(_LEAVES, [oid]).fetchall()
    return Look(
        table,
        oid,
        lsn or position(connection),
        tuple(key),
        width,
        columns,
        {leaf: file for leaf, file, *_ in leaves},
        {leaf: attached for leaf, _, attached, *_ in leaves if attached},
        ended(connection),
        {leaf: TableId(schema, name) for leaf, _, _, schema, name in leaves if leaf != oid},
    )


@translated("looking at a partition")
def has_rows(connection: PgConnection, leaf: TableId) -> bool:
    """Whether a leaf has a row; not, where it is gone."""
    try:
        row = connection.execute(f"select exists (select from only {leaf.quoted})".encode()).fetchone()
    except errors.UndefinedTable:
        return False
    return bool(row and row[0])


@translated("looking at a partition")
def altered_by(connection: PgConnection, leaf: TableId) -> int:
    """The transaction that last altered a leaf's entry in pg_class; 0 where it is gone."""
    row = connection.execute(
        "select c.xmin::text::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and c.relname = %s",
        [leaf.schema, leaf.name],
    ).fetchone()
    return int(row[0]) if row else 0


@translated("looking at a partition")
def has_older_rows(connection: PgConnection, leaf: TableId, horizon: int) -> bool:
    """Whether a leaf surely has rows that were there when transactions below `horizon` had ended."""
    try:
        near = connection.execute(_AGE, [horizon]).fetchone()
        row = connection.execute(_OLD_ROWS.format(leaf=leaf.quoted).encode(), [horizon]).fetchone()
    except errors.UndefinedTable:
        return False
    return horizon > 0 and bool(near and near[0] and row and row[0])


@translated("reading the catalogue")
def sightings(connection: PgConnection, publication: str, tables: Iterable[TableId]) -> list[Sighting]:
    """These tables as they are now, each at one moment. `connection` must be in autocommit mode."""
    wanted = sorted(tables)
    connection.execute("begin isolation level repeatable read read only")
    try:
        looks = {table: look(connection, table) for table in wanted}
    finally:
        connection.execute("rollback")
    sent = _sent(connection, publication, wanted)
    lsn = position(connection)
    return [Sighting(table, seen, sent.get(table, frozenset()), lsn) for table, seen in looks.items()]


@translated("reading the catalogue")
def sighting_at(connection: PgConnection, publication: str, table: TableId, lsn: Lsn) -> Sighting:
    """A table as the connection's snapshot shows it, whose consistent point is `lsn`."""
    sent = _sent(connection, publication, [table])
    return Sighting(table, look(connection, table, lsn), sent.get(table, frozenset()), lsn)


def _sent(connection: PgConnection, publication: str, tables: Sequence[TableId]) -> dict[TableId, frozenset[str]]:
    names = [[table.schema for table in tables], [table.name for table in tables]]
    rows = connection.execute(_SENT, [publication, *names])
    return {TableId(schema, name): frozenset(columns) for schema, name, columns in rows}


@translated("reading the catalogue")
def position(connection: PgConnection) -> Lsn:
    """Where the log ends: what has been seen so far was committed before."""
    row = connection.execute(_NOW).fetchone()
    return Lsn.parse(row[0]) if row and row[0] else Lsn(0)


@translated("reading the catalogue")
def ended(connection: PgConnection) -> int:
    """All transactions below this have ended."""
    row = connection.execute(_HORIZON).fetchone()
    return int(row[0]) if row else 0


@translated("reading the catalogue")
def digests(connection: PgConnection, tables: Iterable[TableId]) -> dict[TableId, tuple[int, str]]:
    """For each table that exists its oid, and a text that is another one after any DDL of the table."""
    wanted = sorted(tables)
    arguments = [[table.schema for table in wanted], [table.name for table in wanted]]
    return {TableId(schema, name): (oid, text) for schema, name, oid, text in connection.execute(_DIGESTS, arguments)}
