"""The two kinds of sink: for handlers of every change, and for batchers of net changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from trucker.abilities import Abilities
from trucker.adapters.python import BATCHES_ABILITIES, EVENTS_ABILITIES
from trucker.change import INSERT, UPDATE, Changes
from trucker.errors import SinkError, TruckFailed
from trucker.handlers import RowRefused, SourceTransaction
from trucker.row_changes import RowChange
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import foreign_rows
from trucker.sinks.python.calls import BatchCall, BatchCalls, Call, EventCalls, staged_pieces
from trucker.sinks.python.documents import TruckDocument
from trucker.sinks.python.refusals import Letters, refusal, refused_row
from trucker.sinks.python.running_handler import FAILURES, RunningHandler
from trucker.sinks.python.sink import PythonSink, Resume, passing_failure
from trucker.sinks.target import Target

_PIECE_ROWS: Final = 1000
UNABLE_TO_EMPTY: Final = "TRK745"


class EventHandlerSink(PythonSink):
    """Guarantee: every change, in commit order truck by truck; at least once, or exactly once with the handler's own
    position."""

    abilities: ClassVar[Abilities] = EVENTS_ABILITIES

    def give(self, handler: RunningHandler, truck: str, delivery: Delivery, document: TruckDocument) -> TruckDocument:
        resume = self._resume.pop(truck, None)
        if resume is None or resume.delivery != delivery.name or handler.keeps_position:
            resume = Resume(delivery.name, 0, Letters.of(truck, delivery, document))
        letters = resume.letters

        def set_aside(call: Call, error: BaseException) -> None:
            reason = handler.reason(error)
            row = None
            if call.change is not None and call.method != "on_truncate":
                row = refused_row(call.target, call.method, *call.change, reason, snapshot=bool(delivery.snapshot))
            self._resume[truck] = Resume(delivery.name, call.unit, letters.before(call.unit))
            if not self._refusals.refused(truck, call.place, error):
                passing = passing_failure(truck, f"{call.method} of {call.target.table}", reason)
                raise TruckFailed(truck, passing) from None
            whole = isinstance(error, RowRefused) or not handler.keeps_position
            if row is None or letters.most is None or not whole:
                raise refusal(call.target, call.method, reason, row) from None
            letters.add(row, call.unit)

        loads = [load for load in delivery.loads_of(delivery.receipts) if load.target.truck == truck]
        calls = EventCalls(handler.defined, loads, self._read, piece_rows=_PIECE_ROWS)
        begin = resume.unit
        handler.perform(
            calls.of_copy(begin) if delivery.snapshot else calls.of_stream(begin), self._connection.parallel, set_aside
        )
        self._resume.pop(truck, None)
        letters.tell()
        return document.with_letters(letters.by_identity)

    def foreseen_calls(self, target: Target, changes: Sequence[Changes]) -> Iterator[tuple[str, str]]:
        defined = self.runnable(target.truck).defined
        calls = EventCalls(defined, [Load(target, ())], _reading(changes), piece_rows=_PIECE_ROWS)
        for call in calls.of_stream(0):
            (argument,) = call.arguments
            yield call.method, _shown(argument)


class BatcherSink(PythonSink):
    """Guarantee: net changes by key, at least once, or exactly once with the handler's own position."""

    abilities: ClassVar[Abilities] = BATCHES_ABILITIES

    def shaped(self, changes: Changes, target: Target) -> Changes:
        """Rows are whole, also in columns that were added after these changes."""
        inserts = np.where(changes.op == UPDATE, np.uint8(INSERT), changes.op)
        return replace(changes, op=inserts).reshaped(target.source)

    def begin_copies(self, truck: str, delivery: Delivery) -> None:
        for copy in delivery.copies:
            if copy.target.truck != truck or copy.ours or copy.adds:
                continue
            handler = self.opened(truck)
            if "is_empty" not in handler.defined:
                return
            try:
                is_empty = handler.invoke("is_empty", copy.target.table)
            except FAILURES as error:
                reason = handler.reason(error)
                raise TruckFailed(truck, passing_failure(truck, f"is_empty of {copy.target.table}", reason)) from None
            if not is_empty:
                raise foreign_rows(copy.target)

    def give(self, handler: RunningHandler, truck: str, delivery: Delivery, document: TruckDocument) -> TruckDocument:
        letters = Letters.of(truck, delivery, document)
        replaced = {target.table for target in delivery.replaced()}
        for load in delivery.loads():
            if load.target.truck != truck:
                continue
            if load.target.table in replaced:
                replaced.discard(load.target.table)
                document = self._emptied(handler, load, delivery, document)
                letters.emptied(load.target.source.table)
            for call in BatchCalls(load, self._read, batch_rows=self._connection.batch.rows).calls():
                self._call(handler, call, letters)
        letters.tell()
        return document.with_letters(letters.by_identity)

    def foreseen_calls(self, target: Target, changes: Sequence[Changes]) -> Iterator[tuple[str, str]]:
        self.runnable(target.truck)
        shaped = [self.shaped(each, target) for each in changes]
        for call in BatchCalls(Load(target, ()), _reading(shaped), batch_rows=self._connection.batch.rows).calls():
            for row in call.rows:
                yield call.method, f"{call.table}, {dict(row.row)!r}"

    def _emptied(
        self, handler: RunningHandler, load: Load, delivery: Delivery, document: TruckDocument
    ) -> TruckDocument:
        """Have the table emptied. A batcher that cannot do so may take the first copy of a table, and no other."""
        target = load.target
        if "truncate" in handler.defined:
            self._call(handler, BatchCall("truncate", target.table, (), target), None)
            return document
        before = document.copies.get(target.table)
        if load.truncates or before not in (None, delivery.snapshot):
            why = "was truncated at the source" if load.truncates else "is copied again"
            error = SinkError(
                f"table {target.table} {why}, and the batcher of truck {target.truck} has no truncate(table)",
                remedy="add truncate(self, table) to the class; or empty what it has written yourself, then run "
                f"`trucker reset --truck {target.truck}` and `trucker run`",
                code=UNABLE_TO_EMPTY,
            )
            raise TruckFailed(target.truck, error, target.source.table)
        document = replace(document, copies={**document.copies, target.table: delivery.snapshot})
        if before is None and not handler.keeps_position:
            self._folder.store(target.truck, document)  # before the first row is there
        return document

    def _call(self, handler: RunningHandler, call: BatchCall, letters: Letters | None) -> None:
        """Make a call; rows that are refused are looked for in halves. Raises `TruckFailed`."""
        error = _made(handler, call)
        if error is None:
            if letters is not None:
                letters.applied(call.target.source.table, [each.cells for each in call.rows])
            return
        truck, reason = call.target.truck, handler.reason(error)
        if not self._refusals.refused(truck, call.place, error):
            raise TruckFailed(truck, passing_failure(truck, f"{call.method} of {call.table}", reason))
        refused = list(_refused_rows(handler, call, error, letters))
        whole = isinstance(error, RowRefused) or (len(refused) < max(len(call.rows), 2) and not handler.keeps_position)
        for single, cause in refused:
            if isinstance(error, RowRefused) and not isinstance(cause, RowRefused):  # the store fails now
                passing = passing_failure(truck, f"{call.method} of {call.table}", handler.reason(cause))
                raise TruckFailed(truck, passing)
            changes, index = single.rows[0].change
            row = refused_row(call.target, call.method, changes, index, handler.reason(cause))
            if letters is None or letters.most is None or not whole:
                raise refusal(call.target, call.method, handler.reason(cause), row)
            letters.add(row, 0)
        if not call.rows:
            raise refusal(call.target, call.method, reason, None)


