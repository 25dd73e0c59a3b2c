"""The destination's tables: how they are, and how they become able to hold a target's rows. Nothing is ever dropped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from trucker.change import Column, TableId, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.base import Target
from trucker.sinks.postgres.own_tables import LOCK
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.unique import INDEXES, REFERRED, UniqueIndex
from trucker.type_definition import FIRST_USER_OID, definitions_query, same_shape
from trucker.types import Unfit, column_kind

log = logging.getLogger("trucker.sink")

_MOST_COLUMNS: Final = 1_600


@dataclass(frozen=True, slots=True)
class DestinationColumn:
    """`type` is SQL for the column's type, a domain resolved to its base, with the collation where it is its own.

    `base` is the same without a length or precision. A cast to a type with one cuts what is too long; a value of the
    base type is checked when it is assigned, as it should be.
    """

    name: str
    type: str
    type_oid: int
    not_null: bool
    has_default: bool
    identity: str
    generated: bool
    base: str

    @property
    def is_text(self) -> bool:
        return self.type == "text" or self.type.startswith("text collate ")

    @property
    def bare_type(self) -> str:
        """The type without its collation."""
        return self.type.partition(" collate ")[0]


@dataclass(frozen=True, slots=True)
class DestinationTable:
    """A table as the destination's catalogue has it.

    `unique` are its unique indexes that are checked at once, `referred` says that a foreign key would miss a row of
    it that leaves and comes back.
    """

    table: TableId
    kind: str
    columns: Mapping[str, DestinationColumn]
    unique: tuple[UniqueIndex, ...]
    referred: bool

    def type_of(self, name: str) -> str:
        return self._column(name).type

    def base_of(self, name: str) -> str:
        return self._column(name).base

    def _column(self, name: str) -> DestinationColumn:
        if name not in self.columns:
            raise SinkError(
                f"table {self.table} has no column {name}",
                remedy="start trucker again: it adds the column",
                code="TRK408",
            )
        return self.columns[name]

    def key(self, columns: Iterable[str]) -> Mapping[str, str] | None:
        """The operators that compare the columns of the unique key on exactly these, None where there is no such key.

        Those of a type that is not PostgreSQL's own are in a schema that need not be on the search path.
        """
        wanted = frozenset(columns)
        for index in self.unique:
            if index.columns == wanted and index.plain:
                return dict(zip(index.names, index.operators, strict=True))
        return None

    def other_unique(self, key: Iterable[str]) -> tuple[UniqueIndex, ...]:
        """The unique indexes beside that of the key."""
        wanted = frozenset(key)
        return tuple(index for index in self.unique if not (index.plain and index.columns == wanted))

    def writable(self, name: str) -> bool:
        """A generated column is computed there, whatever the source says."""
        return not self.columns[name].generated


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
    format_type(b.oid, -1) || own.collation
from pg_attribute a
join base b on b.attnum = a.attnum
join pg_type t on t.oid = b.oid and t.typtype <> 'd'
left join pg_collation c on c.oid = a.attcollation
left join pg_namespace n on n.oid = c.collnamespace
cross join lateral (select case when a.attcollation not in (0, t.typcollation)
    then format(' collate %I.%I', n.nspname, c.collname) else '' end as collation) own
where a.attrelid = $1::oid
order by a.attnum"""


def describe(session: Session, table: TableId) -> DestinationTable | None:
    """The table as it is now; None where there is none."""
    found = session.run(
        """select c.oid::bigint, c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = $2""",
        table.schema,
        table.name,
    ).fetchone()
    if found is None:
        return None
    oid, kind = found
    columns = {row[0]: DestinationColumn(*row) for row in session.run(_COLUMNS, oid)}
    unique = tuple(UniqueIndex.of(*row) for row in session.run(INDEXES, oid))
    referred = session.run(REFERRED, oid).fetchone() == (True,)
    return DestinationTable(table, kind, columns, unique, referred)


