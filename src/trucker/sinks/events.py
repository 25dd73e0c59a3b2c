"""The base of sinks that are streams of events: every change, in commit order, truck by truck.

A store implements three methods:

    read_ledger()         the ledger that is stored there; may connect, and removes what a crash left
    append(truck, lines)  write events behind those of the truck that are there; they need not be durable yet. Each is
                          a line of JSON with its line feed
    store(ledger)         make what was appended durable, then the ledger: from then on the events count

Where `store` is atomic and what was appended before a crash can be removed, events come exactly once; otherwise at
least once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from trucker.abilities import Abilities
from trucker.change import Changes, CopiedRows
from trucker.errors import TruckerError
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.lines.staged_lines import stage_lines, staged_lines
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.table import TableId


class EventSink(Sink):
    """Executors make the lines of JSON, the driver puts them in commit order."""

    abilities: ClassVar[Abilities] = Abilities(every_change=True)

    def __init__(self, workspace: Workspace) -> None:
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._opened = False

    @abstractmethod
    def read_ledger(self) -> Ledger:
        """The ledger that is stored there."""

    @abstractmethod
    def append(self, truck: str, lines: Iterator[pa.LargeStringArray]) -> None:
        """Write these lines behind the last of the truck's that count."""

    @abstractmethod
    def store(self, ledger: Ledger) -> None:
        """Have all that was appended since the last call count, and with it the ledger."""

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        ledger = self.read_ledger()
        self._opened = True
        return ledger

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return stage_lines(self._spool, work, changes)

    def publish(self, delivery: Delivery) -> None:
        receipts = [receipt for load in delivery.loads_of(delivery.receipts) for receipt in load.parts]
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in receipts])
        for truck in sorted({receipt.truck for receipt in receipts if receipt.staged is not None}):
            mine = [receipt for receipt in receipts if receipt.truck == truck and receipt.staged is not None]
            self.append(truck, staged_lines(self._spool, delivery.batch, mine))
        self.store(delivery.ledger)
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """There are no tables to refuse."""
        yield from ()
