"""Dead letters of streams of events: events that a store refuses for what is in them, kept until they can be sent.

A letter is the refused event itself, with its reason. What a stream has are events, not rows: there is nothing to fold
a later change into, and **later events of the same key go on**, as with the dead-letter queues of brokers. An event
that is sent again by `trucker redrive` therefore comes late, behind newer events of its key. It has the id and the
position (commit LSN, ordinal) that it always had: a reader that applies events to rows leaves out one whose position is
before that of the row it has.

A truncate or a copy sends further events and takes none back; but when a table is copied from the beginning its letters
go, because all of its rows are sent again.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from trucker.config.events import EventConnection
from trucker.errors import DataError, SinkUnavailable, TruckerError, TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.base import Workspace
from trucker.sinks.delivery import Delivery
from trucker.sinks.event import Event
from trucker.sinks.events import EventSink
from trucker.sinks.ledger import Ledger
from trucker.sinks.letter_file import EventLetter, LetterFile, Refusal, witness
from trucker.sinks.letters import Choice, Letter, Operation, Reason, Redriven, log_set_aside, too_many
from trucker.table import TableId

log = logging.getLogger("trucker.letters")

# About so many bytes of letters are in memory at once (I9).
_REDRIVEN_BYTES: Final = 8 * 1024 * 1024
# The longest text of a key that an error shows.
_SHOWN: Final = 60


class LetterEventSink(EventSink):
    """A sink of events whose store refuses some of them. A subclass calls `refuse` in `append` or `store`, and
    implements `redeliver`."""

    def __init__(self, connection: EventConnection | None, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._letter_file = LetterFile(workspace.folder / f"{connection.name if connection else 'sink'}.letters.db")
        self._delivery: Delivery | None = None

    def refuse(self, truck: str, refused: Sequence[tuple[Event, DataError]]) -> None:
        """Set these events aside, durably, or raise `TruckFailed` where the truck does not have dead letters, or
        too many. Call it before the ledger is stored that passes the events; for the same event it may be called again.
        """
        assert self._delivery is not None
        if not refused:
            return
        most = self._delivery.batch.dead_letters.get(truck)
        if most is None:
            event, error = refused[0]
            raise TruckFailed(truck, name_event(error, event))
        sources = self._sources(truck)
        refusals = [Refusal(event, sources.get(event.table, event.table), Reason.of(error)) for event, error in refused]
        passed_by = witness(self._delivery.plan, truck)
        if not self._letter_file.put(truck, refusals, passed_by=passed_by, most=most):
            raise TruckFailed(truck, too_many(truck, most, refusals[-1].reason))
        log_set_aside([as_letter(truck, refusal) for refusal in refusals])

    def room(self, truck: str) -> int:
        """How many events of the truck may be refused before it stops."""
        assert self._delivery is not None
        most = self._delivery.batch.dead_letters.get(truck)
        return 0 if most is None else max(most - self._letter_file.count().get(truck, 0), 0)

    @abstractmethod
    def redeliver(self, truck: str, events: Sequence[Event]) -> Sequence[DataError | SinkUnavailable | None]:
        """Send these events, in this order. None for one that was taken, and the error for one that is refused, or that
        could not be sent because the store went away. Durable when this returns.

        May be called on a sink that was never opened, beside another process that has one open. Where it raises, all
        of the letters stay.
        """

    def open(self) -> Ledger:
        ledger = super().open()
        self._letter_file.settle(ledger)
        return ledger

    def publish(self, delivery: Delivery) -> None:
        self._letter_file.settle(delivery.before)  # what an earlier attempt at the same events had refused
        self._delivery = delivery
        try:
            super().publish(delivery)
        finally:
            self._delivery = None
        self._letter_file.settle(delivery.ledger)
        begun = {copy.target.truck_table for copy in delivery.copies}
        if removed := self._letter_file.remove_copied(begun, delivery.plan.forgotten):
            log.info("dead letters removed: their tables are copied from the beginning", extra={"count": removed})

    # -- KeepsLetters ----------------------------------------------------------------------------------------------

    @property
    def letters(self) -> Mapping[str, int]:
        try:
            return self._letter_file.count()
        except TruckerError:  # whoever needs the file says so
            return self._letter_file.last_count

    def count_letters(self) -> Mapping[str, int]:
        return self._letter_file.count()

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        """Send letters again, in the order in which they were refused. With `dry_run` nothing is tried: an event that
        is sent cannot be taken back."""
        outcomes: list[Redriven] = []
        for truck, numbers in self._letter_file.chosen(choice).items():
            for letters in self._letter_file.read(truck, numbers, _REDRIVEN_BYTES):
                outcomes += self._foreseen(letters) if dry_run else self._redriven(truck, letters)
        return outcomes

    def _foreseen(self, letters: Sequence[EventLetter]) -> Iterator[Redriven]:
        return (Redriven(stored_letter(letter), applied=None) for letter in letters)

    def _redriven(self, truck: str, letters: Sequence[EventLetter]) -> Iterator[Redriven]:
        errors = self.redeliver(truck, [letter.event for letter in letters])
        results = list(zip(letters, errors, strict=True))
        self._letter_file.remove([letter.number for letter, error in results if error is None])
        reasons = {letter.number: Reason.of(error) for letter, error in results if isinstance(error, DataError)}
        self._letter_file.refused_again(reasons)
        if (away := next((error for error in errors if isinstance(error, SinkUnavailable)), None)) is not None:
            raise away
        return (
            Redriven(stored_letter(letter, reasons.get(letter.number), tried=True), error is None)
            for letter, error in results
        )

    def _sources(self, truck: str) -> dict[TableId, TableId]:
        """The source tables of the tables that a truck's events name; without those that several share."""
        assert self._delivery is not None
        sources: dict[TableId, TableId] = {}
        for target in self._delivery.batch.targets:
            if target.truck == truck:
                source = target.source.table
                sources[target.table] = source if target.table not in sources else target.table
        return sources


