"""A target's staged rows without those that are set aside as dead letters; those are folded into their letters.

A transaction cannot be taken back row by row in every store: which rows are refused is found by trying, in transactions
that are rolled back, and those are excluded from the start. All changes of a row that is set aside are excluded, the
earlier ones of the batch too: they are folded into its letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, UPDATE
from trucker.errors import SinkError
from trucker.sinks.letters import Identity, Letter, Operation, Pending, Reason, Row, fold
from trucker.sinks.transactional.staged_changes import MOVE, StagedLoad, StagedRow, key_positions, parse_rows
from trucker.sinks.transactional.store import T, TransactionalStore

Cells = tuple[str | None, ...]
"""What identifies a row: the cells of its key in the columns' order, or all cells by name where there is no key."""
ReasonOf = Callable[[Identity], Reason]


class Sieve:
    """Excludes the rows whose identity is in `aside`; gives at most `limit` of the others.

    A delete by key is applied in its turn, unless it is itself refused (`refused_deletes`): a row with an equal key, of
    another text perhaps, may come after it.
    """

    def __init__(self, load: StagedLoad) -> None:
        self.target = load.target
        self.aside: set[Cells] = set()
        self.refused_deletes: set[Cells] = set()
        self.limit: int | None = None
        self._batches = load.batches
        self._moves = load.count(MOVE) > 0
        schema = load.target.source
        positions = key_positions(schema) or sorted(range(len(schema.names)), key=schema.names.__getitem__)
        self._names = tuple(schema.names[position] for position in positions)
        self._new = [f"n{position}" for position in positions]
        self._old = [f"k{number}" for number in range(len(positions))]

    # -- rows --------------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that are not set aside, in batches that may be empty."""
        room = self.limit
        for batch in self._batches():
            passed = batch.filter(pa.array(~self._excluded(batch))) if self.aside else batch
            if room is not None:
                passed = passed.slice(0, room)
                room -= len(passed)
            yield passed

    def count(self) -> int:
        return sum(len(batch) for batch in self.batches())

    def rows(self, numbers: Sequence[int]) -> list[StagedRow]:
        """Rows by their positions among those of `batches`; the positions ascend."""
        rows: list[StagedRow] = []
        wanted, before = np.asarray(numbers), 0
        for batch in self.batches():
            chosen = wanted[(wanted >= before) & (wanted < before + len(batch))] - before
            rows += parse_rows(self.target.source, batch.take(pa.array(chosen, pa.int64())))
            before += len(batch)
        return rows

    def cells_of(self, row: Row) -> Cells:
        return tuple(row[name] for name in self._names)

    def _of_aside(self, batch: pa.RecordBatch) -> Any:
        """Which rows are those of `aside`, by the key they have or had."""
        chosen = self._among(batch, self._new, self.aside)
        if self._moves:
            chosen |= self._among(batch, self._old, self.aside)
        return chosen

    def _excluded(self, batch: pa.RecordBatch) -> Any:
        chosen = self._of_aside(batch)
        if self.target.source.key:
            deletes = np.asarray(batch.column("action")) == DELETE
            chosen &= ~deletes | self._among(batch, self._new, self.refused_deletes)
        return chosen

    def _among(self, batch: pa.RecordBatch, names: Sequence[str], rows: AbstractSet[Cells]) -> Any:
        # The first column is compared by Arrow; Python looks at the few rows that are left.
        first = pa.array(list({cells[0] for cells in rows}), pa.string())
        likely = np.flatnonzero(pc.is_in(batch.column(names[0]), value_set=first).to_numpy(zero_copy_only=False))
        chosen = np.zeros(len(batch), np.bool_)
        if len(likely):
            cells = [batch.column(name).take(pa.array(likely)).to_pylist() for name in names]
            chosen[likely] = [row in rows for row in zip(*cells, strict=True)]
        return chosen

    # -- folding -----------------------------------------------------------------------------------------------------

    def fold(self, store: TransactionalStore[T], transaction: T, pending: Pending, reason_of: ReasonOf) -> None:
        """Fold the changes of the rows that are set aside into their letters. Call before anything is applied."""
        if not self.aside:
            return
        self._add_moved_keys()
        folding = _Folding(store, transaction, self, pending, reason_of)
        rounds: dict[int, list[StagedRow]] = {}
        for batch in self._batches():
            for row in parse_rows(self.target.source, batch.filter(pa.array(self._of_aside(batch)))):
                rounds.setdefault(row.round, []).append(row)
        for number in sorted(rounds):
            folding.fold_round(rounds[number])

    def _add_moved_keys(self) -> None:
        """Where a row moves from one key to another both are set aside, or neither."""
        while self._moves:
            before = len(self.aside)
            for batch in self._batches():
                moves = self._of_aside(batch) & (np.asarray(batch.column("action")) == MOVE)
                for row in parse_rows(self.target.source, batch.filter(pa.array(moves))):
                    self.aside |= {self.cells_of(row.old_key), self.cells_of(row.data)}
            if len(self.aside) == before:
                return


