"""The statements by which a destination's table gets the key that its source has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target
from trucker.table import quote_identifier

_PRIMARY_KEY: Final = """select k.conname, exists (select from pg_constraint f where f.confrelid = k.conrelid
        and f.contype = 'f' and f.conindid = k.conindid)
    from pg_constraint k where k.conrelid = $1::oid and k.contype = 'p'"""


def key_statements(
    session: Session, target: Target, current: DestinationTable, missing: Mapping[str, str]
) -> list[str]:
    """For a person to run: other readers of the table may rely on the key that it has.

    `missing` are columns of the key that the table has not, with their types. A primary key that foreign keys refer to
    stays, and a unique constraint is added. Rows that are copied again anyway, and that the new key would
    refuse, go first.
    """
    table = target.table.quoted
    columns = ", ".join(map(quote_identifier, target.source.key))
    primary = session.run(_PRIMARY_KEY, current.oid).fetchone()
    added = [f"ADD COLUMN {quote_identifier(name)} {kind}" for name, kind in missing.items()]
    if primary is None:
        actions = [*added, f"ADD PRIMARY KEY ({columns})"]
    elif primary[1]:
        actions = [*added, f"ADD UNIQUE ({columns})"]
    else:
        actions = [f"DROP CONSTRAINT {quote_identifier(primary[0])}", *added, f"ADD PRIMARY KEY ({columns})"]
    empties = bool(missing) or (target.stale and _refuses_rows(session, target))
    return [*([f"TRUNCATE {table}"] if empties else []), f"ALTER TABLE {table} {', '.join(actions)}"]


def _refuses_rows(session: Session, target: Target) -> bool:
    names = [quote_identifier(name) for name in target.source.key]
    missing = " or ".join(f"{name} is null" for name in names)
    grouped = ", ".join(names)
    row = session.run(
        f"select exists (select from {target.table.quoted} where {missing}) or exists (select from"
        f" {target.table.quoted} group by {grouped} having count(*) > 1)"
    ).fetchone()
    return row == (True,)
