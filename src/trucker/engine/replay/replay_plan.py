"""What a replay is of: from where to where, into what. Finds what is wrong with it, and writes nothing (I11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from trucker import private
from trucker.changelog.reader import LogReader
from trucker.config.adapter import Connection
from trucker.config.models import TruckConfig
from trucker.config.registry import adapter_of
from trucker.config.sql.sql_files import OUTPUT
from trucker.engine.destination.destination import Destination
from trucker.engine.replay.log_moment import NOT_IN_LOG, LoggedCommit, LoggedMoments, Moment
from trucker.engine.replay.logged_tables import logged_truck
from trucker.engine.schema.written_schema import WrittenSchema
from trucker.engine.truck.truck import Truck
from trucker.errors import ChangeLogError, ControlError
from trucker.lsn import Lsn
from trucker.sinks.base import Examinable
from trucker.sinks.batch import Phase, TruckState
from trucker.table import TableId

IMPOSSIBLE: Final = "TRK650"
UNFIT: Final = "TRK652"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What is to be replayed: the changes of a truck that were committed after `start`, up to `end`. Without `start`
    from the position that the destination has, without `end` up to the end of the log."""

    truck: TruckConfig
    into: Connection
    start: Moment | None = None
    end: Moment | None = None


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The changes after `begin` up to `goal`. `config` and `truck` write to the destination of the replay, under the
    name of the series where that keeps every change. `stored` is what the destination has of the truck's tables; None
    where nothing is stored."""

    config: TruckConfig
    truck: Truck
    begin: Lsn
    goal: LoggedCommit
    stored: TruckState | None = None

    @property
    def is_empty(self) -> bool:
        return self.begin >= self.goal.end


def plan_replay(
    request: ReplayRequest, reader: LogReader, destination: Destination, written: Mapping[TableId, WrittenSchema]
) -> ReplayPlan:
    """The plan for a request; `written` has the truck's tables. Raises for a request that cannot be carried out."""
    _check_store(request)
    moments = LoggedMoments(reader)
    start = moments.start(request.start) if request.start is not None else None
    config = _into(request)
    states = _states(destination)
    stored = None
    if destination.keeps_changes:
        begin = _begin_of_series(request, moments, start)
        config = config.model_copy(update={"name": _series(config.name, states)})
    else:
        stored = _copy(request, states.get(config.name), start)
        begin = _begin_of_tables(request, stored, start)
    if begin < moments.oldest:
        raise ChangeLogError(
            f"{request.into.name} has truck {config.name} at {begin}, and the change log begins at {moments.oldest}",
            remedy="use a younger copy; log.keep in trucker.yml has more kept from now on",
            code=NOT_IN_LOG,
        )
    goal = moments.end(request.end, begin)
    _check_order(request, moments, stored, begin, goal)
    truck = logged_truck(config, written)
    abilities = adapter_of(request.into).abilities
    # The letters of a series of events would be of a truck that nobody can name.
    if not abilities.dead_letters or abilities.every_change:
        truck = replace(truck, dead_letters=None)
    return ReplayPlan(config, truck, begin, goal, stored)


def newest(state: TruckState) -> Lsn:
    """The latest position of a truck and its tables."""
    return max([state.lsn, *apart(state).values()])


def apart(state: TruckState) -> dict[TableId, Lsn]:
    """The tables that have a position of their own."""
    return {table: each.lsn for table, each in state.tables.items() if each.phase is Phase.CATCHING_UP}


