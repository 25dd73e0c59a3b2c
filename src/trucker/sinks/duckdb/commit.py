"""One batch, one transaction; and, where rows are refused, as many as it takes to find out which.

The first try commits the batch as it is, rows of letters (`sinks.letters`) kept out. Only if a row is refused does it
get careful: values that do not fit are found by one query, rows that break a constraint by halves, each try being
a transaction that is rolled back. What a constraint refuses is tried once more at the end of all: it may only have come
too early. Then everything is committed, letters and positions included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import duckdb
import pyarrow as pa

from trucker.change import DELETE, INSERT, UPDATE, Lsn, TableId
from trucker.errors import DataError, SinkError, TruckFailed
from trucker.failpoint import reach
from trucker.sinks.batch import Batch, Receipt
from trucker.sinks.delivery import Delivery, Load
from trucker.sinks.duckdb.apply import Applier, StagedLoad
from trucker.sinks.duckdb.bookkeeping import Bookkeeping
from trucker.sinks.duckdb.identity import Identities
from trucker.sinks.duckdb.letter_table import LetterTable
from trucker.sinks.duckdb.output_sql import Outputs
from trucker.sinks.duckdb.session import Session, run
from trucker.sinks.duckdb.sieve import Sieve
from trucker.sinks.duckdb.staging import MOVE, StagedPart, later_rounds
from trucker.sinks.duckdb.table import Table, constraint_of, has_keys, is_empty, table_of
from trucker.sinks.ledger import Copy, Ledger, Plan, foreign_rows
from trucker.sinks.letters import Choice, Identity, Letter, Pending, Reason, Redriven, name_row, too_many
from trucker.sinks.spool import Spool
from trucker.sinks.target import Target, TruckTable

VALUES: Final[tuple[type[duckdb.Error], ...]] = (duckdb.DataError, duckdb.InvalidInputException)
Place = tuple[TableId, tuple[str, ...], bool]
"""Rows of one source table with these columns: staged ones, or (True) those of letters."""

# So many rows that a constraint refuses are tried once more at the end.
_AGAIN: Final = 50
_NO_REASON: Final = Reason("", "")
_NOTHING: Final = Delivery(Batch(Lsn(0), Lsn(0)), Ledger(), Plan((), frozenset(), {}, {}, frozenset()), ())


@dataclass(frozen=True, slots=True)
class Stores:
    """What a sink has its commits use."""

    session: Session
    spool: Spool
    books: Bookkeeping
    letters: LetterTable
    identities: Identities
    timeout: float | None = None


class Refused(Exception):
    """A table refuses rows: those staged for the target, or those of letters."""

    def __init__(self, target: Target, sieve: Sieve, error: DataError, *, letters: bool, table: Table) -> None:
        super().__init__(error.message)
        self.target = target
        self.sieve = sieve
        self.error = error
        self.letters = letters
        self.table = table

    def place(self) -> Place:
        return self.target.source.table, self.target.source.names, self.letters


class _Enough(Exception):
    """A try has shown what it was made for."""


@dataclass(slots=True)
class _Try:
    """How far a try goes: to the rows of one place, so many of them; or to the end (`place` None)."""

    place: Place | None = None
    truck: str = ""
    limit: int | None = None

    def stops(self, found: Place, truck: str) -> bool:
        return self.place == found and self.truck == truck


class Commit:
    """A delivery, or letters of one truck to be redriven."""

    def __init__(self, stores: Stores, delivery: Delivery, redriven: Sequence[Letter] = ()) -> None:
        self.stores = stores
        self.delivery = delivery
        self.batch = delivery.batch
        self.redriven = redriven
        self.bad: dict[tuple[str, Identity], DataError] = {}
        self.sieves: dict[TruckTable, Sieve] = {}
        self.attempt = _Try()
        self.counts: dict[str, int] = {}
        self.left: list[Letter] = []

    def run(self, *, keep: bool = True) -> None:
        """Commit; with `keep` false, find out what would be committed."""
        try:
            if keep:
                self._transaction()
                return
            self._rolled_back(_Try())
        except Refused as refused:
            self._learn(refused)
        else:
            return
        self._until_it_works()
        self._forgive()
        if keep:
            self._transaction()
        else:
            self._rolled_back(_Try())

    def _until_it_works(self) -> None:
        while True:
            try:
                self._rolled_back(_Try())
                return
            except Refused as refused:
                self._learn(refused)

    def _forgive(self) -> None:
        """What a constraint refuses may fit now that everything else is there."""
        constrained = [found for found, error in self.bad.items() if error.sqlstate.startswith("23")]
        for found in constrained[:_AGAIN] if len(constrained) <= _AGAIN else ():
            error = self.bad.pop(found)
            try:
                self._rolled_back(_Try())
            except Refused:
                self.bad[found] = error

    # -- transactions -------------------------------------------------------------------------------------------------

    def _transaction(self) -> None:
        with self.stores.session.transaction() as connection:
            self._all(connection)
            reach("sink.commit.before")
        reach("sink.commit.after")

    def _rolled_back(self, how: _Try) -> None:
        """Do all that a try asks for, and take it back; raises `Refused` where it cannot be done."""
        self.attempt = how
        try:
            with self.stores.session.transaction() as connection:
                self._all(connection)
                raise _Enough
        except _Enough:
            return
        finally:
            self.attempt = _Try()

    def _all(self, connection: duckdb.DuckDBPyConnection) -> None:
        stores, plan = self.stores, self.delivery.plan
        self.delivery.verify(stores.books.load(connection))
        counts = stores.letters.count(connection)
        if counts:
            stores.letters.forget(connection, [copy.target.truck_table for copy in plan.copies])
        _Work(self, connection, plan, counts).run()
        reach("sink.position.before")
        stores.books.store(connection, plan)
        reach("sink.position.after")
        self.counts = stores.letters.count(connection)

    # -- which rows ---------------------------------------------------------------------------------------------------

    def _learn(self, refused: Refused) -> None:
        """Find rows that are refused, and set them aside; raises for a truck that does not do that."""
        found = self._unfit(refused) or [self._by_halves(refused)]
        target, sieve = refused.target, refused.sieve
        most = self.batch.dead_letters.get(target.truck)
        for number, error in found:
            (row,) = sieve.rows([number])
            cells = sieve.identity(row)
            key = {name: row.data[name] for name in target.source.key}
            if most is None and not self.redriven:
                raise TruckFailed(target.truck, name_row(error, target, key), target.source.table)
            self.bad[target.truck, _identity(target, row.data)] = error
            if not refused.letters:
                kept = self._sieve(target, refused.sieve)
                kept.aside.add(cells)
                if row.action == DELETE:
                    kept.stuck.add(cells)
        if most is not None and len(self.bad) > most + _AGAIN:
            raise TruckFailed(target.truck, too_many(target.truck, most, Reason.of(refused.error)))

    def _sieve(self, target: Target, sieve: Sieve) -> Sieve:
        return self.sieves.setdefault((target.truck, target.source.table), sieve)

    def _unfit(self, refused: Refused) -> list[tuple[int, DataError]]:
        """All rows with a value that does not fit its column, by one query."""
        with self.stores.session.use() as connection:
            batches = refused.sieve.batches
            load = StagedLoad(refused.target, [StagedPart(None, rounds=1)], batches)
            return Applier(connection, refused.table, load).unfit()

    def _by_halves(self, refused: Refused) -> tuple[int, DataError]:
        """The first row without which those before it are taken."""
        fine, fails, error = 0, refused.sieve.count(), refused.error
        if not fails:
            raise TruckFailed(refused.target.truck, refused.error, refused.target.source.table)
        while fails - fine > 1:
            middle = (fine + fails) // 2
            try:
                self._rolled_back(_Try(refused.place(), refused.target.truck, middle))
                fine = middle
            except Refused as again:
                if again.place() != refused.place():
                    raise TruckFailed(refused.target.truck, refused.error, refused.target.source.table) from None
                fails, error = middle, again.error
        return fails - 1, error

    # -- for the work -------------------------------------------------------------------------------------------------

    def why(self, truck: str, identity: Identity) -> Reason:
        error = self.bad.get((truck, identity))
        return _NO_REASON if error is None else Reason.of(error)


class _Work:
    """All of one transaction but its end."""

    def __init__(
        self, commit: Commit, connection: duckdb.DuckDBPyConnection, plan: Plan, counts: Mapping[str, int]
    ) -> None:
        self._commit = commit
        self._batch = commit.batch
        self._connection = connection
        self._plan = plan
        trucks = {target.truck for target in self._batch.targets} | {letter.truck for letter in commit.redriven}
        careful = {truck for truck, _ in commit.sieves} | {letter.truck for letter in commit.redriven}
        self._pending: dict[str, Pending] = {}
        for truck in trucks:
            if counts.get(truck) or truck in careful:
                stored = commit.stores.letters.load(connection, [truck])
                self._pending[truck] = Pending(stored)

    def run(self) -> None:
        for copy in self._plan.copies:
            with blaming(copy.target):
                self._begin_copy(copy)
        delivery = self._commit.delivery
        due = {load.target: load for load in delivery.loads_of(delivery.receipts)}
        tables = [target for target in due if not target.statement]
        self._refuse_changed(tables)
        if self._batch.snapshot:
            self._empty([target for target in delivery.replaced() if not target.statement])
        loads = [load for target in self._ordered(tables) for load in self._loads(due[target])]
        if not self._batch.snapshot:
            # Part by part: a row may leave one of the tables that share one and come to another.
            loads = sorted(loads, key=lambda load: load.part)
        for load in loads:
            with blaming(load.target):
                self._fold(load)
        for load in loads:
            with blaming(load.target):
                self._apply(load)
        outputs = [load for target, load in due.items() if target.statement]
        if outputs:
            stores = self._commit.stores
            Outputs(self._connection, stores.spool, stores.timeout).run(outputs)
            stores.session.tables.clear()  # they may be others now
        for truck, pending in self._pending.items():
            self._drive(truck, pending)
            self._commit.stores.letters.store(self._connection, truck, pending, self._batch.dead_letters.get(truck))

    def _refuse_changed(self, targets: Sequence[Target]) -> None:
        """Raise where a table is not the one that trucker has filled. Asked once after the file is opened: no other
        process can alter it meanwhile."""
        stores, copied = self._commit.stores, bool(self._batch.snapshot)
        unknown = [target for target in targets if copied or target.table not in stores.session.tables]
        for target, reason in stores.identities.refuse_written(self._connection, unknown, copied=copied):
            raise TruckFailed(target.truck, reason)

    def _table(self, target: Target) -> Table:
        tables: dict[TableId, Table] = self._commit.stores.session.tables
        known = tables.get(target.table)
        if known is None or not known.types.keys() >= set(target.source.names):
            known = tables[target.table] = table_of(self._connection, target)
        return known

    def _empty(self, targets: Sequence[Target]) -> None:
        """All of a copy comes now, and what an earlier one brought goes with the same commit."""
        for target in targets:
            run(self._connection, f"DELETE FROM {self._table(target).sql}")

    def _begin_copy(self, copy: Copy) -> None:
        if copy.target.statement:
            return
        table = self._table(copy.target)
        if not copy.ours and not is_empty(self._connection, table):
            raise foreign_rows(copy.target)
        if not copy.adds and has_keys(self._connection, copy.target.table):
            run(self._connection, f"DELETE FROM {table.sql}")

    def _ordered(self, targets: Sequence[Target]) -> list[Target]:
        """Tables that others refer to come first."""
        if len(targets) < 2:
            return list(targets)
        rows = run(
            self._connection,
            "SELECT schema_name, table_name, referenced_table FROM duckdb_constraints() "
            "WHERE database_name = current_database() AND constraint_type = 'FOREIGN KEY'",
        )
        parents: dict[TableId, set[TableId]] = defaultdict(set)
        for schema, child, parent in rows:
            if child != parent:
                parents[TableId(schema, child)].add(TableId(schema, parent))
        left, done = list(targets), list[Target]()
        while left:
            waiting = {target.table for target in left}
            free = [target for target in left if not parents[target.table] & waiting] or left[:1]
            done += free
            left = [target for target in left if target not in free]
        return done

    # -- staged rows ---------------------------------------------------------------------------------------------------

    def _loads(self, load: Load) -> Iterator[StagedLoad]:
        """What is due for a target: at once, but part by part where other tables' rows are in its table, too."""
        target, parts = load.target, load.parts
        apart = target.shared and target.truck not in self._pending and not self._batch.snapshot
        spool = self._commit.stores.spool
        for some in [(receipt,) for receipt in parts] if apart else [parts] if parts else []:
            staged, number = [receipt.staged for receipt in some], some[0].part if apart else 0
            yield StagedLoad(target, staged, partial(_rows, spool, some), number, load.truncates)

    def _sieve(self, load: StagedLoad) -> Sieve:
        known = self._commit.sieves.get((load.target.truck, load.target.source.table))
        return known or Sieve(load.target, load.batches, moves=load.count(MOVE) > 0)

    def _fold(self, load: StagedLoad) -> None:
        pending, target = self._pending.get(load.target.truck), load.target
        if pending is None:
            return
        if load.truncated:
            pending.clear(target.source.table)
        sieve = self._sieve(load)
        letters = pending.of(target)
        sieve.aside |= {sieve.cells_of(letter) for letter in letters}
        if sieve.aside and load.rounds:
            self._commit.sieves[target.truck, target.source.table] = sieve
            sieve.fold(
                self._connection, self._table(target), pending, lambda found: self._commit.why(target.truck, found)
            )

    def _apply(self, load: StagedLoad) -> None:
        sieve = self._sieve(load)
        place = (load.target.source.table, load.target.source.names, False)
        # In a table that others' rows are in, too, a key may be there already; and SQL may give one twice.
        copied = bool(self._batch.snapshot) and not (load.target.shared or load.target.strict)
        self._limited(place, load, sieve, copied=copied, letters=False)

    def _limited(
        self,
        place: Place,
        load: StagedLoad,
        sieve: Sieve,
        *,
        copied: bool,
        letters: bool,
    ) -> None:
        """Apply what a try wants of these rows; it ends here where it wanted no more."""
        how = self._commit.attempt
        last = how.stops(place, load.target.truck)
        sieve.limit = how.limit if last else None
        table = self._table(load.target)
        applier = Applier(self._connection, table, replace(load, batches=sieve.batches))
        try:
            applier.copy() if copied else applier.run()
        except (*VALUES, duckdb.ConstraintException) as error:
            raise Refused(load.target, sieve, explained(error, load.target), letters=letters, table=table) from None
        finally:
            sieve.limit = None
        if last:
            raise _Enough

    # -- letters ------------------------------------------------------------------------------------------------------

    def _drive(self, truck: str, pending: Pending) -> None:
        """Apply the letters that the batch has changed, and those to be redriven, but for those known to be refused."""
        commit = self._commit
        again = {letter.number: letter for letter in commit.redriven if letter.truck == truck}
        for letter in pending.numbered(again):
            pending.change(letter, again[letter.number])
        todo, left = list[Letter](), list[Letter]()
        for letter in pending.changed:
            bad = commit.bad.get((truck, letter.identity))
            if bad is None:
                todo.append(letter)
            else:
                renewed = replace(letter, reason=Reason.of(bad))
                pending.change(letter, renewed)
                left.append(renewed)
        groups: dict[tuple[TableId, tuple[str, ...]], list[Letter]] = defaultdict(list)
        for letter in todo:
            groups[letter.target, tuple(letter.data)].append(letter)
        targets = {own[0].as_target(): own for own in groups.values()}
        for target in self._ordered(list(targets)):
            own = targets[target]
            with blaming(target):
                load = _letters_load(target, own)
                sieve = Sieve(target, load.batches, moves=False)
                place = (target.source.table, target.source.names, True)
                self._limited(place, load, sieve, copied=False, letters=True)
            for letter in own:
                pending.remove(letter)
        commit.left = left


