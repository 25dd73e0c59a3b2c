"""Tables as the source's catalogue describes them: columns, types, keys and what identifies a row.

Queries take names from `pg_catalog` only (`connect.SESSION_SETTINGS`), so types that are not PostgreSQL's own come
out qualified with their schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg.rows import dict_row

from trucker.errors import SourceError
from trucker.pg.connection import PgConnection
from trucker.pg.type_definition import FIRST_USER_OID, definitions_query
from trucker.postgres.connect import translated
from trucker.source.source_table import Leaf, SourceTable, SourceType
from trucker.table import Column, TableId, TableSchema, quote_identifier

_LIST = """
    select n.nspname, c.relname
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
       and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_'
     order by 1, 2"""

_TABLE = """
    select c.oid, c.relkind, c.relpersistence, c.relreplident, c.relispartition, c.relrowsecurity
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s"""

# Domains, and domains over domains, are followed to the type that writes the value; an array of a domain likewise,
# unless that is over an array: there is no other type whose text is an array of arrays.
_TYPE_NAMES = """
    with recursive wanted as (
        select w.oid, w.typmod, case when a.typtype = 'd' then t.typelem else w.oid end as resolved,
               w.typmod as modifier, a.typtype is not distinct from 'd' as is_array
          from unnest(%(oids)s::oid[], %(typmods)s::int[]) as w(oid, typmod)
          join pg_type t on t.oid = w.oid
          left join pg_type a on a.oid = t.typelem and t.typsubscript = 'array_subscript_handler'::regproc
        union all
        select w.oid, w.typmod, t.typbasetype,
               case when t.typtypmod = -1 then w.modifier else t.typtypmod end, w.is_array
          from wanted w join pg_type t on t.oid = w.resolved
         where t.typtype = 'd')
    select w.oid, w.typmod,
           case when not w.is_array then format_type(w.resolved, w.modifier)
                when t.typsubscript = 'array_subscript_handler'::regproc then format_type(w.oid, w.typmod)
                else format_type(w.resolved, w.modifier) || '[]' end,
           case when w.is_array and t.typsubscript = 'array_subscript_handler'::regproc then w.oid else w.resolved end
      from wanted w join pg_type t on t.oid = w.resolved
     where t.typtype <> 'd'"""

_DEFINITIONS = definitions_query("%(oids)s").encode()

# attmissingval is an array of one: joined with nothing it is that element as its type writes it.
# A NOT NULL that was added as NOT VALID (PostgreSQL 18) may not hold for the rows that were there before.
_COLUMNS = """
    select a.attname, a.atttypid, a.atttypmod, a.attgenerated,
           a.attnotnull and not exists (
             select from pg_constraint k
              where k.conrelid = a.attrelid and k.contype = 'n' and not k.convalidated and k.conkey = array[a.attnum]),
           case when a.atthasmissing then array_to_string(a.attmissingval, '') end, a.attnum::int
      from pg_attribute a
     where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
     order by a.attnum"""

# An index that is deferrable, partial or not valid identifies no row, even when it is the primary key's.
_IDENTITIES = """
    with recursive leaves as (
        select %(oid)s::oid as oid
        union all
        select i.inhrelid from leaves l join pg_inherits i on i.inhparent = l.oid
          join pg_class c on c.oid = i.inhrelid and c.relispartition)
    select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
           coalesce(x.names, '{}') as names, coalesce(x.key, '{}') as key, coalesce(x.numbers, '{}') as numbers
      from leaves l
      join pg_class c on c.oid = l.oid
      join pg_namespace n on n.oid = c.relnamespace
      left join lateral (
        select max(k.names) filter (where i.indisprimary and i.indimmediate and i.indisvalid) as key,
               max(k.numbers) filter (
                 where i.indimmediate and i.indisvalid
                   and case c.relreplident when 'i' then i.indisreplident and i.indisunique and i.indpred is null
                       else i.indisprimary end
               ) as numbers,
               max(k.names) filter (
                 where i.indimmediate and i.indisunique and i.indisvalid and i.indpred is null
                   and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
               ) as names
          from pg_index i
          cross join lateral (
            select array_agg(a.attname::text order by u.ordinality) as names,
                   array_agg(a.attnum::int order by u.ordinality) as numbers
              from unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality u(attnum, ordinality)
              join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.attnum) k
         where i.indrelid = c.oid) x on true
     order by c.oid"""

# EXTENDED and EXTERNAL. MAIN goes out of line as a last resort only, and is left out: numeric has it.
_TOASTABLE = """
    select distinct attname::text from pg_attribute
     where attrelid = any (%s::oid[]) and attnum > 0 and not attisdropped and attstorage in ('x', 'e')"""

_BYTES = "select coalesce(sum(pg_table_size(oid)), 0)::bigint from unnest(%s::oid[]) as leaf(oid)"

# From 18 on generated columns can be published; since then those that are not must not be part of an identity.
_SINCE_HIDDEN = 180000

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "I": "an index",
    "S": "a sequence",
    "c": "a composite type",
    "t": "a TOAST table",
}


@translated("reading the catalogue")
def list_tables(connection: PgConnection) -> list[TableId]:
    """Every table that could be published: ordinary and partitioned ones; no partition, no unlogged or system table."""
    return [TableId(schema, name) for schema, name in connection.execute(_LIST)]


@translated("reading the catalogue")
def load_table(connection: PgConnection, table: TableId, *, publication: str | None = None) -> SourceTable:
    """One table. `SourceError` where there is none, or it is of a kind that logical replication leaves out.

    Its columns are all but the generated ones, and of those the ones that `publication` sends (PostgreSQL 18).
    """
    row = _find(connection, table)
    _refuse_kind(table, row["relkind"], row["relpersistence"], row["relispartition"])
    relations = _rows(connection, _IDENTITIES, {"oid": row["oid"]})
    columns, generated, numbers = _load_columns(connection, row["oid"], _sent(connection, publication, table))
    if not columns:
        raise SourceError(
            f"table {table} has no column that can be replicated",
            remedy="leave the table out of the truck",
            code="TRK211",
        )
    names = tuple(column.name for column in columns)
    root = next(relation for relation in relations if relation["oid"] == row["oid"])
    leaves = tuple(_leaf(relation, names) for relation in relations if relation["relkind"] != "p")
    for relation in relations:
        _refuse_kind(
            TableId(relation["nspname"], relation["relname"]), relation["relkind"], relation["relpersistence"], False
        )
    own_identity = _leaf(root, names).identity_columns
    identity_columns = _common(leaves, names) if leaves else own_identity
    if row["relkind"] == "p":
        identity_columns = tuple(name for name in identity_columns if name in own_identity)
    # A column may have been renamed since the identities were read.
    called = {number: name for name, number in numbers.items()}
    key = tuple(called.get(number, name) for name, number in zip(_key(root), root["numbers"], strict=True))
    return SourceTable(
        TableSchema(table, columns, key),
        row["oid"],
        row["relreplident"],
        identity_columns,
        row["relkind"] == "p",
        row["relrowsecurity"],
        _scalar(connection, _BYTES, [[leaf.oid for leaf in leaves]]),
        leaves,
        generated,
        generated if connection.info.server_version >= _SINCE_HIDDEN else (),
        tuple(root["numbers"]),
        _toastable(connection, [relation["oid"] for relation in relations], names),
        own_identity,
    )


def to_full(table: SourceTable) -> str:
    """The remedy where old tuples must be whole rows. Partitions do not take their identity from their table."""
    lacking = [leaf.table for leaf in table.leaves if leaf.identity != "f"]
    lacking += [table.table] if table.identity != "f" or not lacking else []
    names = list(dict.fromkeys(lacking))
    statements = "; ".join(f"ALTER TABLE {name.quoted} REPLICA IDENTITY FULL" for name in names)
    if not table.hidden:
        return f"run: {statements}"
    return (
        f"because of the generated column {table.hidden[0]}, name an existing `publication` that has "
        f"publish_generated_columns = stored, and run: {statements}"
    )


def identity_problem(table: SourceTable) -> SourceError | None:
    """Why the application's UPDATE or DELETE would fail once the table is published, or could not be followed (I11)."""
    key = table.schema.key
    unsent = [name for name in key if name not in table.schema.names]
    if unsent:
        return SourceError(
            f"the key of table {table.table} contains the generated column {unsent[0]}, which PostgreSQL does not send",
            remedy=_other_key(table),
            code="TRK212",
        )
    hidden = next((leaf for leaf in table.holders if leaf.identity == "f" and table.hidden), None)
    if hidden is not None:
        return _hidden_problem(table, hidden)
    if table.partitioned and (not table.described or (table.identity == "f" and table.unfit)):
        return _partitions_problem(table)
    for leaf in table.unfit:
        return SourceError(
            f"table {leaf.table} has no usable replica identity ({_lacking(leaf, key)}): once it is published, "
            "PostgreSQL would refuse every UPDATE and DELETE of it, or trucker could not apply them",
            remedy=_identity_remedy(leaf, key),
            code="TRK212",
        )
    return None


