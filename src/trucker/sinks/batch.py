"""What the engine hands to a destination: batches, the parts of them, and receipts for parts that were staged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId

CARRIED: Final = 1 << 20
"""The most bytes that a receipt ever carries."""


class Phase(StrEnum):
    """Where a table of a truck is. COPYING and CATCHING_UP tables have a position of their own."""

    COPYING = "copying"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's phase, and the LSN it was copied at or has caught up to (its truck's counts once STREAMING).

    `cursor` says how far an incremental copy of a table that is CATCHING_UP has got; empty where all of it is copied.
    A sink stores it as it is. `unfinished` says of a table that is COPYING that its first copy has begun: what is there
    of it is not complete, and never was.
    """

    phase: Phase
    lsn: Lsn
    cursor: str = ""
    unfinished: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TruckState:
    """What a destination stores of one truck. `lsn` is the end of the last commit applied."""

    lsn: Lsn
    tables: Mapping[TableId, TableState]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit makes visible.

    `start` (exclusive) and `end` (inclusive) are commit ends; a snapshot has both at its consistent point, and
    a `snapshot` name that no other attempt shares. `positions` are the trucks' new positions and `tables` the
    tables' new states; both are stored with the data. `targets` are those the receipts speak of.
    `forget` names trucks that were reset: their position goes, their tables become COPYING at 0/0, their rows stay.
    `builds_on` says which LSN must be stored there now for a truck (`None`) or for a table that has one of its own.
    Where it is another, a commit whose answer was lost took effect after the destination was asked: `SinkUnavailable`,
    and nothing is written (`ledger.Ledger.plan` raises it).
    `dead_letters` names the trucks that set failing rows aside (`sinks.letters`), and how many each may have.
    `source` names the source of a stream's changes: two connections to one database have batches of the same range.
    `leaving` names tables of `tables` that follow their truck until now, and go on from a position of their own.
    `staged_as` names a batch whose end was not known when its first parts were staged.
    """

    start: Lsn
    end: Lsn
    positions: Mapping[str, Lsn] = field(default_factory=dict)
    tables: Mapping[TruckTable, TableState] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    snapshot: str = ""
    forget: tuple[str, ...] = ()
    builds_on: Mapping[tuple[str, TableId | None], Lsn] = field(default_factory=dict)
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    leaving: frozenset[TruckTable] = frozenset()
    staged_as: str = ""

    @property
    def name(self) -> str:
        """Unique among all batches and attempts of a project that may differ in content."""
        source = f"{self.source}@" if self.source else ""
        return self.snapshot or self.staged_as or f"{source}{int(self.start):016x}-{int(self.end):016x}"

    @property
    def trucks(self) -> frozenset[str]:
        """The trucks that it moves."""
        return frozenset(self.positions) | {truck for truck, _ in self.tables} | frozenset(self.forget)

    def without(self, trucks: Iterable[str]) -> Batch:
        """The batch as it is for the other trucks."""
        excluded = frozenset(trucks)
        return replace(
            self,
            positions={name: lsn for name, lsn in self.positions.items() if name not in excluded},
            tables={truck_table: state for truck_table, state in self.tables.items() if truck_table[0] not in excluded},
            targets=tuple(target for target in self.targets if target.truck not in excluded),
            forget=tuple(name for name in self.forget if name not in excluded),
        )

    def for_parts(self) -> Batch:
        """What staging needs to know of it: not the other tables, of which there may be thousands, for every task."""
        return replace(self, positions={}, tables={}, targets=(), builds_on={})


@dataclass(frozen=True, slots=True)
class Work:
    """One part of a batch for one target. `part` is stable when the same work is repeated. Of the `batch` it has what
    `Batch.for_parts` leaves. `room` is how many bytes its receipt may carry: less than `CARRIED` where a batch has many
    receipts (I9).
    """

    batch: Batch
    target: Target
    part: int
    room: int = CARRIED

    def receipt(self, rows: int, staged: Any = None) -> Receipt:
        """The receipt for this part."""
        return Receipt(self.target.truck, self.target.source.table, self.part, rows, staged)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was staged of one part: enough to find or carry it in another process. Must pickle.

    `staged` belongs to the sink; it travels through Spark, so it is little more than `Work.room`. `truncates` says that
    the table is to be emptied before this part is applied, and that no earlier part counts; the framework sets it.
    """

    truck: str
    table: TableId
    part: int
    rows: int
    staged: Any = None
    truncates: bool = False

    @property
    def truck_table(self) -> TruckTable:
        """The truck and the source table."""
        return self.truck, self.table


class Receipts(Sequence[Receipt]):
    """A batch's receipts, some of which may be on their way: as a sequence it waits for all of them.

    `by_part` gives them as they come. Either way `TruckFailed` is raised where a share of a truck could not be made:
    what there is of it must not be committed (I3).
    """

    @abstractmethod
    def by_part(self) -> Iterator[Sequence[Receipt]]:
        """Those of each part, in order, as soon as they are there. Raises what keeps one from coming."""

    @abstractmethod
    def settled(self) -> tuple[list[Receipt], dict[str, TruckerError]]:
        """All that came, and why shares of trucks did not."""
