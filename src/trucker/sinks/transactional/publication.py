"""Publishes a delivery in one transaction; where rows are refused, takes as many as it needs to find out which.

The first attempt commits the delivery as it is, without the rows that have dead letters (`sinks.letters`). Only if a
row is refused does it look closer: values that do not fit are found by the store, rows that break a constraint by
halving, each trial being a transaction that is rolled back. What a constraint refuses is tried once more at the end: it
may only have come too early. Then everything is committed, letters and positions included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic

from trucker.change import DELETE
from trucker.errors import DataError, TruckFailed
from trucker.failpoint import reach
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.ledger import Ledger, Plan
from trucker.sinks.letters import (
    Choice,
    Identity,
    Letter,
    Pending,
    Reason,
    Redriven,
    Row,
    log_set_aside,
    name_row,
    too_many,
)
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target, TruckTable
from trucker.sinks.transactional.sieve import Sieve
from trucker.sinks.transactional.staged_changes import StagedLoad, flat_rows, read_parts
from trucker.sinks.transactional.store import LetterStore, T, TransactionalStore, blaming
from trucker.sinks.transactional.trials import StoreIsolation, staged_rounds
from trucker.table import TableId

RowGroup = tuple[str, TableId, tuple[str, ...], bool]
"""Rows that are applied together: of a truck, of one source table, with these columns; staged, or (True) of letters."""

# So many rows that a constraint refuses are tried once more at the end.
_AGAIN: Final = 50
_NO_REASON: Final = Reason("", "")
_NOTHING: Final = Delivery(Batch(Lsn(0), Lsn(0)), Ledger(), Plan((), frozenset(), {}, {}, frozenset()), ())


class RowsRefused(Exception):
    """A table refuses rows of a group."""

    def __init__(self, group: RowGroup, load: StagedLoad, sieve: Sieve, error: DataError) -> None:
        super().__init__(error.message)
        self.group = group
        self.load = load
        self.sieve = sieve
        self.error = error

    @property
    def letters(self) -> bool:
        """Whether the rows are those of letters."""
        return self.group[3]


class _RollBack(Exception):
    """The trial is complete; its transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """How far a trial goes: to the rows of one group, so many of them; or to the end."""

    group: RowGroup | None = None
    limit: int | None = None


_TO_THE_END: Final = _Trial()


