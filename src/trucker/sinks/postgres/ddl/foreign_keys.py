"""Foreign keys between tables that are copied.

A first copy goes table by table and range by range, in transactions of its own each, so that a row may be there before
the one it refers to: no constraint can hold meanwhile, deferred or not. And a table that others refer to cannot be
emptied of half a copy. Both are said before a row is touched, with the statements to run before and after. A copy over
an earlier one is made `shadow_table` it, and foreign keys stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trucker.errors import SinkError, TruckFailed
from trucker.sinks.ledger import Copy
from trucker.sinks.postgres.session import Session
from trucker.table import TableId, quote_identifier

_FOREIGN_KEYS: Final = """
with copied as (
    select c.oid, w.ours
    from unnest($1::text[], $2::text[], $3::boolean[]) w(schema, name, ours)
    join pg_namespace n on n.nspname = w.schema join pg_class c on c.relnamespace = n.oid and c.relname = w.name)
select rn.nspname, r.relname, tn.nspname, t.relname, k.conname, pg_get_constraintdef(k.oid)
from pg_constraint k
join pg_class r on r.oid = k.conrelid join pg_namespace rn on rn.oid = r.relnamespace
join pg_class t on t.oid = k.confrelid join pg_namespace tn on tn.oid = t.relnamespace
where k.contype = 'f' and k.conparentid = 0 and exists (
    select from copied where oid = k.confrelid and (ours or k.conrelid in (select oid from copied)))
order by 1, 2, 5
limit 1"""


def refuse_foreign_keys(session: Session, copies: Sequence[Copy]) -> None:
    """`TruckFailed` where a foreign key would not survive the copy of these tables."""
    tables = [copy.target.table for copy in copies]
    row = session.run(
        _FOREIGN_KEYS, [t.schema for t in tables], [t.name for t in tables], [copy.ours for copy in copies]
    ).fetchone()
    if row is None:
        return
    refers, referred = TableId(row[0], row[1]), TableId(row[2], row[3])
    name, definition = quote_identifier(row[4]), row[5].removesuffix(" DEFERRABLE INITIALLY DEFERRED")
    truck = next(copy.target.truck for copy in copies if copy.target.table in (referred, refers))
    raise TruckFailed(
        truck,
        SinkError(
            f"table {refers} refers to {referred} by foreign key {row[4]}, which rows violate while the "
            "tables are copied",
            remedy=f"run at the destination: ALTER TABLE {refers.quoted} DROP CONSTRAINT {name}  and, when the tables"
            f" stream: ALTER TABLE {refers.quoted} ADD CONSTRAINT {name} {definition} DEFERRABLE INITIALLY DEFERRED",
            code="TRK427",
        ),
    )
