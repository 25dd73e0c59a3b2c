"""Creates or alters the publication when a source starts, and compares it with the recorded one.

The order makes it safe to be killed anywhere. First the destinations store which tables must be copied again; then
the publication is altered; then the record says how it is now; copies are taken after that (I6). A start that was cut
short finds the same differences again, and among them only tables that have not been copied yet.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from trucker.engine.destination.destination import Destination
from trucker.engine.project.publication_record import PublicationRecord
from trucker.engine.schema.refusals import stale
from trucker.engine.schema.written_schema import SchemaStore
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck_run import TruckRun
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.sinks.batch import Phase, TableState, TruckState
from trucker.sinks.target import TruckTable
from trucker.source.base import SourcePublication
from trucker.source.publication import Membership
from trucker.table import TableId

log = logging.getLogger("trucker.publication")

CODE = "TRK241"
REKEYED = "the table's key changed since it was copied"
CONFIGURED = "the truck's columns or condition changed, or the table was not published"
RETURNED = "the truck did not read it for a time"


class PublicationStart:
    """Makes the publication of one source and finds the tables whose changes may be missing from the stream."""

    def __init__(
        self,
        resolved: ResolvedSource,
        runs: Collection[TruckRun],
        tell: Callable[[str, Mapping[TruckTable, TableState]], None],
        record: PublicationRecord,
    ) -> None:
        """`tell` has a destination store the states of tables that must be copied again; durable when it returns."""
        self._resolved = resolved
        self._runs = runs
        self._tell = tell
        self._record = record

    def publish(
        self, session: SourcePublication, states: Mapping[str, TruckState], rekeyed: Collection[TruckTable] = ()
    ) -> frozenset[TruckTable]:
        """Make the publication, or check the one that was made beforehand; the tables that must be copied again, those
        that have got another key (`rekeyed`) among them.

        A truck that may not copy a table again fails. Raises where the publication cannot be used, before anything is
        changed.
        """
        memberships = session.memberships(self._resolved.tables)
        changed = session.ensure_publication(self._resolved.published, dry=True)
        copied = set(_copied(self._runs, states))
        first = {
            truck_table: memberships[truck_table[1]] for truck_table in copied if self._record.get(*truck_table) is None
        }
        returned = frozenset[TruckTable]() if self._record.is_empty else first.keys()
        self._record.put({each: now for each, now in first.items() if each not in returned})
        doubtful = self._missed(copied, memberships) | dict.fromkeys(copied & set(rekeyed) - returned, REKEYED)
        configured = {each for each in copied - doubtful.keys() - returned if each[1] in changed}
        followed = {(name, table) for name, table in configured if not self._is_copied(name, table)}
        again = doubtful | dict.fromkeys(configured - followed, CONFIGURED) | dict.fromkeys(returned, RETURNED)
        remade = {truck_table for truck_table in doubtful if self._begins_anew(truck_table, memberships)}
        self._fail_those_that_stop({each: why for each, why in doubtful.items() if each not in remade})
        failed = {run.name for run in self._runs if run.phase is TruckPhase.FAILED}
        again = {truck_table: why for truck_table, why in again.items() if truck_table[0] not in failed}
        self._tell_destinations(again)
        reach("setup.publication.before")
        session.ensure_publication(self._resolved.published)
        reach("setup.publication.after")
        now = session.memberships(self._resolved.tables)
        self._record.keep((run.name, table) for run in self._runs for table in run.truck.tables)
        self._record.put(
            {
                (run.name, table): now[table]
                for run in self._runs
                for table in run.truck.tables
                if self._is_whole((run.name, table), now[table], copied, again.keys() | followed)
            }
        )
        return frozenset(again)

    def _missed(self, copied: Iterable[TruckTable], memberships: Mapping[TableId, Membership]) -> dict[TruckTable, str]:
        return {truck_table: why for truck_table in copied if (why := missed(self._record, truck_table, memberships))}

    def _is_copied(self, truck: str, table: TableId) -> bool:
        return next(run for run in self._runs if run.name == truck).truck.tables[table].is_copied

    def _begins_anew(self, truck_table: TruckTable, memberships: Mapping[TableId, Membership]) -> bool:
        """Whether it is another table by now, of which changes alone are applied: nothing of it is missing."""
        truck, table = truck_table
        before, now = self._record.get(truck, table), memberships[table]
        return before is not None and before.relation != now.relation and not self._is_copied(truck, table)

    def _is_whole(
        self, truck_table: TruckTable, now: Membership, copied: Collection[TruckTable], settled: Collection[TruckTable]
    ) -> bool:
        """Whether the record may say `now`: nothing is missing, or the table is among the `settled`, which are going to
        be copied, or have their rows from the stream alone."""
        before = self._record.get(*truck_table)
        return truck_table not in copied or truck_table in settled or (before is not None and not before.missed(now))

    def _fail_those_that_stop(self, why: Mapping[TruckTable, str]) -> None:
        for run in self._runs:
            for table in sorted(table for truck, table in why if truck == run.name):
                if not run.truck.may_copy_again(table):
                    run.give_up(stale(run.truck, table, why[run.name, table]))

    def _tell_destinations(self, again: Mapping[TruckTable, str]) -> None:
        """Before the publication changes: a crash in between must not hide what is missing."""
        by_name = {run.name: run for run in self._runs}
        tables: dict[str, dict[TruckTable, TableState]] = defaultdict(dict)
        for truck_table, why in sorted(again.items()):
            tables[by_name[truck_table[0]].truck.destination][truck_table] = TableState(Phase.COPYING, Lsn(0))
            log.warning(
                "table is copied again", extra={"truck": truck_table[0], "table": str(truck_table[1]), "reason": why}
            )
        for destination, states in tables.items():
            self._tell(destination, states)


def rekeyed_tables(
    resolved: ResolvedSource,
    runs: Iterable[TruckRun],
    schema_store: SchemaStore,
    destinations: Mapping[str, Destination],
) -> frozenset[TruckTable]:
    """Tables that have another key than when they were copied: changes that are in the log do not identify their rows
    by the new key."""
    return frozenset(
        (run.name, name)
        for run in runs
        if not destinations[run.truck.destination].keeps_changes
        for name, table in run.truck.tables.items()
        if (before := schema_store.get(run.name, name)) is not None
        and before.look.oid == resolved.tables[name].oid
        and before.key is not None
        and frozenset(before.key) != frozenset(table.key_numbers)
    )


def missed(record: PublicationRecord, truck_table: TruckTable, memberships: Mapping[TableId, Membership]) -> str:
    """Why changes of a truck's table may be missing from the stream, by the record; "" where none are."""
    before, now = record.get(*truck_table), memberships.get(truck_table[1])
    return before.missed(now) if before is not None and now is not None else ""


