"""Which values the server's type for a column does not take."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from trucker.errors import SinkError
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session

_SINCE: Final = 160_000


def unfit_values(session: Session, table: DestinationTable, name: str, texts: pa.Array) -> pa.Array:
    """Those of the texts that cannot be read as the column's type; the server itself is asked."""
    column = table.columns[name]
    if column.is_text:
        return pa.array([], pa.string())
    if session.connection.info.server_version < _SINCE:
        raise SinkError(
            f"column {name!r} of table {table.table}: unfit: null needs PostgreSQL 16 or newer at the destination",
            remedy="write unfit: text for it, or remove unfit",
            code="TRK407",
        )
    query = "select v from unnest($1::text[]) u(v) where not pg_input_is_valid(v, $2)"
    rows = session.run(query, texts.to_pylist(), column.bare_type)
    return pa.array([text for (text,) in rows], pa.string())
