"""The life of a truck and of its tables: the phases, the steps between them, and the state at one instant.

This module has no I/O, no Spark and no lock: a `TruckLife` is immutable, and a step returns another one. `TruckRun`
is the owner: it holds that of a running truck, replaces it under its lock, and hands every change to listeners.

A truck's own phase is about the truck as a whole. Tables of it may be apart: copied, catching up in a lane, failed. A
truck streams when it is in the main lane; a table streams when it is at its truck's position, wherever that is. While a
table that is apart is retried, its truck is shown as retrying.

A phase of `ENDED` is final: a thread that still works for such a truck cannot bring it back. Its steps change nothing,
except that a truck that has failed can be paused. One that is to go on gets a new run (`TruckRun.started_again`).
Any other step from a phase that `TRUCK_STEPS` or `TABLE_STEPS` does not list is a fault of the program (`IllegalStep`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from trucker.engine.truck.table_failure import TableFailure
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.observe.status import TruckPhase
from trucker.table import TableId

EntryT = TypeVar("EntryT")


class TablePhase(StrEnum):
    """What a table of a truck is doing."""

    WAITING = "waiting"
    """Its copy has not begun."""
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    """It has a position of its own, behind or ahead of its truck's."""
    STREAMING = "streaming"
    """It is at its truck's position."""
    RETRYING = "retrying"
    """Its copy, or its lane, failed and is tried again."""
    FAILED = "failed"
    """It is set aside; the truck's other tables continue."""


class TruckStep(StrEnum):
    """What happens to a truck as a whole."""

    COPY = "copy"
    CATCH_UP = "catch up"
    STREAM = "stream"
    RETRY = "retry"
    FAIL = "fail"
    PAUSE = "pause"
    STOP = "stop"


class TableStep(StrEnum):
    """What happens to a table."""

    AWAIT_COPY = "await copy"
    COPY = "copy"
    CATCH_UP = "catch up"
    FOLLOW = "follow"
    RETRY = "retry"
    SET_ASIDE = "set aside"


ENDED: Final = frozenset({TruckPhase.FAILED, TruckPhase.PAUSED, TruckPhase.STOPPED})

_STARTED: Final = frozenset({TruckPhase.STARTING, TruckPhase.COPYING, TruckPhase.CATCHING_UP, TruckPhase.RETRYING})

TRUCK_STEPS: Final[Mapping[TruckStep, tuple[frozenset[TruckPhase], TruckPhase]]] = {
    TruckStep.COPY: (_STARTED, TruckPhase.COPYING),
    TruckStep.CATCH_UP: (_STARTED, TruckPhase.CATCHING_UP),
    TruckStep.STREAM: (_STARTED, TruckPhase.STREAMING),
    TruckStep.RETRY: (_STARTED | {TruckPhase.STREAMING}, TruckPhase.RETRYING),
    TruckStep.FAIL: (_STARTED | {TruckPhase.STREAMING}, TruckPhase.FAILED),
    TruckStep.PAUSE: (_STARTED | {TruckPhase.STREAMING, TruckPhase.FAILED}, TruckPhase.PAUSED),
    TruckStep.STOP: (_STARTED | {TruckPhase.STREAMING}, TruckPhase.STOPPED),
}
"""From which phases a step leads to which. A truck that streams is copied, or catches up, only after a failure."""

TABLE_STEPS: Final[Mapping[TableStep, tuple[frozenset[TablePhase], TablePhase]]] = {
    TableStep.AWAIT_COPY: (
        frozenset({TablePhase.STREAMING, TablePhase.CATCHING_UP, TablePhase.RETRYING, TablePhase.FAILED}),
        TablePhase.WAITING,
    ),
    TableStep.COPY: (frozenset({TablePhase.WAITING, TablePhase.RETRYING}), TablePhase.COPYING),
    TableStep.CATCH_UP: (
        frozenset({TablePhase.WAITING, TablePhase.COPYING, TablePhase.STREAMING, TablePhase.FAILED}),
        TablePhase.CATCHING_UP,
    ),
    TableStep.FOLLOW: (
        frozenset({TablePhase.WAITING, TablePhase.COPYING, TablePhase.CATCHING_UP, TablePhase.RETRYING}),
        TablePhase.STREAMING,
    ),
    TableStep.RETRY: (
        frozenset({TablePhase.WAITING, TablePhase.COPYING, TablePhase.CATCHING_UP, TablePhase.RETRYING}),
        TablePhase.RETRYING,
    ),
    TableStep.SET_ASIDE: (frozenset(TablePhase), TablePhase.FAILED),
}
"""From which phases a step leads to which. What a start finds at the destination follows or catches up at once."""


class IllegalStep(RuntimeError):
    """A truck or a table was to take a step that its phase does not allow."""