def prepare(session: Session, target: Target) -> DestinationTable:
    """Make or widen the target's table; the table as it is then."""
    try:
        with session.connection.transaction():
            session.run(LOCK, target.table.quoted)
            _refuse_width(target)
            found = describe(session, target.table)
            if found is None:
                _create(session, target)
            else:
                found = _made_text(session, target, found)
                _refuse(session, target, found)
                _widen(session, target, found)
    except psycopg.errors.InsufficientPrivilege:
        raise _not_allowed(session, target) from None
    made = describe(session, target.table)
    if made is None:
        raise SinkError(f"table {target.table} has gone while it was prepared", remedy="start trucker again")
    return made


def _refuse_width(target: Target) -> None:
    """A staged row is the row, what to do with it, and its old key; and a table has so many columns at the most."""
    most = _MOST_COLUMNS - 1 - len(target.source.key)
    if len(target.source.columns) > most:
        raise SinkError(
            f"table {target.source.table} has {len(target.source.columns)} columns, of which {most} could be staged",
            remedy="leave some out with except_columns",
            code="TRK409",
        )


def _create(session: Session, target: Target) -> None:
    source, table = target.source, target.table
    exists = session.run("select 1 from pg_namespace where nspname = $1", table.schema).fetchone()
    if not exists:
        session.run(f"create schema {quote_identifier(table.schema)}")
    types = _types(session, target)
    _refuse_other_shapes(session, target, types)
    for column in source.columns:
        _tell_text(target, column, types)
    lines = [
        f"{quote_identifier(column.name)} {types[column.name][0]}{' not null' if column.not_null else ''}"
        for column in source.columns
    ]
    if source.key:
        lines.append(f"primary key ({', '.join(map(quote_identifier, source.key))})")
    session.run(f"create table {table.quoted} ({', '.join(lines)})")


def _made_text(session: Session, target: Target, found: DestinationTable) -> DestinationTable:
    """Columns whose policy has become `text` are made so; the values that are there keep their text."""
    wanted = [name for name, unfit in target.unfit if unfit is Unfit.TEXT and name in found.columns]
    typed = [name for name in wanted if not found.columns[name].is_text]
    for column in typed:
        name = quote_identifier(column)
        text = f"case num_nulls({name}) when 0 then format('%s', {name}) end"
        session.run(f"alter table {target.table.quoted} alter column {name} type text using {text}")
    return (describe(session, target.table) or found) if typed else found


def _widen(session: Session, target: Target, found: DestinationTable) -> None:
    types = _types(session, target)
    _refuse_other_shapes(session, target, types, found)
    alter = f"alter table {target.table.quoted}"
    for column in target.source.columns:
        name = quote_identifier(column.name)
        if column.name not in found.columns:
            type_name = types[column.name][0]
            _tell_text(target, column, types)
            if column.missing_value is None:
                session.run(f"{alter} add column {name} {type_name}")
                continue
            required = " not null" if column.not_null else ""
            value = literal(column.missing_value)
            session.run(f"{alter} add column {name} {type_name}{required} default {value}")
            session.run(f"{alter} alter column {name} drop default")
        elif _released(column, target, found):
            session.run(f"{alter} alter column {name} drop not null")
    for name, own in found.columns.items():
        left_out = name not in target.source.names and not (own.has_default or own.identity or own.generated)
        if left_out and own.not_null:
            session.run(f"{alter} alter column {quote_identifier(name)} drop not null")


def _released(column: Column, target: Target, found: DestinationTable) -> bool:
    """Whether the source lets NULL in where the destination does not. The stream alone does not tell."""
    own = found.columns[column.name]
    known = column.type_name != "" and column.name not in target.source.key
    return own.not_null and not own.identity and not column.not_null and known