def _check_store(request: ReplayRequest) -> None:
    truck, into, adapter = request.truck, request.into, adapter_of(request.into)
    if not adapter.sink or into.name == truck.input.connection:
        what = "which cannot be an output" if not adapter.sink else "which the truck reads from"
        raise ControlError(
            f"{into.name} is a {adapter.name} connection, {what}",
            remedy="name another connection of trucker.yml in --into",
            code=IMPOSSIBLE,
        )
    if truck.file(OUTPUT) and not adapter.abilities.output_sql:
        raise ControlError(
            f"truck {truck.name} has an {OUTPUT}, and {into.name} is a {adapter.name} connection, which runs no SQL",
            remedy="name a connection that does in --into",
            code=IMPOSSIBLE,
        )
    if into.name == truck.output.connection and not adapter.abilities.every_change:
        raise ControlError(
            f"{into.name} is the destination of truck {truck.name}: older changes would overwrite what is there",
            remedy=f"name a connection with a copy of it: --into CONNECTION; to set rows right: trucker refresh "
            f"{truck.name}",
            code=IMPOSSIBLE,
        )


def _into(request: ReplayRequest) -> TruckConfig:
    output = request.truck.output.model_copy(update={"connection": request.into.name})
    return request.truck.model_copy(update={"output": output})


def _states(destination: Destination) -> Mapping[str, TruckState]:
    """What the destination stores, if that can be seen without writing; a store of another kind is opened."""
    if isinstance(destination.sink, Examinable):
        return destination.sink.stored()
    private.make_folder(destination.spec.workspace.folder)
    return destination.open()


def _begin_of_series(request: ReplayRequest, moments: LoggedMoments, start: Lsn | None) -> Lsn:
    if start is None:
        raise ControlError(
            f"{request.into.name} keeps every change, so that it does not tell where the replay begins",
            remedy=f"name it: --from {moments.oldest}, which is where the change log begins, or later",
            code=IMPOSSIBLE,
        )
    return start


def _series(truck: str, states: Mapping[str, TruckState]) -> str:
    """A name under which the destination has nothing yet."""
    first = f"{truck}.replay-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    name, number = first, 1
    while name in states:
        number += 1
        name = f"{first}-{number}"
    return name


def _copy(request: ReplayRequest, state: TruckState | None, start: Lsn | None) -> TruckState | None:
    """The copy that the destination has of the truck's tables; None where it stores nothing of them."""
    truck, into = request.truck.name, request.into.name
    if state is None or not state.tables or not state.lsn:
        return None
    unfinished = [table for table, each in state.tables.items() if each.phase is Phase.COPYING or each.cursor]
    if unfinished:
        raise ControlError(
            f"the copy of truck {truck} in {into} is not complete: {min(unfinished)} was being copied then",
            remedy="use another copy",
            code=UNFIT,
        )
    if start is not None and start > state.lsn:
        raise ControlError(
            f"{into} has truck {truck} at {state.lsn}: the changes from there to --from would be missing",
            remedy="leave --from out: the replay begins where the copy ends",
            code=UNFIT,
        )
    return state


def _begin_of_tables(request: ReplayRequest, stored: TruckState | None, start: Lsn | None) -> Lsn:
    """From where the tables at the destination are brought forward."""
    if stored is not None:
        return min([stored.lsn, *apart(stored).values()])
    if start is None:
        output = request.truck.output.connection
        raise ControlError(
            f"{request.into.name} has no copy of truck {request.truck.name}, and the change log has only what changed",
            remedy=f"restore a backup of {output} there, with trucker's own tables; or, if its rows are those of the "
            "source at some moment, name that moment: --from",
            code=UNFIT,
        )
    return start


def _check_order(
    request: ReplayRequest, moments: LoggedMoments, stored: TruckState | None, begin: Lsn, goal: LoggedCommit
) -> None:
    """Raise where the replay would begin after `--to`."""
    position = newest(stored) if stored is not None else begin
    after = position > goal.end or (isinstance(request.end, Lsn) and position > request.end)
    if isinstance(request.end, datetime) and goal.end == begin:
        time = moments.last_commit(begin).time
        after = after or time is None or time > request.end
    if not after:
        return
    if stored is not None:
        raise ControlError(
            f"{request.into.name} has truck {request.truck.name} at {position}, which is after --to",
            remedy="use an older copy, or name a later moment",
            code=UNFIT,
        )
    raise ControlError(f"--to is before --from, which is at {begin}", remedy="name a later moment", code=UNFIT)
