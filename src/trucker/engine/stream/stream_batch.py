"""Builds the batch that one destination commits for a range of the change log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trucker.engine.transform.assignment import Assignment
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import TruckRun, letters_of
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.sinks.target import TruckTable
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
    targets = tuple([each.target for each in assignments if each.destination == destination])
    if lane and lane.tables:
        staged = lane.staged
        state = TableState(Phase.CATCHING_UP, end, staged.cursor if staged else lane.cursor)
        if staged and staged.target.truck_table not in {target.truck_table for target in targets}:
            targets = (*targets, staged.target)
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
            staged_as=staged.name if staged else "",
        )
    positions: dict[str, Lsn] = {}
    states: dict[TruckTable, TableState] = {}
    believed: dict[tuple[str, TableId | None], Lsn] = {}
    for run in destination_runs:
        life = run.life
        if life.position < end:
            positions[run.name] = end
            believed[run.name, None] = life.stored
            for table, lsn in life.arriving.items():
                states[run.name, table] = TableState(Phase.STREAMING, lsn)
                believed[run.name, table] = lsn
    return Batch(
        start,
        end,
        positions,
        states | copied,
        targets,
        builds_on=believed,
        dead_letters=letters_of(destination_runs),
        source=source,
    )