def _refuse(session: Session, target: Target, found: DestinationTable) -> None:
    """Raise for what cannot hold the target's rows, naming both sides."""
    source, table = target.source, target.table
    if found.kind not in ("r", "p"):
        raise SinkError(f"{table} is not a table", remedy="name another table in the truck's output", code="TRK409")
    differing = _differing(session, target, found)
    if differing:
        raise SinkError(
            f"table {table} cannot hold the rows of {source.table}: {'; '.join(differing)}",
            remedy="give the destination's columns the source's types, or name another table in the truck's output",
            code="TRK409",
        )
    key = frozenset(source.key)
    if key and key <= found.columns.keys() and found.key(key) is None:
        raise SinkError(
            f"table {table} has no unique key on ({', '.join(source.key)}), the key of {source.table}",
            remedy=f"ALTER TABLE {table.quoted} ADD PRIMARY KEY ({', '.join(map(quote_identifier, source.key))})",
            code="TRK409",
        )
    if not key <= found.columns.keys():
        raise SinkError(
            f"table {table} has the columns ({', '.join(found.columns)}), but not the key ({', '.join(source.key)}) "
            f"of {source.table}",
            remedy="add the key's columns and a primary key, or name another table in the truck's output",
            code="TRK409",
        )
    for name in source.names:
        own = found.columns.get(name)
        if own and ((own.identity == "a" and name not in key) or (own.generated and name in key)):
            raise SinkError(
                f"table {table} makes the values of column {name} itself",
                remedy=f"ALTER TABLE {table.quoted} ALTER COLUMN {quote_identifier(name)} "
                + ("DROP EXPRESSION" if own.generated else "SET GENERATED BY DEFAULT"),
                code="TRK409",
            )


def _differing(session: Session, target: Target, found: DestinationTable) -> list[str]:
    """Columns whose type cannot take the source's: neither the same, nor text, nor castable, nor of the same kind."""
    types = _types(session, target)
    shared = [column for column in target.source.columns if column.name in found.columns and types[column.name][1]]
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
        [found.columns[column.name].type_oid for column in shared],
    )
    return [f"{name} is {found.columns[name].type}, at the source {types[name][0]}" for (name,) in rows]


def _types(session: Session, target: Target) -> dict[str, tuple[str, int]]:
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
    forms = {column.name: column_kind(column).form.postgres for column in columns}
    return {
        name: ("text" if name in as_text else forms[name] or type_name or "text", oid) for name, type_name, oid in rows
    }


_DEFINITIONS: Final = definitions_query("$1")


def _refuse_other_shapes(
    session: Session, target: Target, types: Mapping[str, tuple[str, int]], found: DestinationTable | None = None
) -> None:
    """Raise for a user's type that has the source's name here, but would read its text as something else."""
    columns = [
        column
        for column in target.source.columns
        if column.definition and types[column.name][1] and _is_or_will_be(column, types[column.name], found)
    ]
    if not columns:
        return
    made = dict(session.run(_DEFINITIONS, [types[column.name][1] for column in columns]).fetchall())
    for column in columns:
        here = made.get(types[column.name][1], "")
        if not same_shape(column.definition, here):
            raise SinkError(
                f"column {column.name} of table {target.table}: type {column.type_name} is not here what it is at the"
                f" source ({here or 'made otherwise'})",
                remedy=f"make it the same, under this name: {column.definition}; or let the truck write text: "
                f"output.columns.{column.name}.unfit: text",
                code="TRK409",
            )


def _is_or_will_be(column: Column, wanted: tuple[str, int], found: DestinationTable | None) -> bool:
    """Whether the column is, or will be made, of the source's type and not text."""
    own = found.columns.get(column.name) if found else None
    return own.type_oid == wanted[1] if own else wanted[0] != "text"


def _tell_text(target: Target, column: Column, types: Mapping[str, tuple[str, int]]) -> None:
    if column.type_name and not types[column.name][1]:
        log.info(
            "column is text: its type is not known at the destination",
            extra={
                "truck": target.truck,
                "table": str(target.table),
                "column": column.name,
                "type": column.type_name,
                "made_by": column.definition,
            },
        )


def _not_allowed(session: Session, target: Target) -> SinkError:
    info, table = session.connection.info, target.table
    user, schema = quote_identifier(info.user), quote_identifier(table.schema)
    return SinkError(
        f"user {info.user} may not create or alter table {table}",
        remedy=f"GRANT CREATE ON DATABASE {quote_identifier(info.dbname)} TO {user}, "
        f"or GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}, or make it the owner of an existing table",
        code="TRK404",
    )


def literal(text: str) -> str:
    """A value as SQL (`standard_conforming_strings` is on)."""
    return "'" + text.replace("'", "''") + "'"