class Publication(Generic[T]):
    """One delivery, or the letters of one truck that are redriven.

    `letter_counts` is how many letters each truck has afterwards, `left` the redriven ones that are still refused.
    """

    def __init__(
        self, store: TransactionalStore[T], spool: Spool, delivery: Delivery, redriven: Sequence[Letter] = ()
    ) -> None:
        self.store = store
        self.spool = spool
        self.delivery = delivery
        self.redriven = redriven
        self.refused: dict[tuple[str, Identity], DataError] = {}
        self.sieves: dict[TruckTable, Sieve] = {}
        self.apart: set[str] = set()
        self.trial = _TO_THE_END
        self.letter_counts: Mapping[str, int] = {}
        self.remaining: list[Letter] = []

    def run(self, *, commit: bool = True) -> None:
        """Commit; with `commit` false, find out what would be committed."""
        attempt = self._commit if commit else self._try
        try:
            attempt()
            return
        except RowsRefused as refused:
            refusal = refused
        if self.store.has_savepoints:
            self._isolate(refusal, attempt)
            return
        self._set_aside(refusal)
        self._set_aside_all()
        self._try_constrained_again()
        attempt()

    def _isolate(self, refusal: RowsRefused, attempt: Callable[[], None]) -> None:
        """Do all again, each truck of which a row was refused apart."""
        while True:
            target = refusal.load.target
            if target.truck in self.apart:
                raise TruckFailed(target.truck, refusal.error, target.source.table)
            self.apart.add(target.truck)
            try:
                attempt()
                return
            except RowsRefused as refused:
                refusal = refused

    def _set_aside_all(self) -> None:
        while True:
            try:
                self._try()
                return
            except RowsRefused as refused:
                self._set_aside(refused)

    def _try_constrained_again(self) -> None:
        """What a constraint refuses may fit now that everything else is there."""
        constrained = [row for row, error in self.refused.items() if error.sqlstate.startswith("23")]
        for row in constrained if len(constrained) <= _AGAIN else ():
            error = self.refused.pop(row)
            try:
                self._try()
            except RowsRefused:
                self.refused[row] = error

    # -- transactions -------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        with self.store.transaction() as transaction:
            self._apply(transaction)
            reach("sink.commit.before")
        reach("sink.commit.after")

    def _try(self, trial: _Trial = _TO_THE_END) -> None:
        """Do all that a trial asks for, and roll it back; raises `RowsRefused` where it cannot be done."""
        self.trial = trial
        try:
            with self.store.transaction() as transaction:
                self._apply(transaction)
                raise _RollBack
        except _RollBack:
            return
        finally:
            self.trial = _TO_THE_END

    def _apply(self, transaction: T) -> None:
        """Everything but the commit."""
        store, plan, letters = self.store, self.delivery.plan, self.store.letter_store
        ledger = self.delivery.verify(store.load(transaction))
        counts = letters.count(transaction) if letters is not None else {}
        if letters is not None and counts:
            letters.forget(transaction, [copy.target.truck_table for copy in plan.copies])
        _TransactionRows(self, transaction, counts).run()
        reach("sink.position.before")
        store.store(transaction, ledger, plan)
        reach("sink.position.after")
        self.letter_counts = letters.count(transaction) if letters is not None else {}

    # -- which rows ---------------------------------------------------------------------------------------------------

    def _set_aside(self, refusal: RowsRefused) -> None:
        """Find the refused rows and set them aside; raises for a truck without dead letters."""
        target, sieve = refusal.load.target, refusal.sieve
        if self.store.letter_store is None:
            raise TruckFailed(target.truck, refusal.error, target.source.table)
        load = replace(refusal.load, batches=sieve.batches)
        most = self.delivery.batch.dead_letters.get(target.truck)
        refused = sorted((self.store.unfit_rows(load) or [self._by_halving(refusal)]), key=lambda each: each[0])
        # All are looked up before one is set aside: their numbers are those of the rows as they were tried.
        rows = sieve.rows([number for number, _ in refused])
        for row, (_, error) in zip(rows, refused, strict=True):
            if most is None and not self.redriven:
                key = {name: row.data[name] for name in target.source.key}
                raise TruckFailed(target.truck, name_row(error, target, key), target.source.table)
            self.refused[target.truck, _identity(target, row.data)] = error
            if not refusal.letters:
                cells = sieve.cells_of(row.data)
                table_sieve = self.sieves.setdefault(target.truck_table, sieve)
                table_sieve.aside.add(cells)
                if row.action == DELETE:
                    table_sieve.refused_deletes.add(cells)
        if most is not None and len(self.refused) > most + _AGAIN:
            raise TruckFailed(target.truck, too_many(target.truck, most, Reason.of(refusal.error)))

    def _by_halving(self, refusal: RowsRefused) -> tuple[int, DataError]:
        """The first row without which those before it are taken."""
        target = refusal.load.target
        fits, fails, error = 0, refusal.sieve.count(), refusal.error
        if not fails:
            raise TruckFailed(target.truck, error, target.source.table)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            try:
                self._try(_Trial(refusal.group, middle))
                fits = middle
            except RowsRefused as other:
                if other.group != refusal.group:
                    raise TruckFailed(target.truck, refusal.error, target.source.table) from None
                fails, error = middle, other.error
        return fails - 1, error

    def reason_of(self, truck: str, identity: Identity) -> Reason:
        """Why a row was refused."""
        error = self.refused.get((truck, identity))
        return _NO_REASON if error is None else Reason.of(error)


