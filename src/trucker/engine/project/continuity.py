"""Checks that slot, change log and stored positions leave no gap: changes in a gap would be skipped.

Everything here reads and raises, and changes nothing. `conditions` asks beforehand, for `check` and `run` alike; a run
asks again at the moment it acts, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trucker.changelog.identity import (
    SourceIdentity,
    check_against_server,
    check_against_slot,
    check_source,
    log_exists,
)
from trucker.changelog.location import LogLocation, truth_of
from trucker.changelog.reader import LogReader
from trucker.engine.truck.truck import Truck
from trucker.errors import ChangeLogError, SourceError
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase, TableState, TruckState
from trucker.source.slot import SlotInfo
from trucker.table import TableId


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """Where the changes of a source are: in its log, and behind its slot. `flushed` asks where the server's WAL ends.

    They move while an instance runs: the slot is read first, then the log, then the server, each ahead of the one
    before it.
    """

    source: str
    log: LogLocation
    identity: SourceIdentity
    slot: SlotInfo | None
    flushed: Callable[[], Lsn]


def copied_tables(
    truck: Truck, state: TruckState | None, again: AbstractSet[tuple[str, TableId]]
) -> dict[TableId, TableState]:
    """The truck's tables that need not be copied; those in `again`, trucks with tables, must be, whatever their
    destination says."""
    return {
        name: table
        for name, table in (state.tables.items() if state else ())
        if name in truck.tables and table.phase is not Phase.COPYING and (truck.name, name) not in again
    }


def needed_from(
    trucks: Iterable[Truck], states: Mapping[str, TruckState], again: AbstractSet[tuple[str, TableId]] = frozenset()
) -> dict[str, Lsn]:
    """From where on each truck needs the log; one of which nothing has been copied yet needs none of it."""
    needed = {}
    for truck in trucks:
        copied = copied_tables(truck, states.get(truck.name), again)
        behind = [table.lsn for table in copied.values() if table.phase is Phase.CATCHING_UP]
        if copied:
            needed[truck.name] = min([states[truck.name].lsn, *behind])
    return needed


def refuse_gap(history: StreamHistory, needed: Mapping[str, Lsn]) -> Lsn:
    """Raise where changes between slot, log and trucks are lost; where a new log would begin."""
    has_log, slot, positions = log_exists(history.log), history.slot, list(needed.values())
    if has_log:
        check_source(history.log, history.identity)
    if slot is None:
        if has_log or positions:
            raise SourceError(
                f"slot {history.identity.slot} of {history.source} does not exist any more: changes since then "
                "are lost",
                remedy="run `trucker reset`, then `trucker run`, which copies the tables again",
                code="TRK230",
            )
        return Lsn(0)
    confirmed = slot.confirmed_flush_lsn or Lsn(0)
    if has_log:
        durable = LogReader(truth_of(history.log)).durable()
        check_against_slot(durable, confirmed)
        check_against_server(durable, history.flushed())
    behind = [lsn for lsn in positions if lsn < confirmed]
    if behind and not has_log:
        raise ChangeLogError(
            f"the change log {history.log} is missing, and slot {slot.name} is at {confirmed}, after the "
            f"position {min(behind)} of a truck",
            remedy="restore it; or run `trucker reset`, then `trucker run`, which copies the tables again",
            code="TRK301",
        )
    return confirmed


def refuse_pruned(reader: LogReader, needed: Mapping[str, Lsn]) -> None:
    """Raise for a position that the log has no changes of any more."""
    oldest = reader.oldest()
    for name, lsn in needed.items():
        if lsn < oldest:
            raise ChangeLogError(
                f"truck {name} is at {lsn}, but the change log {reader.location} begins at {oldest}",
                remedy=f"run `trucker reset --truck {name}`, then `trucker run`, which copies its tables again",
                code="TRK302",
            )