def _copied(runs: Iterable[TruckRun], states: Mapping[str, TruckState]) -> Iterator[TruckTable]:
    """The tables that destinations have rows of, as far as they are complete."""
    for run in runs:
        state = states.get(run.name)
        for table, table_state in state.tables.items() if state else ():
            if table in run.truck.tables and table_state.phase is not Phase.COPYING:
                yield run.name, table


def altered_findings(resolved: ResolvedSource, record: PublicationRecord, session: SourcePublication) -> list[Finding]:
    """What `check` says of a publication that was altered since the project last ran."""
    memberships = session.memberships(resolved.tables)
    truck_tables = [(truck, table) for truck in resolved.trucks for table in sorted(truck.tables)]
    altered = [(truck, table) for truck, table in truck_tables if missed(record, (truck.name, table), memberships)]
    again = sorted({str(table) for truck, table in altered if truck.may_copy_again(table)})
    stopped = sorted({truck.name for truck, table in altered if not truck.may_copy_again(table)})
    findings = []
    if again:
        findings.append(
            Finding(
                Level.WARNING,
                resolved.name,
                f"publication {resolved.publication} was altered since the project last ran, and changes may be missing"
                f" from the stream: the next start copies {', '.join(again)} again",
                "none needed; to prevent this, make a separate role the owner of the publication",
                CODE,
            )
        )
    findings += [
        Finding(
            Level.WARNING,
            resolved.name,
            f"publication {resolved.publication} was altered since the project last ran, and changes may be "
            f"missing from the stream: truck {name} cannot copy its tables again by itself and will stop",
            f"run `trucker reset --truck {name}`, then `trucker run`, which copies its tables again",
            CODE,
        )
        for name in stopped
    ]
    return findings