class _TransactionRows(Generic[T]):
    """The rows of one transaction."""

    def __init__(self, publication: Publication[T], transaction: T, counts: Mapping[str, int]) -> None:
        self._publication = publication
        self._store = publication.store
        self._delivery = publication.delivery
        self._transaction = transaction
        self._pending: dict[str, Pending] = {}
        redriven = {letter.truck for letter in publication.redriven}
        set_aside = {truck for truck, _ in publication.sieves}
        letters = publication.store.letter_store
        for truck in (redriven | {target.truck for target in self._delivery.batch.targets}) - publication.apart:
            if letters is not None and (truck in redriven | set_aside or counts.get(truck)):
                self._pending[truck] = Pending(tuple(letters.read(transaction, truck)))

    def run(self) -> None:
        delivery, transaction = self._delivery, self._transaction
        for copy in delivery.copies:
            if not copy.target.statement:
                with blaming(copy.target):
                    self._store.begin_copy(transaction, copy)
        due = {load.target: load for load in delivery.loads_of(delivery.receipts)}
        tables = [target for target in due if not target.statement]
        self._store.refuse_changed(transaction, tables, copied=bool(delivery.snapshot))
        for target in delivery.replaced():
            if not target.statement:
                with blaming(target):
                    self._store.empty(transaction, target)
        loads = [load for target in self._store.in_order(transaction, tables) for load in self._loads(due[target])]
        if not delivery.snapshot:
            # Part by part: a row may leave one of the tables that share one and come to another.
            loads.sort(key=lambda load: load.part)
        apart = self._publication.apart
        together = [load for load in loads if load.target.truck not in apart]
        for load in together:
            with blaming(load.target):
                self._fold(load)
        for load in together:
            self._apply(load, self._sieve(load))
        for truck in sorted(apart):
            self._isolate(truck, [load for load in loads if load.target.truck == truck])
        if statements := [load for target, load in due.items() if target.statement]:
            self._store.run_statements(transaction, statements)
        for truck, pending in self._pending.items():
            self._apply_letters(truck, pending)
            self._store_letters(truck, pending)

    # -- staged rows ---------------------------------------------------------------------------------------------------

    def _loads(self, load: Load) -> Iterator[StagedLoad]:
        """What is due for a target: at once, but part by part where other tables' rows are in its table, too."""
        target, snapshot = load.target, bool(self._delivery.snapshot)
        alone = self._pending.keys() | self._publication.apart
        by_part = target.shared and target.truck not in alone and not snapshot
        groups = [(receipt,) for receipt in load.parts] if by_part else [load.parts] if load.parts else []
        for receipts in groups:
            yield StagedLoad(
                target,
                [receipt.staged for receipt in receipts],
                partial(read_parts, self._publication.spool, receipts),
                receipts[0].part if by_part else 0,
                load.truncates,
                # In a table that others' rows are in, too, a key may be there already; and SQL may give one twice.
                copied=snapshot and not (target.shared or target.strict),
            )

    def _sieve(self, load: StagedLoad) -> Sieve:
        return self._publication.sieves.get(load.target.truck_table) or Sieve(load)

    def _fold(self, load: StagedLoad) -> None:
        pending, target = self._pending.get(load.target.truck), load.target
        if pending is None:
            return
        if load.truncates:
            pending.clear(target.source.table)
        sieve = self._sieve(load)
        sieve.aside |= {sieve.cells_of(letter.data) for letter in pending.of(target)}
        if sieve.aside and load.rounds:
            self._publication.sieves[target.truck_table] = sieve
            reason_of = partial(self._publication.reason_of, target.truck)
            sieve.fold(self._store, self._transaction, pending, reason_of)

    def _apply(self, load: StagedLoad, sieve: Sieve, *, letters: bool = False) -> None:
        """Apply what the trial wants of these rows; it ends here where it wants no more."""
        if not load.rounds:
            return
        target, trial = load.target, self._publication.trial
        group = (target.truck, target.source.table, target.source.names, letters)
        last = trial.group == group
        sieve.limit = trial.limit if last else None
        try:
            with blaming(target):
                self._store.apply(self._transaction, replace(load, batches=sieve.batches))
        except DataError as error:
            raise RowsRefused(group, load, sieve, error) from None
        finally:
            sieve.limit = None
        if last:
            raise _RollBack

    def _isolate(self, truck: str, loads: Sequence[StagedLoad]) -> None:
        """Apply the rows of one truck, or letters of it that are redriven, so that refused rows are found."""
        store, transaction, letters = self._store, self._transaction, self._store.letter_store
        redriven = [letter for letter in self._publication.redriven if letter.truck == truck]
        most = self._delivery.batch.dead_letters.get(truck)
        stored = redriven or (list(letters.read(transaction, truck)) if letters is not None else [])
        isolation = StoreIsolation(store, transaction, truck, stored, most)
        if redriven:
            isolation.redrive(redriven)
            self._publication.remaining = isolation.pending.changed
        else:
            targets = [load.target for load in loads]
            emptied = [load.target.source.table for load in loads if load.truncates]
            isolation.run(targets, partial(staged_rounds, store, transaction, loads), emptied)
        if letters is not None:
            self._store_letters(truck, isolation.pending)

    # -- letters ------------------------------------------------------------------------------------------------------

    def _apply_letters(self, truck: str, pending: Pending) -> None:
        """Apply the letters that the batch has changed, and those to be redriven, but for those known to be refused."""
        publication = self._publication
        again = {letter.number: letter for letter in publication.redriven if letter.truck == truck}
        for letter in pending.numbered(again):
            pending.change(letter, again[letter.number])
        groups: dict[tuple[TableId, tuple[str, ...]], list[Letter]] = defaultdict(list)
        publication.remaining = []
        for letter in pending.changed:
            error = publication.refused.get((truck, letter.identity))
            if error is None:
                groups[letter.target, tuple(letter.data)].append(letter)
                continue
            renewed = replace(letter, reason=Reason.of(error))
            pending.change(letter, renewed)
            publication.remaining.append(renewed)
        by_target = {letters[0].as_target(): letters for letters in groups.values()}
        for target in self._store.in_order(self._transaction, list(by_target)):
            letters = by_target[target]
            load = flat_rows(target, [letter.data for letter in letters], [letter.deletes for letter in letters])
            self._apply(load, Sieve(load), letters=True)
            for letter in letters:
                pending.remove(letter)

    def _store_letters(self, truck: str, pending: Pending) -> None:
        """Store a truck's changed letters. Raises where the truck exceeds its limit."""
        store, most = self._store.letter_store, self._delivery.batch.dead_letters.get(truck)
        assert store is not None
        if pending.gone:
            store.remove(self._transaction, pending.gone)
        changed = pending.changed
        new = [letter for letter in changed if not letter.number]
        if most is not None and new and len(pending) > most:
            raise TruckFailed(truck, too_many(truck, most, changed[-1].reason))
        for letter in changed:
            store.put(self._transaction, letter)
        log_set_aside(new)


