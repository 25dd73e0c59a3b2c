"""Staged rows that are tried by halves, for stores with savepoints (`transactional.isolation`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, UPDATE
from trucker.errors import DataError, SinkError, TruckFailed
from trucker.sinks.letters import Letter, Reason, Row
from trucker.sinks.target import Target
from trucker.sinks.transactional.isolation import Check, Isolation, TrialRow, TrialRows
from trucker.sinks.transactional.staged_changes import (
    MOVE,
    StagedLoad,
    StagedPart,
    StagedRow,
    flat_rows,
    key_positions,
    parse_rows,
)
from trucker.sinks.transactional.store import T, TransactionalStore, blaming
from trucker.table import TableId

_UNKNOWN = Reason("", "")


@dataclass(frozen=True)
class _Row(TrialRow):
    """`staged` is the row as it was staged."""

    staged: StagedRow


class StagedTrial(TrialRows, Generic[T]):
    """The rows of one round. Its batch has `staged_changes`' columns; a row's number is its place in there."""

    def __init__(self, store: TransactionalStore[T], transaction: T, load: StagedLoad, batch: pa.RecordBatch) -> None:
        self.target = load.target
        self._store = store
        self._transaction = transaction
        self._load = load
        self._batch = batch
        self._present = np.ones(len(batch), np.bool_)
        source = load.target.source
        self._keyed = bool(source.key)
        # The columns by which rows are known, in the columns' order: those of the key, or all.
        self._places = key_positions(source) or tuple(range(len(source.names)))
        self._known_by = [source.names[place] for place in self._places]

    # -- trying -------------------------------------------------------------------------------------------------------

    def span(self, *, deletes: bool) -> tuple[int, int] | None:
        numbers = np.flatnonzero(self._present & (self._deletes == deletes))
        return (int(numbers[0]), int(numbers[-1])) if len(numbers) else None

    def apply(self, first: int, last: int, *, deletes: bool) -> Check:
        chosen = self._present & (self._deletes == deletes)
        numbers = np.flatnonzero(chosen[first : last + 1]) + first
        if len(numbers):
            batch = self._batch.take(pa.array(numbers))
            load = replace(self._load, parts=[self._part(batch)], batches=lambda: iter([batch]), truncates=False)
            with blaming(self.target):
                self._store.apply(self._transaction, load)
        return _nothing

    def _part(self, batch: pa.RecordBatch) -> StagedPart:
        if not self._keyed:
            gone = int(np.count_nonzero(np.asarray(batch.column("delta")) < 0))
            return StagedPart(None, rounds=1, actions={DELETE: gone, INSERT: len(batch) - gone})
        kept = Counter(mask for mask in batch.column("kept").to_pylist() if mask is not None)
        return StagedPart(None, rounds=1, actions=Counter(batch.column("action").to_pylist()), kept=kept)

    @property
    def _deletes(self) -> Any:
        if self._keyed:
            return np.asarray(self._batch.column("action")) == DELETE
        return np.asarray(self._batch.column("delta")) < 0

    # -- looking ------------------------------------------------------------------------------------------------------

    def row(self, number: int) -> TrialRow:
        (row,) = self._rows([number])
        return row

    def _rows(self, numbers: Sequence[int]) -> list[_Row]:
        staged = parse_rows(self.target.source, self._batch.take(pa.array(numbers, pa.int64())))
        return [
            _Row(number, row.action, row.cells, row.lsn, row.ordinal, row)
            for number, row in zip(numbers, staged, strict=True)
        ]

    def matching(self, letters: Sequence[Letter], *, old_key: bool = False) -> list[TrialRow]:
        wanted = {tuple(letter.data[name] for name in self._known_by) for letter in letters}
        if not old_key:
            return list(self._rows(self._among(self._columns("n"), wanted, self._present)))
        moves = self._moves
        rows = self._rows(self._among(self._columns("k"), wanted, moves)) if moves.any() else []
        return [replace(row, cells={**row.cells, **row.staged.old_key}) for row in rows]

    def _columns(self, side: str) -> list[str]:
        return [f"n{place}" for place in self._places] if side == "n" else [f"k{i}" for i in range(len(self._places))]

    def _among(self, columns: Sequence[str], wanted: Collection[tuple[Any, ...]], chosen: Any) -> list[int]:
        """The numbers of the chosen rows whose cells in these columns are wanted."""
        # The first column is compared by Arrow; Python looks at the few rows that remain.
        first = pa.array(list({cells[0] for cells in wanted}), pa.string())
        likely = chosen & pc.is_in(self._batch.column(columns[0]), value_set=first).to_numpy(zero_copy_only=False)
        numbers = np.flatnonzero(likely)
        cells = [self._batch.column(name).take(pa.array(numbers)).to_pylist() for name in columns]
        return [int(n) for n, row in zip(numbers, zip(*cells, strict=True), strict=True) if row in wanted]

    def letter(self, row: TrialRow, reason: Reason = _UNKNOWN) -> Letter:
        target, staged = self.target, self._staged(row)
        data = self._store.as_stored(self._transaction, target, row.cells)
        key, source = target.source.key, target.source.table
        return Letter(target.truck, source, target.table, key, staged.operation, data, row.lsn, row.ordinal, reason)

    def whole(self, row: TrialRow) -> Row:
        missing = () if self._is_whole(row) else [name for name in self.target.source.names if name not in row.cells]
        if not missing:
            return self._store.as_stored(self._transaction, self.target, row.cells)
        current = self._current(row.cells)
        if current is None:
            raise _lost(self.target)
        data = {name: current[name] if name in missing else row.cells[name] for name in self.target.source.names}
        return self._store.as_stored(self._transaction, self.target, data)

    def sent(self, row: TrialRow) -> Sequence[str] | None:
        return self._staged(row).sent

    def kept(self, row: TrialRow) -> Sequence[str] | None:
        staged = self._staged(row)
        if staged.action != MOVE:
            return None
        return [name for name in self.target.source.names if name not in staged.cells]

    def _staged(self, row: TrialRow) -> StagedRow:
        assert isinstance(row, _Row)
        return row.staged

    def _is_whole(self, row: TrialRow) -> bool:
        staged = self._staged(row)
        return staged.action == DELETE or staged.sent is None

    def _current(self, row: Row) -> Row | None:
        key = {name: row[name] for name in self.target.source.key}
        return self._store.current_row(self._transaction, self.target, key)

    # -- changing -----------------------------------------------------------------------------------------------------

    @property
    def _moves(self) -> Any:
        if not self._keyed:
            return np.zeros(len(self._batch), np.bool_)
        return self._present & (np.asarray(self._batch.column("action")) == MOVE)

    def settle_moves(self, lent: Mapping[int, Row]) -> None:
        numbers = [int(number) for number in np.flatnonzero(self._moves)]
        if not numbers:
            return
        added: list[dict[str, Any]] = []
        for row in self._rows(numbers):
            before = (
                lent.get(row.number, {})
                if row.staged.sent is None or row.number in lent
                else self._current(row.staged.old_key)
            )
            if before is None:
                if self.target.awaits_rows:
                    continue
                raise _lost(self.target)
            added.append(self._cells(row, row.staged.old_key, DELETE, DELETE))
            added.append(self._cells(row, {**before, **row.cells}, UPDATE, INSERT))
        self._present[numbers] = False
        more = pa.RecordBatch.from_pylist(added, schema=self._batch.schema)
        both = pa.Table.from_batches([self._batch, more]).combine_chunks().to_batches()
        self._batch = both[0]
        self._present = np.concatenate([self._present, np.ones(len(added), np.bool_)])

    def _cells(self, row: _Row, data: Row, action: int, operation: int) -> dict[str, Any]:
        """A row of the batch that says what is to be done for a part of a move."""
        cells = {f"n{number}": data.get(name) for number, name in enumerate(self.target.source.names)}
        place = {"op": operation, "lsn": int(row.lsn), "ordinal": row.ordinal}
        return {"action": action, "round": row.staged.round, **cells, **place}

    def once_per_key(self) -> None:
        deletes, written = self._present & self._deletes, self._present & ~self._deletes
        if not deletes.any() or not written.any():
            return
        columns = self._columns("n")
        keys = [self._batch.column(name).filter(pa.array(deletes)).to_pylist() for name in columns]
        again = self._among(columns, set(zip(*keys, strict=True)), written)
        rewritten = [self._batch.column(name).take(pa.array(again, pa.int64())).to_pylist() for name in columns]
        if again:
            self.drop(self._among(columns, set(zip(*rewritten, strict=True)), deletes))

    def cancel(self) -> None:
        deletes = self._deletes
        if not deletes.any() or deletes.all():
            return
        rows = list(zip(*(self._batch.column(name).to_pylist() for name in self._columns("n")), strict=True))
        gone: dict[tuple[Any, ...], list[int]] = {}
        for number in np.flatnonzero(deletes):
            gone.setdefault(rows[number], []).append(int(number))
        for number in np.flatnonzero(~deletes):
            if waiting := gone.get(rows[number]):
                self.drop([int(number), waiting.pop()])

    def drop(self, numbers: Collection[int]) -> None:
        self._present[list(numbers)] = False

    def restore(self) -> None:
        """Rows are read again for another attempt."""


class StoreIsolation(Isolation, Generic[T]):
    """The rows of one truck in a store's transaction."""

    failures: ClassVar[type[Exception]] = DataError

    def __init__(
        self, store: TransactionalStore[T], transaction: T, truck: str, stored: Sequence[Letter], most: int | None
    ) -> None:
        super().__init__(truck, stored, most)
        self._store = store
        self._transaction = transaction

    def execute(self, statement: str) -> None:
        self._store.execute(self._transaction, statement)

    def check_constraints(self) -> None:
        """Those that are deferred are the transaction's."""

    def passes(self, error: Exception) -> bool:
        return False

    def refuses_row(self, error: Exception) -> bool:
        return True

    def explain(self, rows: TrialRows, row: TrialRow, error: Exception) -> DataError:
        assert isinstance(error, DataError)
        return error

    def blaming(self, target: Target) -> AbstractContextManager[None]:
        return blaming(target)

    def places(self, targets: Sequence[Target]) -> Mapping[TableId, int]:
        ordered = self._store.in_order(self._transaction, list(dict.fromkeys(targets)))
        return {target.table: place for place, target in enumerate(ordered)}

    def stage_letters(self, letters: Sequence[Letter]) -> TrialRows:
        target = letters[0].as_target()
        load = flat_rows(target, [letter.data for letter in letters], [letter.deletes for letter in letters])
        return StagedTrial(self._store, self._transaction, load, next(load.batches()))


def staged_rounds(
    store: TransactionalStore[T], transaction: T, loads: Iterable[StagedLoad]
) -> Iterator[Sequence[TrialRows]]:
    """The rounds of these loads, one after the other, of which one is in memory at a time."""
    for load in loads:
        for batch in load.batches():
            if len(batch):
                yield [StagedTrial(store, transaction, load, batch)]


def _nothing() -> None:
    """The store itself looks at how many rows it has touched."""


def _lost(target: Target) -> TruckFailed:
    reason = SinkError(
        f"table {target.table}: an updated row is missing, and the source did not send all of its values",
        remedy="another program changed the table; to copy it again, run `trucker reset --truck"
        f" {target.truck}`, then `trucker run`",
        code="TRK440",
    )
    return TruckFailed(target.truck, reason, target.source.table)
