"""The destination's tables: how they are, and how they become able to hold a target's rows. Nothing is ever dropped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import psycopg

from trucker.adapters.postgres import TYPES
from trucker.errors import SinkError
from trucker.pg.type_definition import FIRST_USER_OID, definitions_query, same_shape
from trucker.sinks.postgres import identity
from trucker.sinks.postgres.ddl.alter import PostgresAlterations, alter
from trucker.sinks.postgres.ddl.deferred_key import is_due
from trucker.sinks.postgres.ddl.destination_table import DestinationColumn, DestinationTable
from trucker.sinks.postgres.ddl.key_change import key_statements
from trucker.sinks.postgres.ddl.unique_indexes import INDEXES, REFERRED, UniqueIndex
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.state_tables import LOCK
from trucker.sinks.target import Target
from trucker.table import Column, SchemaChanges, TableId, quote_identifier
from trucker.types import Unfit, column_kind

log = logging.getLogger("trucker.sink")

_MOST_COLUMNS: Final = 1_600


_TABLE: Final = """
select c.oid::bigint, c.relkind::text, pg_has_role(c.relowner, 'usage'),
    array(select p.name from unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p(name)
        where not has_table_privilege(c.oid, p.name))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relname = $2"""

_COLUMNS: Final = """
with recursive base as (
    select a.attnum, a.atttypid as oid, a.atttypmod as typmod
    from pg_attribute a where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
    union all
    select b.attnum, t.typbasetype, case when t.typtypmod >= 0 then t.typtypmod else b.typmod end
    from base b join pg_type t on t.oid = b.oid where t.typtype = 'd'
)
select a.attname, format_type(b.oid, b.typmod) || own.collation,
    b.oid::bigint, a.attnotnull, a.atthasdef, a.attidentity::text, a.attgenerated <> '',
    format_type(b.oid, -1) || own.collation,
    case when e.oid is not null then format('%I.%I', en.nspname, e.typname) else '' end,
    array(select l.enumlabel::text from pg_enum l where l.enumtypid = e.oid), a.attnum
from pg_attribute a
join base b on b.attnum = a.attnum
join pg_type t on t.oid = b.oid and t.typtype <> 'd'
left join pg_collation c on c.oid = a.attcollation
left join pg_namespace n on n.oid = c.collnamespace
left join pg_type e on e.typtype = 'e' and e.oid in (t.oid, t.typelem)
left join pg_namespace en on en.oid = e.typnamespace
cross join lateral (select case when a.attcollation not in (0, t.typcollation)
    then format(' collate %I.%I', n.nspname, c.collname) else '' end as collation) own
where a.attrelid = $1::oid
order by a.attnum"""


def describe(session: Session, table: TableId) -> DestinationTable | None:
    """The table as it is now; None where there is none."""
    relation = session.run(_TABLE, table.schema, table.name).fetchone()
    if relation is None:
        return None
    oid, kind, owned, denied = relation
    columns = {row[0]: DestinationColumn(*row) for row in session.run(_COLUMNS, oid)}
    unique = tuple(UniqueIndex.of(*row) for row in session.run(INDEXES, oid))
    referred = session.run(REFERRED, oid).fetchone() == (True,)
    return DestinationTable(table, kind, columns, unique, referred, owned, tuple(denied), oid)


def prepare(session: Session, project: str, target: Target) -> tuple[DestinationTable, bool]:
    """Create the target's table, or alter it as far as the target allows; returns the table and whether it is new. The
    table's identity is stored in the same transaction.

    Raises `SinkError`, having changed nothing, for a table that has been filled and is another one now.
    """
    try:
        with session.connection.transaction():
            session.run(LOCK, target.table.quoted)
            refuse_width(target)
            before = describe(session, target.table)
            identities = identity.OidIdentities(project)
            state = identities.refuse_changed(session, target, before.identity if before else None)
            if before is None:
                _create(session, target)
            elif before.kind not in ("r", "p"):
                raise no_table(target)
            elif follows(session, target, before):
                _alter(session, target, _convert_to_text(session, target, before))
            table = describe(session, target.table)
            if table is None:
                raise SinkError(f"table {target.table} was dropped while it was prepared", remedy="restart trucker")
            identities.put(session, target, table.identity, state)
    except psycopg.errors.InsufficientPrivilege:
        raise not_allowed(session, target, describe(session, target.table)) from None
    return table, before is None


def _alter(session: Session, target: Target, table: DestinationTable) -> None:
    types = types_of(session, target)
    refuse_other_shapes(session, target, types, table)
    for column in target.source.columns:
        if column.name not in table.columns and column.was_name not in table.columns:
            _tell_text(target, column, types)
    alter(session, target, table, types)
    refuse(session, target, describe(session, target.table) or table, table)


def follows(session: Session, target: Target, table: DestinationTable) -> bool:
    """Whether the table is to be altered as the source's was. Raises for one that may not be, and does not fit."""
    alterations = PostgresAlterations(target, table, {})
    if target.strict:
        alterations.refuse_other_columns()
    elif target.schema_changes is SchemaChanges.IGNORE:
        if not alterations.called_otherwise():
            refuse(session, restricted_target(target, table), table, table)
        return False
    return True