def is_refused_by_server(table: SourceTable) -> bool:
    """Whether PostgreSQL itself refuses every UPDATE and DELETE that `identity_problem` is about: none can come."""
    return table.described and all(not leaf.identity_columns for leaf in table.unfit)


def _partitions_problem(table: SourceTable) -> SourceError:
    """For a table whose changes are sent by another identity than its partitions have. New partitions do not take over
    the identity of their table."""
    name, key = table.table.quoted, table.schema.key
    by_key = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
    if table.identity == "f":
        leaf = table.unfit[0]
        rather = f"  (or, to identify rows by the primary key: {by_key})" if key else ""
        return SourceError(
            f"partition {leaf.table} does not have REPLICA IDENTITY FULL as table {table.table} has: PostgreSQL "
            "would send its old rows incompletely, or refuse every UPDATE and DELETE of it",
            remedy=to_full(table) + rather,
            code="TRK212",
        )
    return SourceError(
        f"partitioned table {table.table} has no replica identity; the changes of its partitions are sent with "
        "its identity, not with theirs",
        remedy=f"run: {by_key}" if table.identity == "n" and key else f"add a primary key, or {to_full(table)}",
        code="TRK212",
    )


def _other_key(table: SourceTable) -> str:
    name = table.table.quoted
    if table.identity == "i":
        return f"run: ALTER TABLE {name} REPLICA IDENTITY DEFAULT  (or USING INDEX another index)"
    return (
        f"leave the table out, or give it another primary key (ALTER TABLE {name} DROP CONSTRAINT …, ADD PRIMARY KEY …)"
    )


