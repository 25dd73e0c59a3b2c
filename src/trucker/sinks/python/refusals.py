"""Rows that a handler refuses: by `RowRefused`, or by raising something again and again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from trucker.change import DELETE, OPERATIONS, Changes
from trucker.errors import DataError, SinkError, TruckFailed
from trucker.handlers import RowRefused, SourceTransaction
from trucker.lsn import Lsn
from trucker.sinks.delivery import Delivery
from trucker.sinks.letters import Letter, Reason, Redriven, log_set_aside, name_row, too_many
from trucker.sinks.python.calls import typed
from trucker.sinks.python.documents import RefusedRow, TruckDocument
from trucker.sinks.python.running_handler import FAILURES, RunningHandler
from trucker.sinks.target import Target
from trucker.table import TableId

REFUSED: Final = "TRK744"

LetterIdentity = tuple[object, ...]


class Refusals:
    """Counts how often the same call has failed, for each truck."""

    def __init__(self, tries: int) -> None:
        self._tries = tries
        self._failing: dict[str, tuple[Hashable, int]] = {}

    def refused(self, truck: str, place: Hashable, error: BaseException) -> bool:
        """Whether it is not to be tried any more."""
        if isinstance(error, RowRefused):
            return True
        before, count = self._failing.get(truck, (None, 0))
        count = count + 1 if before == place else 1
        self._failing[truck] = (place, count)
        return count >= self._tries


@dataclass(slots=True)
class Letters:
    """One truck's dead letters while a delivery is given to its handler."""

    truck: str
    most: int | None
    by_identity: dict[LetterIdentity, RefusedRow] = field(default_factory=dict)
    fresh: dict[LetterIdentity, int] = field(default_factory=dict)
    """The unit of each that has come up in this delivery."""

    @classmethod
    def of(cls, truck: str, delivery: Delivery, document: TruckDocument) -> Letters:
        letters = {each.identity: each for each in document.letters}
        return cls(truck, delivery.batch.dead_letters.get(truck), letters)

    def add(self, row: RefusedRow, unit: int) -> None:
        """A row that was refused. Raises `TruckFailed` where there would be too many."""
        assert self.most is not None
        before = self.by_identity.get(row.identity)
        if before is not None:
            letter = replace(row.letter, number=before.letter.number, tries=before.letter.tries + 1)
            row = replace(row, letter=letter)
        self.by_identity[row.identity] = row
        self.fresh[row.identity] = unit
        if len(self.by_identity) > self.most:
            raise TruckFailed(self.truck, too_many(self.truck, self.most, row.letter.reason))

    def applied(self, source: TableId, cells: Sequence[tuple[str | None, ...]]) -> None:
        """Rows of a batcher that were taken: older letters of theirs are void."""
        if self.by_identity:
            for each in cells:
                self._remove(((source, each),))

    def emptied(self, source: TableId) -> None:
        """A batcher's table was emptied."""
        for identity in [name for name, each in self.by_identity.items() if each.letter.source == source]:
            self._remove(identity)

    def _remove(self, identity: LetterIdentity) -> None:
        self.by_identity.pop(identity, None)
        self.fresh.pop(identity, None)

    def before(self, unit: int) -> Letters:
        """Without those of this unit and later ones, which are given again."""
        late = {identity for identity, at in self.fresh.items() if at >= unit}
        rest = {identity: row for identity, row in self.by_identity.items() if identity not in late}
        return Letters(self.truck, self.most, rest, {name: at for name, at in self.fresh.items() if name not in late})

    def tell(self) -> None:
        log_set_aside([self.by_identity[identity].letter for identity in self.fresh])


def refused_row(
    target: Target, method: str, changes: Changes, index: int, reason: str, *, snapshot: bool = False
) -> RefusedRow:
    """The letter of one change."""
    one = changes.take(np.array([index], np.int64))
    deleted = int(one.op[0]) == DELETE
    rows = (one.old if deleted else one.new).to_pylist()[0]
    names = one.schema.key if deleted and one.schema.key else one.schema.names
    data = {name: rows[name] for name in names}
    letter = Letter(
        target.truck,
        target.source.table,
        target.table,
        one.schema.key,
        "delete" if deleted else "update" if OPERATIONS[int(one.op[0])] == "update" else "insert",
        data,
        Lsn(int(one.commit_lsn[0])),
        int(one.ordinal[0]),
        Reason("", reason),
    )
    return RefusedRow(letter, method, one, snapshot)


def refusal(target: Target, method: str, reason: str, row: RefusedRow | None) -> TruckFailed:
    """The error for a truck that stops at what its handler refuses."""
    what = f"table {target.table}: the handler refused {method}: {reason}"
    remedy = "correct the handler, or the row at the source"
    if row is None:
        error: SinkError = SinkError(what, remedy="correct the handler, then restart trucker", code=REFUSED)
    else:
        error = name_row(DataError(what, remedy=remedy, code=REFUSED), target, row.letter.key_row)
    return TruckFailed(target.truck, error, target.source.table)


def called_again(
    handler: RunningHandler, document: TruckDocument, chosen: Sequence[RefusedRow]
) -> tuple[TruckDocument, list[Redriven]]:
    """Call the handler for letters again, in the order of their positions; what is then stored, and the outcomes."""
    remaining: dict[LetterIdentity, RefusedRow] = {each.identity: each for each in document.letters}
    outcomes = []
    for row in sorted(chosen, key=lambda each: (each.letter.lsn, each.letter.ordinal)):
        try:
            _call(handler, row)
        except FAILURES as error:
            letter = replace(row.letter, tries=row.letter.tries + 1, reason=Reason("", handler.reason(error)))
            remaining[row.identity] = replace(row, letter=letter)
            outcomes.append(Redriven(letter, applied=False))
        else:
            del remaining[row.identity]
            outcomes.append(Redriven(row.letter, applied=True))
    return document.with_letters(remaining), outcomes


def _call(handler: RunningHandler, row: RefusedRow) -> None:
    letter = row.letter
    target = Target(letter.truck, row.changes.schema, letter.target)
    (change,) = typed(row.changes, target, snapshot=row.snapshot)
    if row.method == "upsert":
        handler.invoke("upsert", letter.target, [change.new])
    elif row.method == "delete":
        old: Mapping[str, object] = change.old or {}
        handler.invoke("delete", letter.target, [{name: old[name] for name in row.changes.schema.key}])
    else:
        time = None if row.snapshot else change.commit_time
        transaction = SourceTransaction(change.commit_lsn, time, change.xid, row.snapshot)
        calls = (("on_begin", transaction), (row.method, change), ("on_commit", transaction))
        for method, argument in calls:
            if method in handler.defined:
                handler.invoke(method, argument)