def no_table(target: Target) -> SinkError:
    remedy = "name another table in the truck's output"
    return SinkError(f"{target.table} is not a table", remedy=remedy, code="TRK409")


def restricted_target(target: Target, table: DestinationTable) -> Target:
    """The target with only the columns that the table has, and its whole key: no row can be written without it."""
    names = [name for name in target.source.names if name in table.columns or name in target.source.key]
    return replace(target, source=target.source.only(names))


def refuse_width(target: Target) -> None:
    """A staged row is the row, what to do with it, and its old key; and a table has so many columns at the most."""
    most = _MOST_COLUMNS - 1 - len(target.source.key)
    if len(target.source.columns) > most:
        raise SinkError(
            f"table {target.source.table} has {len(target.source.columns)} columns; at most {most} can be staged",
            remedy="leave some out with except_columns",
            code="TRK409",
        )


def _create(session: Session, target: Target) -> None:
    source, table = target.source, target.table
    exists = session.run("select 1 from pg_namespace where nspname = $1", table.schema).fetchone()
    if not exists:
        session.run(f"create schema {quote_identifier(table.schema)}")
    types = types_of(session, target)
    refuse_other_shapes(session, target, types)
    for column in source.columns:
        _tell_text(target, column, types)
    lines = [
        f"{quote_identifier(column.name)} {types[column.name][0]}{' not null' if column.not_null else ''}"
        for column in source.columns
    ]
    if source.key:
        lines.append(f"primary key ({', '.join(map(quote_identifier, source.key))})")
    session.run(f"create table {table.quoted} ({', '.join(lines)})")


def _convert_to_text(session: Session, target: Target, table: DestinationTable) -> DestinationTable:
    """Convert columns whose policy has become `text` to text; stored values keep their text."""
    wanted = [name for name, unfit in target.unfit if unfit is Unfit.TEXT and name in table.columns]
    typed = [name for name in wanted if not table.columns[name].is_text]
    for column in typed:
        name = quote_identifier(column)
        text = f"case num_nulls({name}) when 0 then format('%s', {name}) end"
        session.run(f"alter table {target.table.quoted} alter column {name} type text using {text}")
    return (describe(session, target.table) or table) if typed else table


def refuse(session: Session, target: Target, after: DestinationTable, before: DestinationTable) -> None:
    """Raise for what cannot hold the target's rows, naming both sides. `before` is the table as it is without what has
    been, or would be, done to it: a statement that a person is asked to run meets that."""
    source, table = target.source, target.table
    differing = _differing(session, target, after)
    if differing:
        raise SinkError(
            f"table {table} cannot hold the rows of {source.table}: {'; '.join(differing)}",
            remedy="give the destination's columns the source's types, or name another table in the truck's output",
            code="TRK409",
        )
    key = frozenset(source.key)
    if key and key <= after.columns.keys() and after.key(key) is None and not is_due(session, table, key):
        raise SinkError(
            f"table {table} has no unique key on ({', '.join(source.key)}), the key of {source.table}",
            remedy=_make_key(session, target, before),
            code="TRK409",
        )
    if not key <= after.columns.keys():
        raise SinkError(
            f"table {table} has the columns ({', '.join(after.columns)}), but not the key ({', '.join(source.key)}) "
            f"of {source.table}",
            remedy="add the key's columns and a primary key, or name another table in the truck's output",
            code="TRK409",
        )
    for name in source.names:
        column = after.columns.get(name)
        if column and ((column.identity == "a" and name not in key) or (column.generated and name in key)):
            raise SinkError(
                f"column {name} of table {table} is generated",
                remedy=f"ALTER TABLE {table.quoted} ALTER COLUMN {quote_identifier(name)} "
                + ("DROP EXPRESSION" if column.generated else "SET GENERATED BY DEFAULT"),
                code="TRK409",
            )


def _make_key(session: Session, target: Target, before: DestinationTable) -> str:
    """How the table gets the source's key, in place of the one it has.

    Where a column of the key is new there, its rows have no value of it: they have to be copied again.
    """
    types = types_of(session, target)
    missing = {name: types[name][0] for name in target.source.key if name not in before.columns}
    statements = "; ".join(key_statements(session, target, before, missing))
    if not missing or target.stale:
        return f"run at the destination: {statements}; then trucker run"
    return (
        f"run at the destination: {statements}; then trucker reset --truck {target.truck}, then trucker run, which "
        "copies the table again"
    )


