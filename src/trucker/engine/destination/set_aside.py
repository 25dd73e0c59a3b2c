"""Sets a table aside at its destination, so that the other tables of its truck go on.

What is repeated after a crash: nothing. The destination either has the table's new state, and the next start copies the
table or takes it up at its own position; or it has not, and the table fails once more.
"""

from __future__ import annotations

from trucker.engine.destination.destination import Destination
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.table_failure import BEFORE_COPY
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState
from trucker.table import TableId


def table_at_fault(run: TruckRun, error: TruckerError, lane: Lane | None, destination: Destination) -> TableId | None:
    """The table that can be set aside for a failure; None where it is not one table's, where the truck does not do
    that, or where no other table would be left."""
    tables = lane.tables if lane is not None else None
    following = tables or frozenset(run.floors)
    if error.transient or error.table not in following or not destination.fails_by_table(run.truck):
        return None
    return error.table if tables or len(following) > 1 else None


def set_aside(
    run: TruckRun, table: TableId, error: TruckerError, lane: Lane | None, destination: Destination, *, in_stream: bool
) -> TruckerError | None:
    """Set a table aside, at its destination first; why the destination does not take that.

    `in_stream` says that the cause is in the stream: applying it once more shows whether the cause is gone.
    Otherwise a table that keeps its position is not tried again before the next start; a copy shows it in any case.
    """
    apart = lane is not None and bool(lane.tables)
    # Of a copy that is not complete the position says nothing without its cursor: it begins anew.
    cursor = lane is not None and bool(lane.cursor)
    held = (error.needs_decision and not cursor) or not run.truck.tables[table].is_copied
    position = lane.position if lane is not None and apart else max(run.stored, run.floors[table])
    if not (held and apart):  # a table of a lane has a position of its own already
        trouble = _store(run, table, position, destination, held=held)
        if trouble is not None:
            return trouble
    run.set_aside(table, error, position, held=held, again=in_stream or not held)
    destination.forget_tables(run.name, table)
    if lane is not None and lane.tables:
        lane.tables -= {table}
        if not lane.tables:
            lane.runs, lane.over = [], True
    return None


def leave(run: TruckRun, table: TableId, destination: Destination) -> tuple[Lsn, TruckerError | None]:
    """Give a table that follows its truck a position of its own, at its destination first; the position, and why the
    destination does not take that."""
    position = run.arriving.get(table)
    trouble = None
    if position is None:
        position = max(run.stored, run.floors[table])
        trouble = _store(run, table, position, destination, held=True)
    if trouble is None:
        run.leave(table)
    return position, trouble


def _store(
    run: TruckRun, table: TableId, position: Lsn, destination: Destination, *, held: bool
) -> TruckerError | None:
    truck_table = (run.name, table)
    state = TableState(Phase.CATCHING_UP, position) if held else BEFORE_COPY
    leaving = frozenset({truck_table} if held else ())
    batch = Batch(run.position, run.position, tables={truck_table: state}, leaving=leaving)
    return destination.commit(batch, ()).get(run.name)
