"""A truck while it runs: its position, phase and errors. Nothing else writes phase and position."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from trucker.engine.truck.life import (
    LifeEvent,
    TableChanged,
    TablePhase,
    TableStep,
    TruckAdvanced,
    TruckChanged,
    TruckLife,
    TruckStep,
)
from trucker.engine.truck.table_failure import Retry, RetryWaits, TableFailure
from trucker.engine.truck.truck import Truck
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import CopyProgress, TruckPhase
from trucker.sinks.batch import Phase, TruckState
from trucker.table import TableId

Listener = Callable[[LifeEvent], None]


class TruckRun:
    """Owns the state of one truck (`TruckLife`). Every method may be called from any thread.

    The state is replaced under a lock. Reading needs no lock, and two reads may see different states: code that decides
    by several facts reads `life` once, and does not read back what it has just written, as other threads write too.
    Listeners are called under the lock, in the order of the changes. They may read, and must not change, the truck.
    `retry` is set where a truck that fails is retried.
    """

    def __init__(
        self,
        truck: Truck,
        *,
        waits: RetryWaits | None = None,
        retry: Retry | None = None,
        listeners: Sequence[Listener] = (),
        life: TruckLife | None = None,
    ) -> None:
        self.truck = truck
        self.name = truck.name
        self.retry = retry
        self._waits = waits or RetryWaits()
        self._listeners = tuple(listeners)
        self._life = life or TruckLife(tables=dict.fromkeys(truck.tables, TablePhase.WAITING))
        self._copying: dict[TableId, CopyProgress] = {}
        self._lock = threading.Lock()

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def life(self) -> TruckLife:
        """The state at one instant."""
        return self._life

    @property
    def phase(self) -> TruckPhase:
        return self._life.phase

    @property
    def error(self) -> TruckerError | None:
        return self._life.error

    @property
    def position(self) -> Lsn:
        return self._life.position

    @property
    def stored(self) -> Lsn:
        return self._life.stored

    @property
    def floors(self) -> Mapping[TableId, Lsn]:
        return self._life.floors

    @property
    def arriving(self) -> Mapping[TableId, Lsn]:
        return self._life.arriving

    @property
    def failed(self) -> Mapping[TableId, TableFailure]:
        return self._life.failed

    @property
    def copying(self) -> Mapping[TableId, CopyProgress]:
        """How far the copies in progress are."""
        with self._lock:
            return dict(self._copying)

    @property
    def has_ended(self) -> bool:
        """Whether this run applies nothing more: the truck has failed, is paused or was stopped."""
        return self._life.has_ended

    @property
    def is_over(self) -> bool:
        """Whether it has failed and is not tried again before the next start."""
        return self.phase is TruckPhase.FAILED and (self.retry is None or self.retry.ended)

    def after(self, table: TableId) -> Lsn:
        """The position below which the table's changes are at the destination already."""
        life = self._life
        return max(life.position, life.floors[table])

    # -- the truck as a whole -----------------------------------------------------------------------------------

    def keep_from(self, lsn: Lsn) -> None:
        """Set a position without applying changes from it: the change log is kept from there."""
        with self._lock:
            self._replace_life(replace(self._life, position=lsn, stored=lsn))

    def take_up(self, lsn: Lsn, following: Mapping[TableId, Lsn], behind: Collection[TableId]) -> None:
        """Begin at the position that the destination has: some tables follow the truck, others have their own."""
        with self._lock:
            life = replace(self._life, position=lsn, stored=lsn).tables_stepped(TableStep.FOLLOW, following)
            life = replace(life.tables_stepped(TableStep.CATCH_UP, behind), floors=dict(following))
            events = self._table_events(TableStep.FOLLOW, following, life)
            self._replace_life(life, events + self._table_events(TableStep.CATCH_UP, behind, life))

    def catch_up(self) -> bool:
        """Continue in a separate lane; False where the truck has ended."""
        return self._step(TruckStep.CATCH_UP)

    def stream(self) -> bool:
        """Continue in the main lane; False where the truck has ended."""
        streams = self._step(TruckStep.STREAM)
        if streams and self.retry is not None:
            self.retry.succeeded()
        return streams

    def retry_later(self, error: TruckerError) -> bool:
        """Its last step failed and is retried; False where the truck has ended."""
        return self._step(TruckStep.RETRY, error)

    def fail(self, error: TruckerError | None = None) -> bool:
        """Fail, by default with the error for which it was retried; False where the truck had ended before."""
        return self._step(TruckStep.FAIL, error)

    def give_up(self, error: TruckerError) -> None:
        """Fail until the next start, which checks the cause again: the stream does not show whether it is gone."""
        self.fail(error)
        if self.retry is not None:
            self.retry.ended = True

    def failed_again(self, error: TruckerError) -> None:
        """The truck had failed, and its restart failed with this error."""
        with self._lock:
            if self._life.own is TruckPhase.FAILED:
                self._replace_life(replace(self._life, own_error=error))

    def pause(self) -> bool:
        """Apply nothing more in this run; whether that is new. What failed until the next start stays failed: that
        start checks the cause again, which `started_again` does not."""
        if self.is_over:
            return False
        was_paused = self.phase is TruckPhase.PAUSED
        self._step(TruckStep.PAUSE)
        return not was_paused

    def stop(self) -> None:
        """The project ends. A truck that has failed, or is paused, stays so."""
        self._step(TruckStep.STOP)

    def started_again(self) -> TruckRun:
        """A new run of the truck. Until the destination's position is read, the change log is kept as for this run."""
        was = self._life
        life = TruckLife(
            TruckPhase.CATCHING_UP,
            position=was.position,
            stored=was.stored,
            tables=dict.fromkeys(self.truck.tables, TablePhase.WAITING),
            rows=was.rows,
            batches=was.batches,
            applied_time=was.applied_time,
        )
        listeners, self._listeners = self._listeners, ()
        return TruckRun(self.truck, waits=self._waits, retry=self.retry, listeners=listeners, life=life)

    def applied(self, end: Lsn | None, rows: int, *, persisted: bool = True, committed: int = 0) -> None:
        """Rows are at the destination, whose position is `end`; None for a lane of single tables, which has a separate
        position. Without `persisted`, the destination did not store the position. `committed` is the commit time."""
        with self._lock:
            was = self._life
            end = was.position if end is None else max(end, was.position)
            moved = persisted and end > was.position
            life = replace(
                was,
                position=end,
                stored=end if moved else was.stored,
                arriving={} if moved else was.arriving,
                rows=was.rows + rows,
                batches=was.batches + (1 if persisted else 0),
                applied_time=committed or was.applied_time,
            )
            self._replace_life(life)

    def reconcile(self, state: TruckState) -> None:
        """Take over the state that the destination has, after a commit whose outcome was unknown.

        That commit may have made tables follow the truck; even one before a crash, so that this run has them as
        catching up.
        """
        with self._lock:
            was = self._life
            floors, arriving = dict(was.floors), dict(was.arriving)
            for table, table_state in state.tables.items():
                # The commit was to give the table a separate position.
                went_apart = table in floors and table_state.phase is Phase.CATCHING_UP
                if table in arriving or went_apart:
                    floors[table] = arriving[table] = table_state.lsn
                if self._may_follow(table) and table_state.phase is Phase.STREAMING:
                    floors.setdefault(table, table_state.lsn)
                    arriving.pop(table, None)
            followed = sorted(floors.keys() - was.floors.keys())
            life = was.tables_stepped(TableStep.FOLLOW, followed)
            life = replace(life, position=state.lsn, stored=state.lsn, floors=floors, arriving=arriving)
            self._replace_life(life, self._table_events(TableStep.FOLLOW, followed, life))

    # -- single tables ------------------------------------------------------------------------------------------

    def begin_copy(self, tables: Collection[TableId], *, whole: bool) -> None:
        """Tables are being copied; `whole` where the truck has no position before."""
        with self._lock:
            life = self._life.stepped(TruckStep.COPY) if whole else self._life
            life = life.tables_stepped(TableStep.COPY, tables)
            self._replace_life(life, self._table_events(TableStep.COPY, tables, life))

    def end_copy(self, tables: Collection[TableId], lsn: Lsn, rows: int, *, whole: bool) -> None:
        """Tables have been copied as of `lsn`, where the truck begins if it is `whole`; else they have to catch up."""
        step = TableStep.FOLLOW if whole else TableStep.CATCH_UP
        with self._lock:
            tables = self._life.able(step, tables)
            life = self._life.tables_stepped(step, tables)
            life = replace(life, rows=life.rows + rows)
            if whole:
                floors = {**life.floors, **dict.fromkeys(tables, lsn)}
                life = replace(life, position=lsn, stored=lsn, floors=floors)
            self._forget_progress(tables)
            self._replace_life(life, self._table_events(step, tables, life))

    def show_progress(self, progress: Mapping[TableId, CopyProgress]) -> None:
        """Set the progress of copies. It is no change of phase, and listeners are not called."""
        with self._lock:
            self._copying |= progress

    def end_progress(self, tables: Iterable[TableId]) -> None:
        """Copies are no longer in progress, whether they succeeded or failed."""
        with self._lock:
            self._forget_progress(tables)

    def follow(self, tables: Collection[TableId], lsn: Lsn) -> None:
        """Tables that have caught up, at `lsn`, follow the truck."""
        with self._lock:
            tables = self._life.able(TableStep.FOLLOW, tables)
            life = self._life.tables_stepped(TableStep.FOLLOW, tables)
            reached = dict.fromkeys(tables, lsn)
            recovered = life.failed.keys() & reached.keys()
            life = replace(
                life,
                floors={**life.floors, **reached},
                arriving={**life.arriving, **reached},
                failed={table: failure for table, failure in life.failed.items() if table not in reached},
            )
            self._replace_life(life, self._table_events(TableStep.FOLLOW, tables, life, recovered=recovered))

    def leave(self, table: TableId) -> None:
        """A table that followed the truck gets a separate position."""
        with self._lock:
            life = self._life.tables_stepped(TableStep.CATCH_UP, [table])
            self._replace_life(life, self._table_events(TableStep.CATCH_UP, [table], life))

    def copy_again(self, tables: Mapping[TableId, str]) -> None:
        """Tables have to be copied again, each for a reason."""
        with self._lock:
            life = self._life.tables_stepped(TableStep.AWAIT_COPY, tables)
            self._replace_life(life, self._table_events(TableStep.AWAIT_COPY, tables, life, reasons=tables))

    def retry_tables(self, tables: Collection[TableId], error: TruckerError, *, alone: bool = True) -> None:
        """Tables have failed and are tried again: `alone`, or with the truck."""
        with self._lock:
            tables = self._life.able(TableStep.RETRY, tables)
            life = self._life.tables_stepped(TableStep.RETRY, tables)
            if alone:
                others = {table: other for table, other in life.troubles.items() if table not in tables}
                life = replace(life, troubles={**others, **dict.fromkeys(tables, error)})
            self._replace_life(life, self._table_events(TableStep.RETRY, tables, life, error=error))

    def relieve(self, tables: Collection[TableId]) -> None:
        """Clear the errors for which tables were retried, before they follow the truck."""
        with self._lock:
            troubles = self._life.troubles
            if not troubles.keys().isdisjoint(tables):
                remaining = {table: error for table, error in troubles.items() if table not in tables}
                self._replace_life(replace(self._life, troubles=remaining))

    def set_aside(self, table: TableId, error: TruckerError, position: Lsn, *, held: bool, again: bool = True) -> None:
        """Set a failed table aside, and schedule its next try; without `again`, not before the next start."""
        with self._lock:
            previous = self._life.failed.get(table)
            retry = previous.retry if previous is not None else Retry(self._waits)
            retry.failed()
            retry.ended = not again
            since = previous.since if previous is not None else time.time()
            failure = TableFailure(error, since, position, held, retry)
            life = self._life.tables_stepped(TableStep.SET_ASIDE, [table])
            life = replace(life, failed={**life.failed, table: failure})
            self._forget_progress([table])
            self._replace_life(life, self._table_events(TableStep.SET_ASIDE, [table], life, error=error))

    def due_tables(self) -> Mapping[TableId, TableFailure]:
        """Begin the next try of the tables that were set aside long enough; those that are `held` catch up from their
        position, the others are copied."""
        with self._lock:
            due = {table: failure for table, failure in self._life.failed.items() if failure.retry.due}
            for held in (True, False) if due else ():
                step = TableStep.CATCH_UP if held else TableStep.AWAIT_COPY
                tables = [table for table, failure in due.items() if failure.held is held]
                life = self._life.tables_stepped(step, tables)
                self._replace_life(life, self._table_events(step, tables, life))
            for failure in due.values():
                failure.retry.begin()
            return due

    def leave_out(self, table: TableId, columns: tuple[str, ...]) -> None:
        """Note the columns of a table that the destination has no place for."""
        if self._life.left_out.get(table) != columns:
            with self._lock:
                self._replace_life(replace(self._life, left_out={**self._life.left_out, table: columns}))

    # -- replacing it ---------------------------------------------------------------------------------------------

    def _may_follow(self, table: TableId) -> bool:
        return table in self.truck.tables and self._life.tables[table] is not TablePhase.FAILED

    def _step(self, step: TruckStep, error: TruckerError | None = None) -> bool:
        with self._lock:
            was = self._life
            life = was.stepped(step, error)
            self._replace_life(life)
            return not was.has_ended

    def _replace_life(self, life: TruckLife, events: Sequence[LifeEvent] = ()) -> None:
        """Replace the state and call the listeners. Call with the lock held."""
        was, self._life = self._life, life
        if not self._listeners or was is life:
            return
        events = list(events)
        if (was.phase, was.error) != (life.phase, life.error):
            events.append(TruckChanged(self.name, was.phase, life.phase, life))
        if (was.position, was.rows, was.batches) != (life.position, life.rows, life.batches):
            events.append(TruckAdvanced(self.name, was.position, life.position, life))
        for event in events:
            for listener in self._listeners:
                listener(event)

    def _table_events(
        self,
        step: TableStep,
        tables: Iterable[TableId],
        life: TruckLife,
        *,
        error: TruckerError | None = None,
        reasons: Mapping[TableId, str] | None = None,
        recovered: Collection[TableId] = (),
    ) -> list[LifeEvent]:
        if not self._listeners:
            return []
        before, after = self._life.tables, life.tables
        return [
            TableChanged(
                self.name,
                table,
                step,
                before.get(table, TablePhase.WAITING),
                after[table],
                life,
                error,
                (reasons or {}).get(table, ""),
                table in recovered,
            )
            for table in self._life.able(step, tables)
        ]

    def _forget_progress(self, tables: Iterable[TableId]) -> None:
        for table in tables:
            self._copying.pop(table, None)

    def let_go(self) -> None:
        """Drop the tracebacks of the errors, and keep the messages: frames refer to connections, whose library warns
        about one that is still open when the process ends."""
        life = self._life
        errors: list[BaseException | None] = [
            life.own_error,
            *life.troubles.values(),
            *(failure.error for failure in life.failed.values()),
        ]
        for error in errors:
            while error is not None:
                cause = error.__cause__ or error.__context__
                error.__traceback__ = error.__cause__ = error.__context__ = None
                error = cause


def letters_of(runs: Iterable[TruckRun]) -> dict[str, int]:
    """How many failing rows each truck that sets them aside may have, for `Batch.dead_letters`."""
    return {run.name: run.truck.dead_letters for run in runs if run.truck.dead_letters is not None}
