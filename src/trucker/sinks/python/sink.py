"""Changes given to a user's class: staged on executors, called in the driver, truck by truck.

A delivery is given to the handlers of all its trucks first, and then the positions are stored: a truck whose handler
fails is left out, and what the others were given is not given to them again when the delivery comes without it. A
handler that stores its position does so at once.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from trucker.abilities import Abilities
from trucker.adapters.python import EVENTS_ABILITIES, PythonConnection
from trucker.change import Changes, CopiedRows
from trucker.errors import ConfigError, SinkError, SinkUnavailable, TruckFailed
from trucker.failpoint import reach
from trucker.finding import Finding, Level
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.batch import Batch, Receipt, TruckState, Work
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Choice, Redriven
from trucker.sinks.python.calls import staged_pieces
from trucker.sinks.python.documents import DocumentFolder, TruckDocument, merged, remaining_copies, share_of
from trucker.sinks.python.handler_code import check_class
from trucker.sinks.python.refusals import Letters, Refusals, called_again
from trucker.sinks.python.running_handler import FAILURES, RunningHandler
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target

log = logging.getLogger("trucker.handler")

FAILED: Final = "TRK743"
_COPY_TRIES: Final = 5
_COPY_WAIT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a delivery goes on that failed: the unit, and the letters of those before it."""

    delivery: str
    unit: int
    letters: Letters


@dataclass(frozen=True, slots=True)
class _Given:
    """What a truck's handler was given of a delivery whose position is not stored yet."""

    delivery: object
    document: TruckDocument