def redrive(stores: Stores, choice: Choice, *, dry_run: bool) -> list[Redriven]:
    """What became of the chosen letters, truck by truck, each in a transaction of its own."""
    found: list[Redriven] = []
    for truck in choice.trucks:
        with stores.session.use() as connection:
            letters = stores.letters.load(connection, [truck]) if stores.letters.count(connection) else []
        chosen = [replace(letter, tries=letter.tries + 1) for letter in letters if choice.takes(letter)]
        if not chosen:
            continue
        commit = Commit(stores, _NOTHING, chosen)
        commit.run(keep=not dry_run)
        left = {letter.number: letter for letter in commit.left}
        found += [Redriven(left.get(letter.number, letter), letter.number not in left) for letter in chosen]
    return found


def _letters_load(target: Target, letters: Sequence[Letter]) -> StagedLoad:
    """Letters of one target with the same columns, as if they had been staged."""
    names = target.source.names
    cells = {
        f"n{number}": pa.array([letter.data[name] for letter in letters], pa.string())
        for number, name in enumerate(names)
    }
    count = len(letters)
    deletes = [letter.deletes for letter in letters]
    if target.source.key:
        keys = {f"k{number}": pa.nulls(count, pa.string()) for number in range(len(target.source.key))}
        first = {
            "action": pa.array([DELETE if gone else UPDATE for gone in deletes], pa.uint8()),
            "kept": pa.nulls(count, pa.string()),
            "round": pa.array([0] * count, pa.int32()),
            **keys,
        }
    else:
        first = {"delta": pa.array([-1 if gone else 1 for gone in deletes], pa.int32())}
    columns = {**first, **cells}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    actions = {DELETE: sum(deletes), INSERT: count - sum(deletes)}
    return StagedLoad(target, [StagedPart(None, rounds=1, actions=actions)], lambda: iter([batch]))