def _hidden_problem(table: SourceTable, leaf: Leaf) -> SourceError:
    name, column = leaf.table.quoted, quote_identifier(table.hidden[0])
    rather = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
    drop = f"ALTER TABLE {name} ALTER COLUMN {column} DROP EXPRESSION"
    first = rather if table.schema.key else f"ALTER TABLE {name} ADD PRIMARY KEY (…), REPLICA IDENTITY DEFAULT"
    return SourceError(
        f"table {leaf.table} has REPLICA IDENTITY FULL and the generated column {table.hidden[0]}: once it is"
        " published, PostgreSQL would refuse every UPDATE and DELETE of it",
        remedy=f"run: {first}  (or, for a stored one, {drop}; or name an existing `publication` that has "
        "publish_generated_columns = stored)",
        code="TRK212",
    )


@translated("reading the catalogue")
def source_types(connection: PgConnection, types: Iterable[tuple[int, int]]) -> dict[tuple[int, int], SourceType]:
    """What there is to know of each (oid, typmod). A type that is gone is absent."""
    pairs = list(dict.fromkeys(types))
    arguments = {"oids": [oid for oid, _ in pairs], "typmods": [typmod for _, typmod in pairs]}
    rows = connection.execute(_TYPE_NAMES, arguments).fetchall()
    users = list({resolved for *_, resolved in rows if resolved >= FIRST_USER_OID})
    definitions = dict(connection.execute(_DEFINITIONS, {"oids": users}).fetchall()) if users else {}
    return {(oid, typmod): SourceType(name, definitions.get(resolved, "")) for oid, typmod, name, resolved in rows}


def _find(connection: PgConnection, table: TableId) -> dict[str, Any]:
    rows = _rows(connection, _TABLE, [table.schema, table.name])
    if not rows:
        raise SourceError(
            f"table {table} does not exist in database {connection.info.dbname}",
            remedy="check the schema and the name; both are case-sensitive",
            code="TRK210",
        )
    return rows[0]


