"""An HTTP endpoint as a destination. Positions are in the state folder, beside the dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker import private
from trucker.abilities import Abilities
from trucker.adapters.webhook import WEBHOOK, WebhookConnection
from trucker.errors import DataError, SinkUnavailable, TruckerError
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.delivery import Delivery
from trucker.sinks.event import Event, Events
from trucker.sinks.event_letters import LetterEventSink
from trucker.sinks.ledger import Ledger
from trucker.sinks.webhook.courier import Courier, ReceiverLimits
from trucker.sinks.webhook.sent_events import SentEvents

# About so many bytes of events are Python objects at once (I9).
_PIECE_BYTES: Final = 16 * 1024 * 1024


class WebhookSink(LetterEventSink):
    """Guarantee: at least once, in order per key; after a crash events may come again, with the same ids."""

    name: ClassVar[str] = "webhook"
    abilities: ClassVar[Abilities] = WEBHOOK.abilities

    def __init__(self, connection: WebhookConnection, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._connection = connection
        self._folder = workspace.folder
        self._courier: Courier | None = None
        self._sent = SentEvents()
        self._limits = ReceiverLimits()

    @property
    def _positions(self) -> Path:
        return self._folder / f"{self._connection.name}.positions.json"

    def check(self) -> list[Finding]:
        """Whether the positions can be read and the receiver's host answers. Sends no event."""
        subject = f"connection {self._connection.name}"
        try:
            self.stored()
            status = self._using().look().status
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code, waits=error.transient)]
        return [Finding(Level.OK, subject, f"{self._connection.origin} answers (HTTP {status} to HEAD), at least once")]

    def stored(self) -> Mapping[str, TruckState]:
        return self.read_ledger().states()

    def open(self) -> Ledger:
        self._hang_up()  # secrets and certificates may be others now
        return super().open()

    def read_ledger(self) -> Ledger:
        content = ledger_file.load(self._positions, self._project)
        return ledger_file.ledger_from_json(content) if content else Ledger()

    def publish(self, delivery: Delivery) -> None:
        self._sent.start()
        for truck in {*delivery.plan.forgotten, *(copy.target.truck for copy in delivery.copies)}:
            self._sent.forget(truck)
        super().publish(delivery)

    def append(self, truck: str, events: Iterator[Events]) -> None:
        self._sent.begin(truck)
        for whole in events:
            for piece in _slices(whole):
                self._send(truck, list(piece.rows()))

    def store(self, ledger: Ledger) -> None:
        try:
            private.make_folder(self._folder)
            ledger_file.save(self._positions, self._project, ledger, opener=private.open_file)
        except OSError as error:
            raise SinkUnavailable(
                f"writing the position to {self._positions} failed: {error.strerror or error}",
                remedy="free disk space for, or give trucker access to, the project's state folder",
                code="TRK456",
            ) from error
        self._sent.finish_all()

    def redeliver(self, truck: str, events: Sequence[Event]) -> Sequence[DataError | SinkUnavailable | None]:
        outcome = self._using().deliver(truck, list(enumerate(events)), len(events))
        away = outcome.error
        if away is not None and not isinstance(away, SinkUnavailable):
            raise away
        return [None if number in outcome.taken else outcome.refused.get(number, away) for number in range(len(events))]

    def close(self) -> None:
        self._hang_up()
        super().close()

    def _send(self, truck: str, events: Sequence[Event]) -> None:
        """Send a piece of a truck's events, but for those that were taken before."""
        ids = [event.id for event in events]
        known = self._sent.piece(truck, ids)
        if known is not None:
            self._set_aside(truck, events, known.refused)
            return
        before = self._sent.taken(truck)
        due = [
            (number, event)
            for number, event in enumerate(events)
            if event.operation != "tombstone" and event.id not in before
        ]
        reach("events.send.before")
        outcome = self._using().deliver(truck, due, self.room(truck))
        reach("events.send.after")
        refused = {ids[number]: error for number, error in sorted(outcome.refused.items())}
        self._sent.take(truck, {ids[number] for number in outcome.taken})
        if outcome.error is not None:
            raise outcome.error
        self._set_aside(truck, events, refused)
        if len(outcome.taken) + len(outcome.refused) == len(due):
            self._sent.finish(truck, ids, refused)
            return
        raise SinkUnavailable(  # there is room after all: letters have been redriven meanwhile
            f"{self._connection.place}: more events are refused than the truck had room for",
            remedy="none needed: trucker sends the others again",
            code="TRK712",
        )

    def _set_aside(self, truck: str, events: Sequence[Event], refused: Mapping[str, DataError]) -> None:
        if refused:
            self.refuse(truck, [(event, refused[event.id]) for event in events if event.id in refused])

    def _using(self) -> Courier:
        if self._courier is None:
            self._courier = Courier(self._connection.refreshed(), self._limits)
        return self._courier

    def _hang_up(self) -> None:
        if self._courier is not None:
            self._courier.close()
            self._courier = None


def _slices(events: Events) -> Iterator[Events]:
    """The events in pieces of bounded size."""
    if events.nbytes <= _PIECE_BYTES:
        yield events
        return
    lengths = pc.fill_null(pc.binary_length(events.value), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    begin = 0
    while begin < len(events):
        behind = int(ends[begin - 1]) if begin else 0
        stop = max(int(np.searchsorted(ends, behind + _PIECE_BYTES, "right")), begin + 1)
        yield events.slice(begin, stop)
        begin = stop
