"""Rows for output.sql on their way: what an executor stages, typed by the rows' own columns.

A staged row is `n, k, c0, c1, …`: its run, its operation, its cells. Little is carried in the receipt, much is copied
into a table of its own, as in `stage_store`. Rows of a snapshot wait in one table for all of its parts, with the part's
number `p` in front, until the copy is complete; that it is there is the record of the copy, as in `shadow_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Changes
from trucker.errors import SinkError
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.copy_text import Cells, copy_text
from trucker.sinks.output_sql import refuse_names, refuse_partial
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.copy import shadow_table
from trucker.sinks.postgres.ddl.destination_table import DestinationColumn, DestinationTable
from trucker.sinks.postgres.ddl.tables import refuse_other_shapes, types_of
from trucker.sinks.postgres.failure import explain, of_data
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.stage_store import Describe, Lend, digest, stage_name, stage_prefix
from trucker.sinks.postgres.stage.text_stage import copy_in
from trucker.sinks.target import Target

# A table has so many columns at the most, of which p, n and k are ours.
_MOST_COLUMNS: Final = 1_600 - 3
_OWN: Final = "n bigint, k int2"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What a receipt carries of one part: the rows' COPY text, or the name of the table they are in."""

    rows: int
    text: bytes = b""
    table: str = ""


def describe_rows(session: Session, target: Target) -> DestinationTable:
    """The rows' columns as a table would have them. Raises for a type that is another one here."""
    refuse_names(target)
    if len(target.source.columns) > _MOST_COLUMNS:
        raise SinkError(
            f"the rows of {target.source.table} have {len(target.source.columns)} columns; at most "
            f"{_MOST_COLUMNS} can be staged",
            remedy="leave some columns out",
            code="TRK409",
        )
    types = types_of(session, target)
    refuse_other_shapes(session, target, types)
    columns = {
        name: DestinationColumn(name, kind, oid, False, False, "", False, kind) for name, (kind, oid) in types.items()
    }
    return DestinationTable(target.place, "r", {name: columns[name] for name in target.source.names}, (), False)


def rows_columns(table: DestinationTable) -> str:
    """The column definitions of a table to stage such rows in."""
    return ", ".join([_OWN, *(f"c{number} {column.type}" for number, column in enumerate(table.columns.values()))])


def write_rows(project: str, work: Work, lend: Lend, describe: Describe, values: Iterable[Changes]) -> Receipt:
    """Stage one part of a stream. A connection is borrowed only if the rows are many."""
    target = work.target
    text: list[pa.Buffer] = []
    rows, table = 0, ""
    for value in values:
        rows += len(value)
        text += _text(target, value)
        if table or sum(piece.size for piece in text) > work.room:
            with lend() as session, session.connection.transaction():
                if not table:
                    table = f"{stage_prefix(project, work.batch)}{digest(str(target))}_{work.part}_{token_hex(6)}"
                    columns = rows_columns(describe(session, target))
                    session.run(
                        f"create unlogged table {stage_name(table)} ({columns}) with (autovacuum_enabled = off)"
                    )
                copy_rows_in(session, target, stage_name(table), text)
            text.clear()
    staged = StagedRows(rows, b"".join(memoryview(piece) for piece in text), table)
    return work.receipt(rows, staged)


def copy_rows_in(session: Session, target: Target, into: str, text: Iterable[pa.Buffer | bytes]) -> None:
    """Staged text into a table. What its columns do not take stops the truck: no row of it can be set aside."""
    try:
        copy_in(session, into, text)
    except psycopg.Error as error:
        if not of_data(error):
            raise
        reason = explain(error, f"the rows of {target.source.table} for output.sql", columns=target.source.names)
        raise SinkError(
            reason.message,
            remedy="set output.columns.<column>.unfit to write text or NULL, or correct the type at the destination",
            code=reason.code,
        ) from None


def _text(target: Target, value: Changes, part: str | None = None) -> Iterator[pa.Buffer]:
    shaped = value.reshaped(target.source)
    refuse_partial(target, shaped)
    cells: list[Cells] = [*([part] if part is not None else []), _numbers(shaped.ordinal), _numbers(shaped.op)]
    cells += [shaped.new.column(name) for name in target.source.names]
    return copy_text(cells, len(shaped))


def _numbers(values: npt.NDArray[Any]) -> Cells:
    if len(values) and (values == values[0]).all():
        return str(values[0])
    return pc.cast(pa.array(values), pa.string())


# -- snapshots --------------------------------------------------------------------------------------------------------


def begin_rows(session: Session, project: str, target: Target, table: DestinationTable) -> None:
    """Have an empty table for the rows of a snapshot to wait in."""
    shadow_table.begin(session, project, target, f"p int, {rows_columns(table)}")


def copy_rows(session: Session, project: str, work: Work, values: Iterable[Changes]) -> Receipt:
    """Stage one part of a snapshot, unless it has been."""
    target, snapshot = work.target, work.batch.snapshot
    truck_table = (target.truck, target.source.table)
    with session.connection.transaction():
        rows = state_tables.enter_part(session, project, truck_table, snapshot, work.part)
        if rows is None:
            waiting = shadow_table.find(session, project, truck_table)
            if waiting is None:
                raise SinkError(f"the copy {snapshot} of table {target.source.table} has no staging table")
            rows = 0
            for value in values:
                rows += len(value)
                copy_rows_in(session, target, waiting, _text(target, value, str(work.part)))
            state_tables.finish_part(session, project, truck_table, snapshot, work.part, rows)
    return work.receipt(rows)