@dataclass(frozen=True, slots=True)
class TruckLife:
    """The state of a truck at one instant.

    `position` is the end of the last commit applied, `stored` the one that its destination holds: the same, except
    after idle progress, which is not stored at once. `floors` has the tables that stream, each with the LSN of its
    copy: what was committed before is in the copy, so a table's changes count from the greater of both (I6).
    `arriving` are those of them for which the destination still has a separate position: the truck's next commit
    removes it there, so that a table never counts as following a truck that has passed it.

    `own` and `own_error` are the truck's; `troubles` has the errors for which single tables are retried, the latest
    last. `failed` has the tables that are set aside, also while they are retried. `left_out` names columns that the
    destination does not have.
    """

    own: TruckPhase = TruckPhase.STARTING
    own_error: TruckerError | None = None
    position: Lsn = field(default_factory=Lsn)
    stored: Lsn = field(default_factory=Lsn)
    tables: Mapping[TableId, TablePhase] = field(default_factory=dict)
    floors: Mapping[TableId, Lsn] = field(default_factory=dict)
    arriving: Mapping[TableId, Lsn] = field(default_factory=dict)
    troubles: Mapping[TableId, TruckerError] = field(default_factory=dict)
    failed: Mapping[TableId, TableFailure] = field(default_factory=dict)
    left_out: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)
    rows: int = 0
    batches: int = 0
    applied_time: int = 0

    @property
    def phase(self) -> TruckPhase:
        """The phase that is shown."""
        return TruckPhase.RETRYING if self.troubles and self.own not in ENDED else self.own

    @property
    def error(self) -> TruckerError | None:
        """The reason that is shown. A truck that is paused has none: it waits for nothing but `resume`."""
        if self.own is TruckPhase.PAUSED:
            return None
        return self.own_error or (list(self.troubles.values())[-1] if self.troubles else None)

    @property
    def has_ended(self) -> bool:
        return self.own in ENDED

    def stepped(self, step: TruckStep, error: TruckerError | None = None) -> TruckLife:
        """After a step of the truck, for the reason `error`; unchanged where the truck has ended."""
        sources, target = TRUCK_STEPS[step]
        if self.own not in sources:
            if self.has_ended:
                return self
            raise IllegalStep(f"a truck that is {self.own.value} cannot {step.value}")
        match step:
            case TruckStep.CATCH_UP | TruckStep.STREAM | TruckStep.PAUSE:
                error = None
            case TruckStep.COPY | TruckStep.STOP:
                error = self.own_error
            case _:
                error = error or self.error
        troubles = {} if step is TruckStep.PAUSE else self.troubles
        return replace(self, own=target, own_error=error, troubles=troubles)

    def able(self, step: TableStep, tables: Iterable[TableId]) -> list[TableId]:
        """The tables, sorted; of a truck that has ended, only those that may take the step."""
        sources, _ = TABLE_STEPS[step]
        phases = {table: self.tables.get(table, TablePhase.WAITING) for table in sorted(tables)}
        for table, phase in phases.items():
            if phase not in sources and not self.has_ended:
                raise IllegalStep(f"table {table}, which is {phase.value}, cannot {step.value}")
        return [table for table, phase in phases.items() if phase in sources]

    def tables_stepped(self, step: TableStep, tables: Iterable[TableId]) -> TruckLife:
        """After a step of these tables; `floors`, `arriving` and `troubles` without those that are no longer there."""
        moved, (_, target) = dict.fromkeys(self.able(step, tables)), TABLE_STEPS[step]
        floors, arriving, troubles = self.floors, self.arriving, self.troubles
        if target is not TablePhase.STREAMING:
            floors, arriving = _without(floors, moved), _without(arriving, moved)
        if target in (TablePhase.STREAMING, TablePhase.FAILED):
            troubles = _without(troubles, moved)
        phases = {**self.tables, **dict.fromkeys(moved, target)}
        return replace(self, tables=phases, floors=floors, arriving=arriving, troubles=troubles)


@dataclass(frozen=True, slots=True)
class TruckChanged:
    """The phase of a truck as shown, or the reason for it, has changed. `life` is the new state."""

    truck: str
    before: TruckPhase
    after: TruckPhase
    life: TruckLife


@dataclass(frozen=True, slots=True)
class TruckAdvanced:
    """A truck has another position, or has written rows, of a copy or a lane, too. `life` is the new state."""

    truck: str
    before: Lsn
    after: Lsn
    life: TruckLife


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A table has taken a step, for the reason `error` or `reason`; `recovered` where it had failed before."""

    truck: str
    table: TableId
    step: TableStep
    before: TablePhase
    after: TablePhase
    life: TruckLife
    error: TruckerError | None = None
    reason: str = ""
    recovered: bool = False


LifeEvent = TruckChanged | TruckAdvanced | TableChanged


def _without(entries: Mapping[TableId, EntryT], tables: Mapping[TableId, object]) -> Mapping[TableId, EntryT]:
    """The same object where nothing is to be left out."""
    if entries.keys().isdisjoint(tables):
        return entries
    return {table: entry for table, entry in entries.items() if table not in tables}