def _differing(session: Session, target: Target, table: DestinationTable) -> list[str]:
    """Columns whose type cannot take the source's: neither the same, nor text, nor castable, nor of the same kind."""
    types = types_of(session, target)
    shared = [column for column in target.source.columns if column.name in table.columns and types[column.name][1]]
    if not shared:
        return []
    rows = session.run(
        """select w.name from unnest($1::text[], $2::oid[], $3::oid[]) w(name, wanted, own)
        join pg_type s on s.oid = w.wanted join pg_type d on d.oid = w.own
        where s.oid <> d.oid and d.typcategory <> 'S'
            and not (s.typcategory = d.typcategory and d.typcategory not in ('U', 'E', 'C', 'P'))
            and not exists (select from pg_cast
                where castsource = s.oid and casttarget = d.oid and castcontext in ('i', 'a'))""",
        [column.name for column in shared],
        [types[column.name][1] for column in shared],
        [table.columns[column.name].type_oid for column in shared],
    )
    return [f"{name} is {table.columns[name].type}, at the source {types[name][0]}" for (name,) in rows]


def types_of(session: Session, target: Target) -> dict[str, tuple[str, int]]:
    """By column the type to give it here, and the oid of the source's type here: text and 0 where it is not known.

    Text is also what the truck says should be, and what names objects that only the source has (`regclass`).
    A name that `to_regtype` knows has been parsed as nothing but a type, so it is safe in a statement.
    """
    columns = target.source.columns
    rows = session.run(
        """select w.name,
            case when w.type_name <> '' then case when to_regtype(w.type_name) is not null then w.type_name end
                when w.oid < $5 and t.oid is not null then format_type(w.oid, w.typmod) end,
            coalesce(case when w.type_name <> '' then to_regtype(w.type_name)::oid
                when w.oid < $5 then t.oid end, 0)::bigint
        from unnest($1::text[], $2::text[], $3::bigint[], $4::int[]) v(name, type_name, number, typmod)
        cross join lateral (select v.name, v.type_name, v.number::oid as oid, v.typmod) w
        left join pg_type t on t.oid = w.oid""",
        [column.name for column in columns],
        [column.type_name for column in columns],
        [column.type_oid for column in columns],
        [column.typmod for column in columns],
        FIRST_USER_OID,
    )
    as_text = {name for name, unfit in target.unfit if unfit is Unfit.TEXT}
    forms = {column.name: TYPES.of(column_kind(column)).type for column in columns}
    return {
        name: ("text" if name in as_text else forms[name] or type_name or "text", oid) for name, type_name, oid in rows
    }


_DEFINITIONS: Final = definitions_query("$1")


def refuse_other_shapes(
    session: Session, target: Target, types: Mapping[str, tuple[str, int]], table: DestinationTable | None = None
) -> None:
    """Raise for a user's type that has the source's name here, but would read its text as something else."""
    columns = [
        column
        for column in target.source.columns
        if column.definition and types[column.name][1] and _is_or_will_be(column, types[column.name], table)
    ]
    if not columns:
        return
    definitions = dict(session.run(_DEFINITIONS, [types[column.name][1] for column in columns]).fetchall())
    for column in columns:
        here = definitions.get(types[column.name][1], "")
        if not same_shape(column.definition, here):
            raise SinkError(
                f"column {column.name} of table {target.table}: type {column.type_name} is not the same at the "
                f"destination as at the source ({here or 'another definition'})",
                remedy=f"create the same type with this name: {column.definition}; or write text: "
                f"output.columns.{column.name}.unfit: text",
                code="TRK409",
            )


def _is_or_will_be(column: Column, wanted: tuple[str, int], table: DestinationTable | None) -> bool:
    """Whether the column is, or will be made, of the source's type and not text."""
    actual = table.columns.get(column.name) if table else None
    return actual.type_oid == wanted[1] if actual else wanted[0] != "text"


def _tell_text(target: Target, column: Column, types: Mapping[str, tuple[str, int]]) -> None:
    if column.type_name and not types[column.name][1]:
        log.info(
            "column is written as text: its type does not exist at the destination",
            extra={
                "truck": target.truck,
                "table": str(target.table),
                "column": column.name,
                "type": column.type_name,
                "made_by": column.definition,
            },
        )


def not_allowed(session: Session, target: Target, existing: DestinationTable | None) -> SinkError:
    """The user may not make, alter or write the table; the remedy is the one statement that lets it."""
    info, table = session.connection.info, target.table
    user, schema = quote_identifier(info.user), quote_identifier(table.schema)
    row = session.run(
        """select n.oid is not null, coalesce(has_schema_privilege(n.oid, 'usage'), false)
        from (select max(oid) as oid from pg_namespace where nspname = $1) n""",
        table.schema,
    ).fetchone()
    exists, enters = row or (False, False)
    if not exists:
        doing, remedy = "create", f"GRANT CREATE ON DATABASE {quote_identifier(info.dbname)} TO {user}"
    elif existing is None or not enters:
        doing = "create" if existing is None else "use"
        remedy = f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"
    elif existing.denied and existing.owned is False:
        doing, remedy = "write", f"GRANT {', '.join(existing.denied)} ON {table.quoted} TO {user}"
    else:
        doing, remedy = "alter", f"ALTER TABLE {table.quoted} OWNER TO {user}"
    return SinkError(
        f"user {info.user} may not {doing} table {table}", remedy=f"run at the destination: {remedy}", code="TRK404"
    )
