"""Snapshot rows: COPY's bytes from the source straight into the destination's table.

A part and the record of it are one transaction, so a task that is repeated finds the record and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from trucker.change import Changes, CopiedRows, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.base import Receipt, Target, Work
from trucker.sinks.copy_text import copy_text
from trucker.sinks.postgres import own_tables
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.table import DestinationTable


def copy_part(
    session: Session, project: str, work: Work, table: DestinationTable, pieces: Iterator[Changes | CopiedRows]
) -> Receipt:
    """Copy one part, unless it has been."""
    target, snapshot = work.target, work.batch.snapshot
    slot = (target.truck, target.source.table)
    with session.connection.transaction():
        rows = own_tables.enter_part(session, project, slot, snapshot, work.part)
        if rows is None:
            rows = sum(_copy(session, target, table, piece) for piece in pieces)
            own_tables.finish_part(session, project, slot, snapshot, work.part, rows)
    return Receipt(target.truck, target.source.table, work.part, rows)


def _copy(session: Session, target: Target, table: DestinationTable, piece: Changes | CopiedRows) -> int:
    names = [name for name in piece.schema.names if name in target.source.names and table.writable(name)]
    if isinstance(piece, CopiedRows) and tuple(names) == piece.schema.names:
        return _send(session, target, names, " (format csv)", [piece.csv], piece.rows)
    rows = piece.to_changes().new if isinstance(piece, CopiedRows) else piece.new
    text = copy_text([rows.column(name) for name in names], rows.num_rows)
    return _send(session, target, names, "", text, rows.num_rows)


def _send(
    session: Session, target: Target, names: list[str], options: str, data: Iterable[bytes | pa.Buffer], rows: int
) -> int:
    if not rows:
        return 0
    columns = ", ".join(map(quote_identifier, names))
    statement = f"copy {target.table.quoted} ({columns}) from stdin{options}"
    with session.connection.cursor() as cursor:
        with cursor.copy(statement.encode()) as copy:
            for piece in data:
                copy.write(memoryview(piece) if isinstance(piece, pa.Buffer) else piece)
        if cursor.rowcount != rows:
            raise SinkError(
                f"table {target.table} took {cursor.rowcount} of {rows} copied rows",
                remedy="look for triggers or rules on the destination's table that keep rows away",
            )
    return rows
