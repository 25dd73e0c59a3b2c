"""A target's staged rows without those of rows that are set aside, and what became of these.

DuckDB has no savepoints and gives a transaction up at the first error, so nothing can be taken back row by row: which
rows are refused is found by trying, in transactions that are rolled back, and those are kept out from the start. All
changes of a row that is set aside are, the earlier ones of the batch too: they are folded into its letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, UPDATE, Lsn, quote_identifier
from trucker.errors import SinkError
from trucker.sinks.duckdb.apply import Batches, key_positions
from trucker.sinks.duckdb.session import run
from trucker.sinks.duckdb.staging import MOVE
from trucker.sinks.duckdb.table import Table
from trucker.sinks.duckdb.types import literal, to_text
from trucker.sinks.letters import Identity, Letter, Operation, Pending, Reason, Row, fold
from trucker.sinks.target import Target
from trucker.types import Unfit

Cells = tuple[str | None, ...]
Why = Callable[[Identity], Reason]

_OPERATIONS: Final[dict[int, Operation]] = {INSERT: "insert", UPDATE: "update", DELETE: "delete", MOVE: "insert"}


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One staged row. `old` is the key it moves from, `sent` the names of its cells that came, None where all did."""

    action: int
    round: int
    old: Cells
    data: Row
    sent: tuple[str, ...] | None
    operation: Operation
    lsn: Lsn
    ordinal: int


class Sieve:
    """Keeps out the rows whose identity is in `aside`; gives at most `limit` of the others.

    A delete by key is done in its turn, unless it is itself refused (`stuck`): a row with an equal key, of another text
    perhaps, may come after it.
    """

    def __init__(self, target: Target, batches: Batches, *, moves: bool) -> None:
        self.target = target
        self.aside: set[Cells] = set()
        self.stuck: set[Cells] = set()
        self.limit: int | None = None
        self._batches = batches
        self._moves = moves
        names = target.source.names
        self.key = key_positions(target.source) or tuple(sorted(range(len(names)), key=names.__getitem__))

    # -- rows --------------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that are not set aside, in batches that may be empty."""
        left = self.limit
        for batch in self._batches():
            kept = batch.filter(pa.array(~self._kept_out(batch))) if self.aside else batch
            if left is not None:
                kept = kept.slice(0, left)
                left -= len(kept)
            yield kept

    def count(self) -> int:
        return sum(len(batch) for batch in self.batches())

    def rows(self, numbers: Sequence[int]) -> list[StagedRow]:
        """Rows by their places among those of `batches`."""
        found: list[StagedRow] = []
        before = 0
        for batch in self.batches():
            inside = [number - before for number in numbers if before <= number < before + len(batch)]
            found += self._parse(batch.take(pa.array(inside, pa.int64()))) if inside else []
            before += len(batch)
        return found

    def identity(self, row: StagedRow) -> Cells:
        return tuple(row.data[self.target.source.names[position]] for position in self.key)

    def cells_of(self, letter: Letter) -> Cells:
        """What a letter's row is known by here."""
        return tuple(letter.data[self.target.source.names[position]] for position in self.key)

    def _marked(self, batch: pa.RecordBatch) -> Any:
        """Which rows are those of `aside`, by the key they have or had."""
        names = [f"n{position}" for position in self.key]
        marked = self._among(batch, names, self.aside)
        if self._moves:
            marked |= self._among(batch, [f"k{number}" for number in range(len(self.key))], self.aside)
        return marked

    def _kept_out(self, batch: pa.RecordBatch) -> Any:
        marked = self._marked(batch)
        if self.target.source.key:
            deletes = np.asarray(batch.column("action")) == DELETE
            marked &= ~deletes | self._among(batch, [f"n{position}" for position in self.key], self.stuck)
        return marked

    def _among(self, batch: pa.RecordBatch, names: Sequence[str], rows: AbstractSet[Cells]) -> Any:
        first = pa.array(list({cells[0] for cells in rows}), pa.string())
        likely = np.flatnonzero(pc.is_in(batch.column(names[0]), value_set=first).to_numpy(zero_copy_only=False))
        marked = np.zeros(len(batch), np.bool_)
        if len(likely):
            cells = [batch.column(name).take(pa.array(likely)).to_pylist() for name in names]
            marked[likely] = [row in rows for row in zip(*cells, strict=True)]
        return marked

    def _parse(self, batch: pa.RecordBatch) -> Iterator[StagedRow]:
        names = self.target.source.names
        keyed = bool(self.target.source.key)
        for row in batch.to_pylist():
            data = {name: row[f"n{number}"] for number, name in enumerate(names)}
            action = row["action"] if keyed else (INSERT if row["delta"] > 0 else DELETE)
            kept = row["kept"] if keyed else None
            deletes = action == DELETE
            op = DELETE if deletes else MOVE if action == MOVE else row.get("op") or INSERT
            yield StagedRow(
                action,
                row["round"] if keyed else 0,
                tuple(row[f"k{number}"] for number in range(len(self.key))) if keyed else (),
                {name: data[name] for name in self.target.source.key} if deletes and keyed else data,
                None if kept is None else tuple(n for n, mark in zip(names, kept, strict=True) if mark == "0"),
                _OPERATIONS[op if keyed else action],
                Lsn(row.get("lsn") or 0),
                row.get("ordinal") or 0,
            )

    # -- folding -----------------------------------------------------------------------------------------------------

    def fold(self, connection: duckdb.DuckDBPyConnection, table: Table, pending: Pending, why: Why) -> None:
        """Fold what came for the rows that are set aside into their letters. Call before anything is applied."""
        if not self.aside:
            return
        self._close()
        folding = _Folding(connection, self, table, pending, why)
        matched = (batch.filter(pa.array(self._marked(batch))) for batch in self._batches())
        rounds: dict[int, list[StagedRow]] = {}
        for batch in matched:
            for row in self._parse(batch):
                rounds.setdefault(row.round, []).append(row)
        for number in sorted(rounds):
            folding.round(rounds[number])

    def _close(self) -> None:
        """Where a row moves from one key to another both are set aside, or neither."""
        while self._moves:
            before = len(self.aside)
            for batch in self._batches():
                chosen = self._marked(batch) & (np.asarray(batch.column("action")) == MOVE)
                for row in self._parse(batch.filter(pa.array(chosen))):
                    self.aside |= {row.old, self.identity(row)}
            if len(self.aside) == before:
                return


