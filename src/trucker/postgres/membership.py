"""How a publication holds tables: the rows of the catalogue that say so.

PostgreSQL decodes each transaction with the catalogue of its time. What was written while a table was not published as
a truck needs it is therefore missing from the stream for good, and nothing in the stream says so. The catalogue does:

- A table that is dropped from a publication and added again has another row in `pg_publication_rel`. So has one whose
  row filter or column list was altered, and altered back. `SET TABLE` with what is there already leaves the row alone.
- `FOR TABLES IN SCHEMA` has a row in `pg_publication_namespace`, and a table's place in the schema a row in
  `pg_depend`.
- `SET (publish = …)` writes the row of `pg_publication` anew, under another `xmin`, whether it changes something or
  not. So do RENAME and OWNER, which lose nothing but cannot be told from it.

VACUUM, with FREEZE and FULL too, leaves `oid` and `xmin` of all of them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from trucker.pg.connection import PgConnection
from trucker.postgres.connect import translated
from trucker.source.publication import Membership
from trucker.table import TableId

# pg_publication_namespace came with 15.
_SCHEMAS_SINCE = 150000
_NO_SCHEMAS = "(select null::oid as oid, null::xid as xmin, null::oid as pnpubid, null::oid as pnnspid where false)"

_MEMBERSHIPS = """
    select w.schema, w.name, c.oid::bigint, p.oid::bigint, p.xmin::text::bigint, p.puballtables,
           r.oid::bigint, r.xmin::text::bigint, s.oid::bigint, s.xmin::text::bigint, d.xmin::text::bigint,
           case when c.relkind = 'p' then
             (select md5(string_agg(concat_ws(' ', l.oid, l.relreplident, i.indexrelid), ','
                                    order by l.oid, i.indexrelid))
                from pg_partition_tree(c.oid) t
                join pg_class l on l.oid = t.relid
                left join pg_index i on i.indrelid = l.oid and (i.indisreplident or i.indisprimary))
           else '' end
      from unnest(%(schemas)s::text[], %(names)s::text[]) w(schema, name)
      join pg_namespace n on n.nspname = w.schema
      join pg_class c on c.relnamespace = n.oid and c.relname = w.name and c.relkind in ('r', 'p')
      left join pg_publication p on p.pubname = %(publication)s
      left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
      left join {schemas} s on s.pnpubid = p.oid and s.pnnspid = n.oid
      left join pg_depend d on s.oid is not null and d.classid = 'pg_class'::regclass and d.objid = c.oid
                           and d.objsubid = 0 and d.refclassid = 'pg_namespace'::regclass"""


@translated("reading the publication")
def memberships(connection: PgConnection, publication: str, tables: Iterable[TableId]) -> dict[TableId, Membership]:
    """How the publication holds each of the tables that exist, by one look."""
    wanted = sorted(tables)
    since = connection.info.server_version >= _SCHEMAS_SINCE
    query = _MEMBERSHIPS.format(schemas="pg_publication_namespace" if since else _NO_SCHEMAS)
    arguments = {
        "schemas": [table.schema for table in wanted],
        "names": [table.name for table in wanted],
        "publication": publication,
    }
    rows = connection.execute(query.encode(), arguments).fetchall()
    return {TableId(schema, name): _membership(*row) for schema, name, *row in rows}


def _membership(
    relation: int,
    oid: int | None,
    xmin: int,
    all_tables: bool | None,
    member: int | None,
    member_xmin: int,
    place: int | None,
    place_xmin: int,
    moved: int | None,
    identities: str | None,
) -> Membership:
    return Membership(
        relation,
        (oid, xmin) if oid is not None else None,
        bool(all_tables),
        (member, member_xmin) if member is not None else None,
        (place, place_xmin, moved or 0) if place is not None else None,
        identities or "",
    )