class PythonSink(Sink):
    """Guarantee: at least once, in order per key; exactly once where the handler stores the position with its data."""

    name: ClassVar[str] = "python"
    abilities: ClassVar[Abilities] = EVENTS_ABILITIES

    def __init__(self, connection: PythonConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._project = workspace.project
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._folder = DocumentFolder(workspace.folder / "positions", workspace.project)
        self._opened = False
        self._running: dict[str, RunningHandler] = {}
        self._given: dict[str, _Given] = {}
        self._refusals = Refusals(connection.tries)
        self._resume: dict[str, Resume] = {}
        self.letters: Mapping[str, int] = {}

    @abstractmethod
    def give(self, handler: RunningHandler, truck: str, delivery: Delivery, document: TruckDocument) -> TruckDocument:
        """Call a truck's handler for its share of a delivery; the document to store, with its letters. Raises
        `TruckFailed`."""

    def begin_copies(self, truck: str, delivery: Delivery) -> None:
        """Copies of the truck's tables begin. Raises `TruckFailed`."""

    # -- checks ----------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Whether the classes can be used. Imports them; makes no instance of those that store no position."""
        findings = []
        for truck in self._connection.trucks:
            code = self._connection.handler(truck)
            assert code is not None
            errors = check_class(code)
            findings += [
                Finding(Level.ERROR, f"truck {truck}", each.message, each.remedy, each.code) for each in errors
            ]
            if not errors:
                once = "exactly once" if RunningHandler(code).keeps_position else "at least once"
                kind = "net changes" if code.batches else "every change"
                findings.append(Finding(Level.OK, f"truck {truck}", f"{code.label}: {kind}, {once}"))
        return findings

    def stored(self) -> Mapping[str, TruckState]:
        return merged(self._documents()).states()

    # -- the contract of sinks -------------------------------------------------------------------------------------

    def open(self) -> Ledger:
        if not self._opened:
            self._spool.clear()
        for truck in [name for name in self._given if self._handler(name).keeps_position]:
            self._restart(truck)
        self._given.clear()
        documents = self._documents()
        self._opened = True
        return merged(documents)

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        count = 0

        def pieces() -> Iterator[Any]:
            nonlocal count
            for value in changes:
                whole = value.to_changes() if isinstance(value, CopiedRows) else value
                count += len(whole)
                yield from staged_pieces(self.shaped(whole, work.target))

        staged = self._spool.stage(work, pieces())
        return work.receipt(count, staged)

    def shaped(self, changes: Changes, target: Target) -> Changes:
        """The changes in the form in which they are staged."""
        return changes

    def publish(self, delivery: Delivery) -> None:
        self._spool.keep_only(delivery.batch, [receipt.staged for receipt in delivery.receipts])
        with self._folder.locked():
            documents = self._documents()
            failed: TruckFailed | None = None
            ledger = delivery.verify(merged(documents))
            for truck in delivery.plan.trucks:
                try:
                    self._give(truck, delivery, documents.get(truck, TruckDocument()))
                    if self._keeps_position(truck):  # now: the next truck may write to the same database
                        self._store(truck, ledger)
                except TruckFailed as error:
                    failed = failed or error
            if failed is not None:
                raise failed
            reach("sink.position.before")
            for truck in delivery.plan.trucks:
                if truck in self._given:
                    self._store(truck, ledger)
            reach("sink.position.after")
        self._spool.discard(delivery.batch)

    def _read(self, load: Load) -> Iterator[pa.RecordBatch]:
        return self._spool.read_all(load.parts)

    def discard(self, batch: Batch) -> None:
        self._spool.discard(batch)

    def close(self) -> None:
        for handler in self._running.values():
            handler.close()
        self._running.clear()
        self._given.clear()

    # -- handlers --------------------------------------------------------------------------------------------------

    def _handler(self, truck: str) -> RunningHandler:
        """The truck's handler, made and not opened. Raises `TruckFailed`."""
        if truck not in self._running:
            code = self._connection.handler(truck)
            if code is None:
                reason = SinkError(
                    f"connection {self._connection.name} has no handler of truck {truck}",
                    remedy="a handler runs for the truck in whose folder it is: name another connection",
                    code="TRK740",
                )
                raise TruckFailed(truck, reason)
            try:
                self._running[truck] = RunningHandler(code)
            except ConfigError as error:
                raise TruckFailed(truck, SinkError(error.message, remedy=error.remedy, code=error.code)) from None
        return self._running[truck]

    def runnable(self, truck: str) -> RunningHandler:
        """The truck's handler, not opened. Raises `SinkError` where it cannot be used."""
        try:
            return self._handler(truck)
        except TruckFailed as error:
            raise error.reason from None

    def opened(self, truck: str) -> RunningHandler:
        """The truck's handler, ready to be called. Raises `TruckFailed`."""
        handler = self._handler(truck)
        try:
            handler.open()
        except FAILURES as error:
            handler.close()
            raise self._passing(truck, handler, "opening it", error) from None
        return handler

    def _restart(self, truck: str) -> None:
        """Have a new instance, that knows nothing of what the last one was given and did not store."""
        self._running[truck].close()

    def _passing(self, truck: str, handler: RunningHandler, doing: str, error: BaseException) -> TruckFailed:
        return TruckFailed(truck, passing_failure(truck, doing, handler.reason(error)))

    # -- what is stored --------------------------------------------------------------------------------------------

    def _documents(self) -> dict[str, TruckDocument]:
        """What is stored of every truck, in the state folder or by its handler."""
        documents = self._folder.load()
        for truck in self._connection.trucks:
            try:
                if self._handler(truck).keeps_position:
                    documents[truck] = self._own_document(truck)
            except TruckFailed as error:
                if not error.reason.transient:
                    continue  # it is found by `check`, and at the first delivery
                raise error.reason from None
        self.letters = {truck: len(each.letters) for truck, each in documents.items() if each.letters}
        return documents

    def _own_document(self, truck: str) -> TruckDocument:
        handler = self.opened(truck)
        try:
            text = handler.invoke("load_position")
        except FAILURES as error:
            self._restart(truck)
            raise self._passing(truck, handler, "load_position", error) from None
        if text is None:
            return TruckDocument()
        return TruckDocument.from_text(truck, self._project, str(text), f"the position of truck {truck}")

    def _keeps_position(self, truck: str) -> bool:
        handler = self._running.get(truck)
        return handler is not None and handler.keeps_position

    def _store(self, truck: str, ledger: Ledger) -> None:
        """Store the position behind what the truck's handler was given."""
        document = self._given.pop(truck).document
        self._save(truck, replace(document, ledger=share_of(ledger, truck)))

    def _save(self, truck: str, document: TruckDocument) -> None:
        self.letters = {name: count for name, count in self.letters.items() if name != truck}
        if document.letters:
            self.letters = {**self.letters, truck: len(document.letters)}
        handler = self._running.get(truck)
        if handler is None or not handler.keeps_position:
            self._folder.store(truck, document)
            return
        try:
            reach("sink.commit.before")
            handler.invoke("save_position", document.to_text(self._project))
            reach("sink.commit.after")
        except FAILURES as error:
            self._restart(truck)
            raise self._passing(truck, handler, "save_position", error) from None

    def _give(self, truck: str, delivery: Delivery, document: TruckDocument) -> None:
        """Call the truck's handler, unless it was called for this very delivery before."""
        share = _share(delivery, truck)
        given = self._given.get(truck)
        if given is not None and given.delivery == share:
            return
        document = replace(document, copies=remaining_copies(document, truck, delivery.batch))
        self.begin_copies(truck, delivery)
        if not any(target.truck == truck for target in delivery.targets):
            if truck in delivery.plan.forgotten:
                document = replace(document, letters=())
            self._given[truck] = _Given(share, document)
            return
        if given is not None and self._handler(truck).keeps_position:
            self._restart(truck)
        handler = self.opened(truck)
        try:
            self._given[truck] = _Given(share, self._patiently(handler, truck, delivery, document))
        except BaseException:
            if handler.keeps_position:
                self._restart(truck)
            raise

    def _patiently(
        self, handler: RunningHandler, truck: str, delivery: Delivery, document: TruckDocument
    ) -> TruckDocument:
        """A copy is tried again here, from the piece that failed: given up, it would be read anew from the start."""
        for attempt in range(_COPY_TRIES):
            try:
                return self.give(handler, truck, delivery, document)
            except TruckFailed as error:
                last = attempt == _COPY_TRIES - 1
                if last or handler.keeps_position or not (delivery.snapshot and error.reason.transient):
                    raise
            time.sleep(_COPY_WAIT * 2**attempt)
        raise AssertionError

    # -- dead letters ----------------------------------------------------------------------------------------------

    def count_letters(self) -> Mapping[str, int]:
        self._documents()
        return self.letters

    def redrive(self, choice: Choice, *, dry_run: bool) -> list[Redriven]:
        """With `dry_run` nothing is called: only the handler knows whether it would take a row."""
        outcomes: list[Redriven] = []
        if not self.count_letters():
            return outcomes
        with self._folder.locked():
            for truck, document in self._documents().items():
                chosen = [each for each in document.letters if choice.takes(each.letter)]
                if not chosen:
                    continue
                if dry_run:
                    outcomes += [Redriven(each.letter, applied=None) for each in chosen]
                    continue
                after, results = called_again(self.opened(truck), document, chosen)
                self._save(truck, after)
                outcomes += results
        self._documents()
        return outcomes


def _share(delivery: Delivery, truck: str) -> object:
    """What tells one truck's share of a delivery from any other."""
    plan = delivery.plan
    return (
        delivery.name,
        frozenset(truck_table for truck_table in plan.apply if truck_table[0] == truck),
        plan.positions.get(truck),
        truck in plan.forgotten,
        tuple(sorted((str(table), entry.snapshot) for (name, table), entry in plan.entries.items() if name == truck)),
    )


def passing_failure(truck: str, doing: str, reason: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"truck {truck}: the handler failed in {doing}: {reason}",
        remedy="read the handler's own log; trucker tries again, and shows no text of an exception, which may quote a "
        "row",
        code=FAILED,
    )