class _Folding:
    def __init__(
        self, connection: duckdb.DuckDBPyConnection, sieve: Sieve, table: Table, pending: Pending, why: Why
    ) -> None:
        self._connection = connection
        self._sieve = sieve
        self._target = sieve.target
        self._table = table
        self._pending = pending
        self._why = why

    def round(self, rows: Sequence[StagedRow]) -> None:
        """One round: deletes, then moves from what was before, then the rest."""
        key = self._target.source.key
        if not key:
            for row in rows:
                self._count(row)
            return
        moves = [(row, self._state(row.old)) for row in rows if row.action == MOVE]
        for row in rows:
            if row.action == DELETE:
                self._delete(row)
        for row, _ in moves:
            gone = dict(zip((self._target.source.names[p] for p in self._sieve.key), row.old, strict=True))
            self._put(row, gone, "delete")
        for row, before in moves:
            sent = row.sent if row.sent is not None else tuple(row.data)
            self._put(row, {**before, **{name: row.data[name] for name in sent}})
        for row in rows:
            if row.action == UPDATE:
                self._update(row)

    def _delete(self, row: StagedRow) -> None:
        if self._sieve.identity(row) in self._sieve.stuck:
            self._put(row, row.data)
            return
        known = self._pending.find(self._letter(row, row.data).identity)
        if known is not None:
            self._pending.remove(known)

    def _update(self, row: StagedRow) -> None:
        if row.sent is None:
            self._put(row, row.data)
            return
        before = self._state(self._sieve.identity(row))
        self._put(row, {**before, **{name: row.data[name] for name in row.sent}})

    def _put(self, row: StagedRow, data: Row, operation: Operation | None = None) -> None:
        after = self._letter(row, self._fitting(data), operation)
        before = self._pending.find(after.identity)
        if before is None:
            self._pending.add(after)
        else:
            self._pending.change(before, fold(before, after))

    def _fitting(self, data: Row) -> Row:
        """With NULL for what does not fit in columns of that policy: a letter is what would have been written."""
        found = dict(data)
        for name, unfit in self._target.unfit:
            if unfit is Unfit.NULL and found.get(name) is not None:
                value = literal(found[name], self._table.types[name], unfit)
                if run(self._connection, f"SELECT {value} IS NULL") == [(True,)]:
                    found[name] = None
        return found

    def _count(self, row: StagedRow) -> None:
        after = self._letter(row, row.data)
        before = self._pending.find(after.identity)
        if before is not None and before.deletes != after.deletes:
            self._pending.remove(before)
        else:
            self._pending.add(after)

    def _letter(self, row: StagedRow, data: Row, operation: Operation | None = None) -> Letter:
        target = self._target
        made = Letter(
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
        return replace(made, reason=self._why(made.identity))

    def _state(self, key: Cells) -> Row:
        """A row as it is before what is folded: its letter's, else the destination's (I7)."""
        names = self._target.source.names
        found = self._pending.find((self._target.source.table, self._ordered(key)))
        if found is not None and not found.deletes:
            return found.data
        types = self._table.types
        cells = ", ".join(_text_of(quote_identifier(name), types[name]) for name in names)
        where = " AND ".join(
            f"{quote_identifier(names[position])} = {literal(cell, types[names[position]])}"
            for position, cell in zip(self._sieve.key, key, strict=True)
        )
        rows = run(self._connection, f"SELECT {cells} FROM {self._table.sql} WHERE {where}")
        if not rows:
            raise SinkError(
                f"table {self._target.table}: an updated row is missing, and the source did not send all of its values",
                remedy="another program changed the table; to copy it again, run `trucker reset --truck"
                f" {self._target.truck}`, then `trucker run`",
                code="TRK440",
            )
        return dict(zip(names, rows[0], strict=True))

    def _ordered(self, key: Cells) -> Cells:
        """The key's cells in the order of the key, which need not be that of the columns."""
        by_name = dict(zip((self._target.source.names[p] for p in self._sieve.key), key, strict=True))
        return tuple(by_name[name] for name in self._target.source.key)


def _text_of(value: str, kind: str) -> str:
    """A text that is read as the same value again."""
    return to_text(value, kind) or f"CAST({value} AS VARCHAR)"