def _refuse_kind(table: TableId, kind: str, persistence: str, partition: bool) -> None:
    """`SourceError` for a relation that has no changes in the write-ahead log, or not under its own name."""
    silent = "whose changes are not in the write-ahead log"
    if kind in _KINDS:
        what, remedy = f"{_KINDS[kind]}, {silent}", "name its underlying tables instead"
    elif persistence == "u":
        what, remedy = f"an unlogged table, {silent}", f"run: ALTER TABLE {table.quoted} SET LOGGED"
    elif persistence == "t":
        what, remedy = f"a temporary table, {silent}", "name a permanent table"
    elif partition:
        what = "a partition, whose changes are sent under the name of the partitioned table"
        remedy = "name the partitioned table"
    else:
        return
    raise SourceError(f"{table} is {what}", remedy=remedy, code="TRK211")


def _load_columns(
    connection: PgConnection, oid: int, sent: frozenset[str]
) -> tuple[tuple[Column, ...], tuple[str, ...], dict[str, int]]:
    """The replicated columns, generated ones only where they are `sent`; the generated ones that are not; and the
    numbers of all."""
    rows = connection.execute(_COLUMNS, [oid]).fetchall()
    replicated = [row for row in rows if not row[3] or row[0] in sent]
    types = source_types(connection, ((type_oid, typmod) for _, type_oid, typmod, *_ in replicated))
    columns = tuple(
        Column(name, type_oid, typmod, kind.name, not_null, missing, kind.definition)
        for name, type_oid, typmod, _, not_null, missing, _ in replicated
        for kind in [types.get((type_oid, typmod), SourceType())]
    )
    present = {column.name for column in columns}
    hidden = tuple(row[0] for row in rows if row[3] and row[0] not in present)
    return columns, hidden, {row[0]: row[-1] for row in rows}


def _toastable(connection: PgConnection, oids: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    toastable = {name for (name,) in connection.execute(_TOASTABLE, [list(oids)])}
    return tuple(name for name in names if name in toastable)


def _sent(connection: PgConnection, publication: str | None, table: TableId) -> frozenset[str]:
    """The columns that a publication sends, as far as it matters: before 18 it has no generated ones."""
    if publication is None or connection.info.server_version < _SINCE_HIDDEN:
        return frozenset()
    rows = connection.execute(
        "select attnames::text[] from pg_publication_tables where pubname = %s and schemaname = %s and tablename = %s",
        [publication, table.schema, table.name],
    ).fetchall()
    return frozenset(rows[0][0]) if rows else frozenset()


def _leaf(row: dict[str, Any], names: tuple[str, ...]) -> Leaf:
    columns = names if row["relreplident"] == "f" else tuple(row["names"])
    return Leaf(row["oid"], TableId(row["nspname"], row["relname"]), row["relreplident"], columns)


def _common(leaves: Sequence[Leaf], names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that every leaf's old tuples carry, in the order of the first that is not FULL."""
    first = next((leaf.identity_columns for leaf in leaves if leaf.identity != "f"), names)
    return tuple(name for name in first if all(name in leaf.identity_columns for leaf in leaves))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    """The columns that identify a row: the chosen index's under USING INDEX, else the primary key's."""
    return tuple(row["names"] if row["relreplident"] == "i" else row["key"])


def _lacking(leaf: Leaf, key: tuple[str, ...]) -> str:
    if leaf.identity == "n":
        return "it is set to NOTHING"
    if leaf.identity == "i":
        return "its index does not exist" if not leaf.identity_columns else "its index is not the table's key"
    if key or leaf.identity_columns:
        return "its primary key is not that of the whole table"
    return "no primary key, or only a deferrable one"


def _identity_remedy(leaf: Leaf, key: tuple[str, ...]) -> str:
    full = f"ALTER TABLE {leaf.table.quoted} REPLICA IDENTITY FULL"
    if leaf.identity != "d" and key:
        return f"run: ALTER TABLE {leaf.table.quoted} REPLICA IDENTITY DEFAULT  (or {full})"
    return f"add a primary key, or run: {full}"


def _rows(connection: PgConnection, query: str, arguments: Any) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), arguments).fetchall()


def _scalar(connection: PgConnection, query: str, arguments: Any) -> int:
    row = connection.execute(query.encode(), arguments).fetchone()
    return int(row[0]) if row else 0
