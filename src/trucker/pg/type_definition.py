"""Queries for the definitions of user-defined types, at the source and at a PostgreSQL destination.

A type of the same name may be another type elsewhere. In the worst case a type of another shape (fields in another
order) reads the text of an enum, a composite or a range type without error, so shapes are compared (I8).
"""

from __future__ import annotations

import re
from typing import Final

# PostgreSQL's FirstNormalObjectId: below it, an oid means the same type in every database.
FIRST_USER_OID: Final = 16_384

# Types of extensions are not described: they are as their extension defines them. No type can contain itself.
_QUERY: Final = """
    with recursive reach as (
        select w.oid as root, w.oid, 0 as depth from unnest({oids}::oid[]) as w(oid)
        union all
        select r.root, n.oid, r.depth + 1
          from reach r
          join pg_type t on t.oid = r.oid
         cross join lateral (
            select t.typelem where t.typsubscript = 'array_subscript_handler'::regproc
            union all select t.typbasetype where t.typtype = 'd'
            union all select g.rngsubtype from pg_range g where g.rngtypid = t.oid
            union all select g.rngtypid from pg_range g where g.rngmultitypid = t.oid
            union all select a.atttypid from pg_attribute a
              where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) n(oid)
         where n.oid >= {first}),
    found as (select root, oid, max(depth) as depth from reach group by root, oid),
    stated as (
        select f.root, f.depth, case t.typtype
            when 'e' then (select 'create type ' || format_type(t.oid, null) || ' as enum ('
                    || string_agg(quote_literal(e.enumlabel), ', ' order by e.enumsortorder) || ')'
                from pg_enum e where e.enumtypid = t.oid)
            when 'c' then (select 'create type ' || format_type(t.oid, null) || ' as ('
                    || string_agg(quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                                  order by a.attnum) || ')'
                from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
            when 'r' then (select 'create type ' || format_type(t.oid, null) || ' as range (subtype = '
                    || format_type(g.rngsubtype, null)
                    || ', multirange_type_name = ' || format_type(g.rngmultitypid, null) || ')'
                from pg_range g where g.rngtypid = t.oid)
            when 'd' then 'create domain ' || format_type(t.oid, null) || ' as '
                    || format_type(t.typbasetype, t.typtypmod)
            end as statement
          from found f join pg_type t on t.oid = f.oid
         where t.oid >= {first} and not exists (
            select from pg_depend d where d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'))
    select root::bigint, string_agg(statement, E';\\n' order by depth desc, statement)
      from stated where statement is not null group by root"""

_ENUM: Final = re.compile(r"create type .+ as enum \(")


def definitions_query(oids: str) -> str:
    """The query that gives, by oid, the statements that make a type; `oids` is the placeholder of an array of them.

    A type that is PostgreSQL's own or an extension's has none. Names are qualified, under trucker's session settings.
    """
    return _QUERY.format(oids=oids, first=FIRST_USER_OID)


def same_shape(one: str, other: str) -> bool:
    """Whether text of one type means the same in the other. Labels of enums are not compared: a missing one is an error
    when it is written."""
    return _shape(one) == _shape(other)


def _shape(definition: str) -> set[str]:
    return {statement for statement in definition.split(";\n") if not _ENUM.match(statement)}
