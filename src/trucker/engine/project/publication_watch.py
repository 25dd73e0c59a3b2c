"""Notices a publication that is altered while the project runs, corrects it, and has the tables copied again.

The catalogue is looked at every few seconds and compared with the record (`engine.publication_record`). A table whose
changes may be missing from the stream is copied again, from a snapshot that is taken after the publication is right
(I6). The record follows once the destination has recorded the copy. Where it cannot now, because it is away or the
table is still being copied, a later look, or the next start, does it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import replace

from trucker.engine.project.publication_record import PublicationRecord
from trucker.engine.project.publication_start import missed
from trucker.engine.schema.refusals import stale
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.sinks.target import TruckTable
from trucker.source.base import SourcePublication
from trucker.source.publication import UNFIT, Membership
from trucker.table import TableId

log = logging.getLogger("trucker.publication")

LOOK_SECONDS = 5.0

Memberships = Mapping[TableId, Membership]


class PublicationWatch:
    """Watches the publication of one source."""

    def __init__(
        self,
        resolved: ResolvedSource,
        runs: Collection[TruckRun],
        stream: SourceStream,
        record: PublicationRecord,
    ) -> None:
        self._resolved = resolved
        self._runs = runs
        self._stream = stream
        self._record = record
        self._right: Memberships = {}
        self._refused: dict[TableId, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set. While the source cannot be reached, capture reports it."""
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except TruckerError as error:
                log.debug("reading the publication failed", extra=error.facts())

    def look(self) -> None:
        """Compare the publication with the record; correct it, and have copied again what may be incomplete."""
        with self._resolved.source.session("catalog") as session:
            memberships: Memberships = session.memberships(self._resolved.tables)
            self._judge_identities(session, memberships)
            altered = self._altered(memberships)
            if not altered:
                return
            failures: Mapping[TableId, TruckerError] = {}
            if memberships != self._right:
                memberships, failures = self._set_right(session, memberships, altered)
        for run in self._runs:
            reasons = {t: why for (name, t), why in altered.items() if name == run.name and t not in run.failed}
            stopped = {table for table in reasons if self._stops(run, table, reasons[table], failures)}
            reasons = {table: why for table, why in reasons.items() if table not in stopped}
            if reasons and self._stream.copy_incomplete(run, reasons):
                self._record.put({(run.name, table): memberships[table] for table in reasons})

    def _stops(self, run: TruckRun, table: TableId, why: str, failures: Mapping[TableId, TruckerError]) -> bool:
        """Stop a truck, or set the table aside, where the table cannot go on though it could be copied again."""
        trouble = failures.get(table)
        if trouble is None and not run.truck.may_copy_again(table):
            trouble = stale(run.truck, table, why)
        if trouble is not None and not run.has_ended:
            self._stream.fail(run, trouble.of_table(table))
        return trouble is not None

    def _judge_identities(self, session: SourcePublication, memberships: Memberships) -> None:
        """Look at partitioned tables whose partitions, or the replica identities of them, are other ones than before.

        Where PostgreSQL refuses what could not be followed nothing is lost, and the log has the statement. Other
        changes of the table come by an identity that does not fit: its trucks fail.
        """
        for table, now in memberships.items():
            before = {
                run.name: (run, entry)
                for run in self._runs
                if (entry := self._record.get(run.name, table)) and entry.relation == now.relation
                if entry.identities != now.identities and not run.has_ended and table not in run.failed
            }
            if not before or self._refused.get(table) == now.identities:
                continue
            problem, refused = session.identity_problem(table)
            if problem is not None and refused:
                self._refused[table] = now.identities
                log.warning("rows of a partition cannot be updated", extra={"table": str(table), **problem.facts()})
                continue
            # The record first: once the identity is right again, nothing else tells that the table is incomplete.
            identities = UNFIT if problem is not None else now.identities
            entries = {(name, table): entry for name, (_, entry) in before.items() if entry.identities != UNFIT}
            self._record.put(
                {truck_table: replace(entry, identities=identities) for truck_table, entry in entries.items()}
            )
            for run, _ in before.values():
                if problem is not None:
                    self._stream.fail(run, problem.of_table(table))

    def _altered(self, memberships: Memberships) -> dict[TruckTable, str]:
        """The tables whose changes may be missing."""
        truck_tables = [(run.name, t) for run in self._runs if not run.has_ended for t in run.truck.tables]
        return {
            truck_table: why
            for truck_table in truck_tables
            if self._is_ours(truck_table, memberships) and (why := missed(self._record, truck_table, memberships))
        }

    def _is_ours(self, truck_table: TruckTable, memberships: Memberships) -> bool:
        """Whether table and publication are those that they were: capture reports a publication that is gone, the watch
        of shapes a table that is gone or was made again."""
        before, now = self._record.get(*truck_table), memberships.get(truck_table[1])
        return (
            before is not None and now is not None and now.publication is not None and before.relation == now.relation
        )

    def _set_right(
        self, session: SourcePublication, memberships: Memberships, altered: Mapping[TruckTable, str]
    ) -> tuple[Memberships, Mapping[TableId, TruckerError]]:
        """The publication as it is when it has been corrected; or what is wrong with it, by table."""
        tables = sorted({table for _, table in altered})
        extra = {"publication": self._resolved.publication, "tables": [str(table) for table in tables]}
        log.warning("publication was altered, and changes may be missing", extra=extra)
        if not self._resolved.source.manages_publication:
            failures = session.shortfalls(each for each in self._resolved.published if each.table in tables)
            self._right = memberships if not failures else {}
            return memberships, failures
        wanted = [each for each in self._resolved.published if each.table in memberships]
        try:
            session.ensure_publication(wanted)
        except TruckerError as error:
            if error.transient:
                raise
            return memberships, {table: copy(error) for table in tables}
        now: Memberships = session.memberships(self._resolved.tables)
        if now != memberships:
            log.warning("publication was corrected", extra=extra)
        self._right = now
        return now, {}
