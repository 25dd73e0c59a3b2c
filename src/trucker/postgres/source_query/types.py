"""Passes rows to a statement: as one array per column, with exactly the types of the columns.

Every value is read by its type's input function from the text that its output function wrote, which is exact for every
type. `unnest` of an array of the type does that. PostgreSQL has no arrays of arrays: values of an array type are passed
as texts, which PostgreSQL converts in the same way. A column of a domain that does not allow NULL gets the domain's
base type, because the rows may have no value for it, as the new values of a delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import errors

from trucker.pg.connection import PgConnection
from trucker.postgres.connect import translated
from trucker.table import Column, quote_identifier

TEXT: Final = "pg_catalog.text"

# Numbers and booleans, whose texts have no character that needs quotes in an array.
_PLAIN: Final = [16, 20, 21, 23, 26, 700, 701, 1700]

# With a modifier, format_type() writes the type's name; without one, the name is qualified here.
_TYPES: Final = """
    with recursive wanted as (
        select w.place, coalesce(t.oid, to_regtype(nullif(w.name, ''))::oid, 'text'::regtype::oid) as oid,
               case when t.oid is null then -1 else w.typmod end as typmod
          from unnest(%(oids)s::oid[], %(typmods)s::int[], %(names)s::text[])
               with ordinality as w(oid, typmod, name, place)
          left join pg_type t on t.oid = w.oid),
    based as (
        select w.place, w.oid, w.typmod, 0 as depth from wanted w
        union all
        select b.place, t.typbasetype, case when t.typtypmod = -1 then b.typmod else t.typtypmod end, b.depth + 1
          from based b join pg_type t on t.oid = b.oid
         where t.typtype = 'd')
    select b.place::int - 1, t.typtype = 'd', t.typarray <> 0, t.typdelim::text,
           quote_ident(n.nspname) || '.' || quote_ident(t.typname),
           case when b.typmod = -1 then quote_ident(n.nspname) || '.' || quote_ident(t.typname)
                else format_type(t.oid, b.typmod) end,
           b.typmod <> -1, t.oid = any (%(plain)s::oid[])
      from based b
      join pg_type t on t.oid = b.oid
      join pg_namespace n on n.oid = t.typnamespace
     where b.depth = 0 or t.typtype <> 'd'
     order by b.place, b.depth"""


@dataclass(frozen=True, slots=True)
class InputColumn:
    """One column of the rows for a statement.

    `type` is the column's type in the statement, `element` the element type of its array. `plain`: no value needs
    quotes inside an array.
    """

    name: str
    type: str
    element: str
    delimiter: str = ","
    modified: bool = False
    plain: bool = False

    def parameter(self, number: int) -> str:
        """The column, from the statement's parameter of this number."""
        values = f"pg_catalog.unnest(${number}::{self.element}[])"
        cast = f"::{self.type}" if self.modified or self.element != self.type else ""
        return f"{values}{cast} as {quote_identifier(self.name)}"

    @property
    def null(self) -> str:
        """The column as NULL, where its values are not sent."""
        return f"null::{self.type} as {quote_identifier(self.name)}"


@translated("reading the catalogue")
def load_input_columns(connection: PgConnection, columns: Sequence[Column]) -> list[InputColumn]:
    """How each column is passed. Call inside `catalogue`: names are found in pg_catalog, in a transaction."""
    arguments = {
        "oids": [column.type_oid for column in columns],
        "typmods": [column.typmod for column in columns],
        "names": [column.type_name for column in columns],
        "plain": _PLAIN,
    }
    rows = connection.execute(_TYPES.encode(), arguments).fetchall()
    declared: dict[int, InputColumn] = {}
    base: dict[int, InputColumn] = {}
    domains: dict[int, str] = {}
    for place, is_domain, has_array, delimiter, name, full, modified, plain in rows:
        element = name if has_array else TEXT
        input_column = InputColumn(columns[place].name, full, element, delimiter if has_array else ",", modified, plain)
        declared.setdefault(place, input_column)
        if is_domain:
            domains[place] = full
        else:
            base[place] = input_column
    strict = {name for name in dict.fromkeys(domains.values()) if not _takes_null(connection, name)}
    return [base[at] if domains.get(at) in strict else declared[at] for at in range(len(columns))]


def _takes_null(connection: PgConnection, domain: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"select null::{domain}".encode())
    except errors.IntegrityError:
        return False
    return True
