"""The base of sinks that are streams of events: every change, in commit order, truck by truck.

A store implements three methods:

    read_ledger()          the ledger that is stored there; may connect, and removes what a crash left
    append(truck, events)  write events behind those of the truck that are there; they need not be durable yet
    store(ledger)          make what was appended durable, then the ledger: from then on the events count

Where `store` is atomic and what was appended before a crash can be removed, events come exactly once; otherwise at
least once, with the same ids (`trucker.sinks.event`). `publish` appends the events of each truck that has some, in
order of their names, and stores the ledger; a delivery without events stores the ledger alone. What was appended counts
for nothing where `publish` fails before the end of `store`: the same events come again, perhaps cut otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from trucker.abilities import Abilities
from trucker.change import Changes, CopiedRows
from trucker.config.events import EventConnection, EventFormat, UnsentValues
from trucker.errors import SinkError, TruckerError
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.envelope.envelope import envelope_settings
from trucker.sinks.envelope.flat_envelope import name_taken
from trucker.sinks.envelope.staged_events import stage_events, staged_events
from trucker.sinks.event import Events
from trucker.sinks.ledger import Ledger
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target
from trucker.table import TableId


class EventSink(Sink):
    """Executors make the events, by column; the driver puts them in commit order.

    `line_feed`: the store is a file of lines. Values end in a line feed, and events have neither key nor id.
    """

    abilities: ClassVar[Abilities] = Abilities(every_change=True)
    line_feed: ClassVar[bool] = False

    def __init__(self, connection: EventConnection | None, workspace: Workspace) -> None:
        """`connection` says which envelope; None, as of a sink that a program brings, stands for trucker's own."""
        self._project = workspace.project
        self._envelope = envelope_settings(connection, workspace.project, lines=self.line_feed)
        self.reads_unsent = connection is not None and connection.unsent is UnsentValues.READ
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._opened = False

    @abstractmethod
    def read_ledger(self) -> Ledger:
        """The ledger that is stored there."""

    @abstractmethod
    def append(self, truck: str, events: Iterator[Events]) -> None:
        """Write these events behind the last of the truck's that count. Called once per truck and delivery; the pieces
        are made while they are taken, so that memory is bounded (I9)."""

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
        return stage_events(self._spool, self._envelope, work, changes)

    def publish(self, delivery: Delivery) -> None:
        receipts = [receipt for load in delivery.loads_of(delivery.receipts) for receipt in load.parts]
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in receipts])
        for truck in sorted({receipt.truck for receipt in receipts if receipt.staged is not None}):
            mine = [receipt for receipt in receipts if receipt.truck == truck and receipt.staged is not None]
            tables = {target.source.table: target.table for target in delivery.targets if target.truck == truck}
            self.append(truck, staged_events(self._spool, self._envelope, delivery.batch, mine, tables))
        self.store(delivery.ledger)
        self._spool.discard(delivery.batch)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def prepare(self, target: Target) -> frozenset[str]:
        if (error := self._refusal(target)) is not None:
            raise error
        return super().prepare(target)

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """There are no tables to refuse but those whose columns the envelope cannot hold."""
        for target in targets:
            if (error := self._refusal(target)) is not None:
                yield target, error

    def _refusal(self, target: Target) -> SinkError | None:
        flat = self._envelope.format is EventFormat.FLAT
        return name_taken(target.source, target.truck) if flat else None