def _reading(changes: Sequence[Changes]) -> Callable[[Load], Iterator[pa.RecordBatch]]:
    """As from a spool."""
    return lambda load: (piece for each in changes for piece in staged_pieces(each))


def _shown(argument: object) -> str:
    """What a handler would get, for a person."""
    if isinstance(argument, SourceTransaction):
        return f"transaction {argument.xid}, committed at {argument.commit_lsn}"
    assert isinstance(argument, RowChange)
    sides = (("new", argument.new), ("old", argument.old))
    return ", ".join([str(argument.table), *(f"{name} {row!r}" for name, row in sides if row is not None)])


def _made(handler: RunningHandler, call: BatchCall) -> BaseException | None:
    """What a call raises; None where it is made."""
    try:
        handler.invoke(call.method, *call.arguments)
    except FAILURES as error:
        return error
    return None


def _refused_rows(
    handler: RunningHandler, call: BatchCall, error: BaseException, letters: Letters | None
) -> Iterator[tuple[BatchCall, BaseException]]:
    """The rows of a call that failed with which it fails alone, each as a call; the others are taken meanwhile."""
    if len(call.rows) <= 1:
        if call.rows:
            yield call, error
        return
    for half in call.halves():
        again = _made(handler, half)
        if again is not None:
            yield from _refused_rows(handler, half, again, letters)
        elif letters is not None:
            letters.applied(half.target.source.table, [each.cells for each in half.rows])
