"""Builds the batch that one destination commits for a range of the change log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trucker.engine.transform.assignment import Assignment
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import TruckRun, letters_of
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.sinks.target import Target
from trucker.table import TableId


def batch_of(
    source: str,
    destination: str,
    runs: Sequence[TruckRun],
    assignments: Sequence[Assignment],
    start: Lsn,
    end: Lsn,
    lane: Lane | None,
    again: Mapping[str, Mapping[TableId, str]],
) -> Batch:
    """What a destination is to commit of a range: for trucks that move on to `end`, or for the tables of a lane. The
    tables in `again` are to be copied again."""
    destination_runs = [run for run in runs if run.truck.destination == destination]
    copied = {(run.name, table): BEFORE_COPY for run in destination_runs for table in again.get(run.name, ())}
    targets: tuple[Target, ...] = tuple(a.target for a in assignments if a.destination == destination)
    if lane and lane.tables:
        state = TableState(Phase.CATCHING_UP, end)
        tables = {(run.name, table): state for run in destination_runs for table in lane.tables}
        builds_on: dict[tuple[str, TableId | None], Lsn] = {**dict.fromkeys(tables, lane.position)}
        if copied:
            return Batch(start, end, tables=dict.fromkeys(tables, BEFORE_COPY), builds_on=builds_on)
        return Batch(
            start,
            end,
            tables=tables,
            targets=targets,
            builds_on=builds_on,
            dead_letters=letters_of(destination_runs),
            source=source,
        )
    behind = [run for run in destination_runs if run.position < end]
    arriving = {(run.name, table): lsn for run in behind for table, lsn in run.arriving.items()}
    believed: dict[tuple[str, TableId | None], Lsn] = {(run.name, None): run.stored for run in behind}
    believed |= {(truck, table): lsn for (truck, table), lsn in arriving.items()}
    return Batch(
        start,
        end,
        {run.name: end for run in behind},
        {truck_table: TableState(Phase.STREAMING, lsn) for truck_table, lsn in arriving.items()} | copied,
        targets,
        builds_on=believed,
        dead_letters=letters_of(destination_runs),
        source=source,
    )