class _Folding(Generic[T]):
    def __init__(
        self, store: TransactionalStore[T], transaction: T, sieve: Sieve, pending: Pending, reason_of: ReasonOf
    ) -> None:
        self._store = store
        self._transaction = transaction
        self._sieve = sieve
        self._target = sieve.target
        self._pending = pending
        self._reason_of = reason_of

    def fold_round(self, rows: Sequence[StagedRow]) -> None:
        """One round: deletes, then moves from what was before, then the rest."""
        if not self._target.source.key:
            for row in rows:
                self._count(row)
            return
        moves = [(row, self._row_before(row.old_key)) for row in rows if row.action == MOVE]
        for row in rows:
            if row.action == DELETE:
                self._delete(row)
        for row, _ in moves:
            self._put(row, row.old_key, "delete")
        for row, before in moves:
            self._put(row, {**before, **row.cells})
        for row in rows:
            if row.action == UPDATE:
                whole = row.sent is None
                self._put(row, row.data if whole else {**self._row_before(row.data), **row.cells})

    def _delete(self, row: StagedRow) -> None:
        if self._sieve.cells_of(row.data) in self._sieve.refused_deletes:
            self._put(row, row.data)
            return
        letter = self._pending.find(self._letter(row, row.data).identity)
        if letter is not None:
            self._pending.remove(letter)

    def _put(self, row: StagedRow, data: Row, operation: Operation | None = None) -> None:
        stored = self._store.as_stored(self._transaction, self._target, data)
        after = self._letter(row, stored, operation)
        before = self._pending.find(after.identity)
        if before is None:
            self._pending.add(after)
        else:
            self._pending.change(before, fold(before, after))

    def _count(self, row: StagedRow) -> None:
        after = self._letter(row, row.data)
        before = self._pending.find(after.identity)
        if before is not None and before.deletes != after.deletes:
            self._pending.remove(before)
        else:
            self._pending.add(after)

    def _letter(self, row: StagedRow, data: Row, operation: Operation | None = None) -> Letter:
        target = self._target
        letter = Letter(
            target.truck,
            target.source.table,
            target.table,
            target.source.key,
            operation or row.operation,
            data,
            row.lsn,
            row.ordinal,
            Reason("", ""),
        )
        return replace(letter, reason=self._reason_of(letter.identity))

    def _row_before(self, row: Row) -> Row:
        """A row as it is before what is folded: its letter's, else the destination's (I7)."""
        source = self._target.source
        key = {name: row[name] for name in source.key}
        letter = self._pending.find((source.table, tuple(key.values())))
        if letter is not None and not letter.deletes:
            return letter.data
        current = self._store.current_row(self._transaction, self._target, key)
        if current is None:
            raise SinkError(
                f"table {self._target.table}: an updated row is missing, and the source did not send all of its values",
                remedy="another program changed the table; to copy it again, run `trucker reset --truck"
                f" {self._target.truck}`, then `trucker run`",
                code="TRK440",
            )
        return current