def redrive(store: TransactionalStore[T], spool: Spool, choice: Choice, *, dry_run: bool) -> list[Redriven]:
    """Redrive the chosen letters, each truck in its own transaction; returns the outcome of each letter."""
    letters, outcomes = store.letter_store, list[Redriven]()
    for truck in choice.trucks if letters is not None else ():
        chosen = [replace(letter, tries=letter.tries + 1) for letter in _chosen(store, letters, truck, choice)]
        if not chosen:
            continue
        publication = Publication(store, spool, _NOTHING, chosen)
        publication.run(commit=not dry_run)
        remaining = {letter.number: letter for letter in publication.remaining}
        outcomes += [
            Redriven(remaining.get(letter.number, letter), letter.number not in remaining) for letter in chosen
        ]
    return outcomes


def _chosen(
    store: TransactionalStore[T], letters: LetterStore[T] | None, truck: str, choice: Choice
) -> Sequence[Letter]:
    if letters is None:
        return ()
    with store.transaction() as transaction:
        stored = letters.read(transaction, truck) if letters.count(transaction) else ()
        chosen = [letter for letter in stored if choice.takes(letter)]
    return sorted(chosen, key=lambda letter: (letter.lsn, letter.ordinal, letter.number))


def _identity(target: Target, row: Row) -> Identity:
    names = target.source.key or tuple(sorted(row))
    return target.source.table, tuple(row[name] for name in names)