def _identity(target: Target, data: Mapping[str, str | None]) -> Identity:
    names = target.source.key or tuple(sorted(data))
    return target.source.table, tuple(data[name] for name in names)


def explained(error: duckdb.Error, target: Target) -> DataError:
    """Why rows are refused, without DuckDB's words: they may hold values (I10)."""
    where = f"table {target.table}"
    if not isinstance(error, duckdb.ConstraintException):
        return DataError(
            f"{where} refuses a row of the source: {type(error).__name__}", code="TRK447", sqlstate="22000"
        )
    text = str(error)
    state, what = constraint_of(text)
    column = text.rsplit(".", 1)[-1].strip() if state == "23502" else None
    column = column if column in target.source.names else None
    of = f" on column {column}" if column else ""
    return DataError(
        f"{where} has {what}{of} that a row of the source violates (SQLSTATE {state})",
        remedy="drop the constraint; tables that trucker creates have none",
        code="TRK448",
        sqlstate=state,
        column=column,
    )


def _rows(spool: Spool, receipts: Sequence[Receipt]) -> Iterator[pa.RecordBatch]:
    """All rows; each part's rounds come after those of the part before."""
    before = 0
    for receipt in receipts:
        part: StagedPart = receipt.staged
        if part.rows is not None:
            for batch in spool.read(part.rows):
                yield later_rounds(batch, before)
        before += part.rounds


@contextmanager
def blaming(target: Target) -> Iterator[None]:
    """A permanent failure is the target's truck's alone."""
    try:
        yield
    except TruckFailed:
        raise
    except SinkError as error:
        if error.transient:
            raise
        raise TruckFailed(target.truck, error, target.source.table) from error
