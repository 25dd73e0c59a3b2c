"""Carries out the refreshes of a source's trucks, one after the other, while the stream goes on.

A thread of the source's run; with `--once` it is done before the run ends. Of what it does, the record knows how far it
has got: a refresh that was interrupted goes on from there. What may fail: a truck that is paused, retried or has failed
is waited for; a condition that fails on a row ends its refresh, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from trucker.control.answers import Refresh, RefreshState
from trucker.engine.destination.destination import Destination
from trucker.engine.refresh.refresh_record import RefreshRecord
from trucker.engine.refresh.refresh_request import key_names, selected_at
from trucker.engine.refresh.refresher import SLICE_KEYS, Refresher
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.lane import Lane
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.failpoint import reach
from trucker.table import Key, TableId

log = logging.getLogger("trucker.refresh")

T = TypeVar("T")

LOOK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 2.0


class RefreshedSource(Protocol):
    """What the queue needs of the run of a source."""

    resolved: ResolvedSource
    runs: dict[str, TruckRun]
    destinations: Mapping[str, Destination]

    def at_snapshot(self, kind: type[Refresher], lane: Lane, **more: Any) -> Refresher:
        """What refreshes rows of the table of a lane."""

    def run_at_snapshot(self, worker: Refresher) -> bool:
        """Have it done, in this thread; whether the lane goes on."""


class RefreshQueue:
    """See the module."""

    def __init__(self, record: RefreshRecord, source: RefreshedSource, stream: SourceStream) -> None:
        self._record = record
        self._source = source
        self._stream = stream

    def run(self, stop: threading.Event) -> None:
        """Carry out refreshes until it is to stop."""
        while not stop.wait(LOOK_SECONDS):
            self.drain(stop)

    def drain(self, stop: threading.Event) -> None:
        """Carry out those that are queued."""
        while not stop.is_set() and (refresh := self._next()) is not None:
            try:
                self._carry_out(refresh, stop)
            except TruckerError as error:
                if not error.transient:
                    self._end(refresh, RefreshState.FAILED, reason=str(error))
                    continue
                self._record.change(refresh.id, reason=str(error))
                stop.wait(RETRY_SECONDS)

    def _next(self) -> Refresh | None:
        try:
            return self._record.next(self._source.runs.keys())
        except TruckerError as error:
            log.warning("refreshes cannot be read", extra=error.facts())
            return None

    def _carry_out(self, refresh: Refresh, stop: threading.Event) -> None:
        run = self._source.runs[refresh.truck]
        table = next((each for each in run.truck.tables if str(each) == refresh.table), None)
        if table is None:
            reason = f"truck {run.name} does not read table {refresh.table} any more"
            self._end(refresh, RefreshState.FAILED, reason=reason)
        elif refresh.whole:
            self._copy(refresh, table, stop)
        else:
            self._read(refresh, table, stop)

    def _note(self, refresh: Refresh, **fields: Any) -> Refresh:
        """Record how far it has got."""
        reach("refresh.record.before")
        refresh = self._record.change(refresh.id, **fields)
        reach("refresh.record.after")
        return refresh

    def _end(self, refresh: Refresh, state: RefreshState, **fields: Any) -> None:
        ended = self._record.change(refresh.id, state=state, ended=time.time(), **fields)
        facts = {"truck": ended.truck, "table": ended.table, "refresh": ended.id}
        if ended.state is RefreshState.DONE:
            log.info("rows refreshed", extra={**facts, "rows": ended.done, "deleted": ended.deleted})
        elif ended.state is RefreshState.FAILED:
            log.warning("refresh failed", extra={**facts, "reason": ended.reason.splitlines()[0]})

    # -- a whole table ------------------------------------------------------------------------------------------------

    def _copy(self, refresh: Refresh, table: TableId, stop: threading.Event) -> None:
        """Have the table copied again; the refresh is done when it follows its truck."""
        if refresh.state is RefreshState.QUEUED:
            if self._when_ready(refresh, table, stop, self._begin_copy) is None:
                return
            self._note(refresh, state=RefreshState.RUNNING, reason="")
        while not stop.wait(LOOK_SECONDS):
            if self._record.get(refresh.id).is_over:
                return
            if table in self._source.runs[refresh.truck].floors:
                self._end(refresh, RefreshState.DONE)
                return

    def _begin_copy(self, run: TruckRun, table: TableId) -> bool | None:
        return self._stream.copy_incomplete(run, {table: "it is refreshed"}) or None

    # -- rows by their keys -------------------------------------------------------------------------------------------

    def _read(self, refresh: Refresh, table: TableId, stop: threading.Event) -> None:
        if refresh.total is None:
            self._select(refresh, table)
        if self._keys(refresh, refresh.done) is None:
            return
        reach("refresh.leave.before")
        lane = self._when_ready(refresh, table, stop, self._stream.detach)
        if lane is None:
            return
        reach("refresh.leave.after")
        refresh = self._note(refresh, state=RefreshState.RUNNING, reason="")
        deleted = refresh.deleted

        def keys(first: int) -> list[Key]:
            return [] if refresh.is_over else self._keys(refresh, first) or []

        def advanced(done: int, absent: int) -> bool:
            nonlocal deleted
            deleted += absent
            return not self._note(refresh, done=done, deleted=deleted).is_over

        worker = self._source.at_snapshot(Refresher, lane, keys=keys, done=refresh.done, advanced=advanced)
        goes_on = self._source.run_at_snapshot(worker)
        if goes_on or worker.copied_again:
            self._end(refresh, RefreshState.DONE)

    def _keys(self, refresh: Refresh, first: int) -> list[Key] | None:
        """The keys of a slice; None, and the refresh has failed, where their file cannot be read."""
        try:
            return self._record.keys(refresh.id, first, SLICE_KEYS)
        except (OSError, ValueError) as error:
            reason = f"the file of its keys cannot be read: {type(error).__name__}"
            self._end(refresh, RefreshState.FAILED, reason=reason)
            return None

    def _select(self, refresh: Refresh, table: TableId) -> None:
        """Store the keys of the rows that meet the condition, at the source or at the destination: a row that the
        source no longer has, or that no longer meets the condition there, is at the destination alone."""
        assert refresh.where is not None
        run = self._source.runs[refresh.truck]
        with self._source.resolved.source.copy_session() as session:
            described = session.load_table(table)
            names = key_names(run.truck, table, session)
            selected = dict.fromkeys(session.selected_keys(described, names, refresh.where))
            with self._source.destinations[run.truck.destination].using() as sink:
                stored = selected_at(run.truck, table, described, sink, refresh.where)
            selected |= dict.fromkeys(session.canonical_keys(described.schema, names, stored))
        total = self._record.select(refresh.id, selected)
        self._record.change(refresh.id, total=total)

    def _when_ready(
        self, refresh: Refresh, table: TableId, stop: threading.Event, begin: Callable[[TruckRun, TableId], T | None]
    ) -> T | None:
        """What `begin` gives, once the table follows its truck; None where the refresh is cancelled meanwhile."""
        waits = ""
        while True:
            begun = begin(self._source.runs[refresh.truck], table)
            if begun is not None:
                return begun
            if stop.wait(LOOK_SECONDS) or self._record.get(refresh.id).is_over:
                return None
            reason = f"it waits until table {table} follows truck {refresh.truck}"
            if reason != waits:
                waits = reason
                self._record.change(refresh.id, reason=waits)
