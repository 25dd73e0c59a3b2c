"""Values that the destination's type for a column does not take, where the truck says that they become NULL.

The server itself is asked, about the distinct values of a column at once, before anything is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Changes, CopiedRows
from trucker.errors import SinkError
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target
from trucker.types import Unfit

Lend = Callable[[], AbstractContextManager[Session]]
Describe = Callable[[Session, Target], DestinationTable]
_SINCE: Final = 160_000


def fitting(
    target: Target, lend: Lend, describe: Describe, values: Iterator[Changes | CopiedRows]
) -> Iterator[Changes | CopiedRows]:
    """The values, with NULL for what does not fit in columns of that policy; the very same where there are none."""
    names = [name for name, unfit in target.unfit if unfit is Unfit.NULL]
    return _fitting(target, names, lend, describe, values) if names else values


def _fitting(
    target: Target, names: Sequence[str], lend: Lend, describe: Describe, values: Iterator[Changes | CopiedRows]
) -> Iterator[Changes]:
    for value in values:
        changes = value.to_changes() if isinstance(value, CopiedRows) else value
        with lend() as session:
            table = describe(session, target)
            for name in names:
                if name in changes.schema.names and not table.columns[name].is_text:
                    changes = _nulled(changes, name, session, table)
        yield changes


def _nulled(changes: Changes, name: str, session: Session, table: DestinationTable) -> Changes:
    """Replace refused values with NULL, in old rows too: rows that were stored with NULL are found by NULL."""
    new, old = changes.new.column(name), changes.old.column(name)
    values = pa.chunked_array([new, old], pa.string()).unique().drop_null()
    wrong = _refused(session, table, name, values)
    if not len(wrong):
        return changes
    place = changes.schema.names.index(name)
    nothing = pa.scalar(None, pa.string())
    return replace(
        changes,
        new=changes.new.set_column(place, name, pc.if_else(pc.is_in(new, wrong), nothing, new)),
        old=changes.old.set_column(place, name, pc.if_else(pc.is_in(old, wrong), nothing, old)),
    )


def _refused(session: Session, table: DestinationTable, name: str, texts: pa.Array) -> pa.Array:
    if session.connection.info.server_version < _SINCE:
        raise SinkError(
            f"column {name!r} of table {table.table}: unfit: null needs PostgreSQL 16 or newer at the destination",
            remedy="write unfit: text for it, or remove unfit",
            code="TRK407",
        )
    rows = session.run(
        "select v from unnest($1::text[]) u(v) where not pg_input_is_valid(v, $2)",
        texts.to_pylist(),
        table.columns[name].bare_type,
    )
    return pa.array([text for (text,) in rows], pa.string())