def name_event(error: DataError, event: Event) -> DataError:
    """The same error, with the event that it is about and the key of its row."""
    key = ", ".join(f"{name} = {value or 'NULL'}" for name, value in key_cells(event).items())
    of_row = f", row ({key if len(key) <= _SHOWN else key[:_SHOWN] + '…'})" if key else ""
    return DataError(
        f"event {event.id} ({event.operation} of table {event.table}{of_row}): {error.message}",
        remedy=f"{error.remedy}; or write on_error: dead_letter in truck.yml to set such events aside",
        code=error.code,
        sqlstate=error.sqlstate,
        constraint=error.constraint,
        column=error.column,
    )


def key_cells(event: Event) -> dict[str, str | None]:
    """The columns of the key that an event has, as text."""
    try:
        key = json.loads(event.key) if event.key else None
    except ValueError:
        return {}
    if isinstance(key, dict) and isinstance(key.get("payload"), dict):
        key = key["payload"]
    if not isinstance(key, dict):
        return {}
    return {
        str(name): value if value is None or isinstance(value, str) else json.dumps(value)
        for name, value in key.items()
    }


def as_letter(truck: str, refusal: Refusal, *, tries: int = 1, number: int = 0) -> Letter:
    """An event as commands show letters: without its value."""
    event, cells = refusal.event, key_cells(refusal.event)
    operation: Operation = event.operation  # type: ignore[assignment]  # commands show the others, too
    return Letter(
        truck,
        refusal.source,
        event.table,
        tuple(cells),
        operation,
        cells,
        Lsn(event.commit_lsn),
        event.ordinal,
        refusal.reason,
        tries,
        number,
    )


def stored_letter(letter: EventLetter, reason: Reason | None = None, *, tried: bool = False) -> Letter:
    """A stored letter as commands show it, with the reason for which it was refused last."""
    refusal = Refusal(letter.event, letter.source, reason or letter.reason)
    return as_letter(letter.truck, refusal, tries=letter.tries + tried, number=letter.number)
