"""Staged rows: changes as a flat table of text, ready for set-based SQL.

A table with a key:    action, kept, round, k0…   n0…
    action D     the row with the key in n… is deleted
    action U     the row with the key in n… becomes n…, or is inserted
    action M     the row with the key in k… becomes n…, its key included
    kept         the columns whose cells were not sent: one 0 or 1 for every column, NULL if all were sent (I7)
    round        which of the part's values it was: they come in order, and each has a key once
A table without one:   delta, n…
    delta        +1 a row n… is added, -1 one is removed; what a batch does to a bag of rows is the sum of these

For a truck with dead letters, op, lsn and ordinal say what a change was and its position.
n0… are the columns of the target's source, k0… those of its key, in the columns' order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, UPDATE, Changes, CopiedRows, Mask, TableSchema
from trucker.lsn import Lsn
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.letters import Operation, Row
from trucker.sinks.spool import Spool, Staged
from trucker.sinks.target import Target

MOVE: Final = ord("M")

_OPERATIONS: Final[dict[int, Operation]] = {INSERT: "insert", UPDATE: "update", DELETE: "delete", MOVE: "insert"}

Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Reads staged rows from the beginning."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a receipt carries: the rows, and what there is to do with them.

    `actions` counts the rows by action (in a bag, by DELETE and INSERT), `kept` the updates by columns not sent.
    """

    rows: Staged | None
    rounds: int = 0
    actions: Mapping[int, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One staged row: `action` is DELETE, UPDATE (which inserts, too) or MOVE; in a table without a key DELETE or
    INSERT.

    `old_key` is the key that a row moves from. `sent` names the cells that were sent, None where all were. `operation`,
    `lsn` and `ordinal` are those of the change, where the truck has dead letters.
    """

    action: int
    round: int
    old_key: Row
    data: Row
    sent: tuple[str, ...] | None
    operation: Operation
    lsn: Lsn
    ordinal: int

    @property
    def cells(self) -> dict[str, str | None]:
        """The cells that were sent."""
        return dict(self.data) if self.sent is None else {name: self.data[name] for name in self.sent}


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """What is to be applied to the table of one target: the rows of some parts, in order, with rounds numbered through.

    Empty the table first if `truncates`. `copied` says that the rows are new ones, for a table that holds none of them.
    Of a table that other targets share it is one part, with its number.
    """

    target: Target
    parts: Sequence[StagedPart]
    batches: Batches
    part: int = 0
    truncates: bool = False
    copied: bool = False

    @property
    def rounds(self) -> int:
        return sum(part.rounds for part in self.parts)

    def count(self, action: int) -> int:
        return sum(part.actions.get(action, 0) for part in self.parts)

    def kept(self) -> list[str]:
        """The distinct sets of columns not sent."""
        return sorted(sum((Counter(part.kept) for part in self.parts), Counter()))

    def rows_by_round(self) -> Iterator[list[StagedRow]]:
        """The rows one by one, for stores that take no columns. Apply a round as: deletes; moves, as a set; the rest.

        Without a key: add rows before others are removed.
        """
        for batch in self.batches():  # a value is one round, and was staged as one batch
            if len(batch):
                yield list(parse_rows(self.target.source, batch))


def key_positions(schema: TableSchema) -> tuple[int, ...]:
    """The positions of the key's columns among all, in the columns' order."""
    return tuple(position for position, name in enumerate(schema.names) if name in schema.key)


def read_parts(spool: Spool, receipts: Sequence[Receipt]) -> Iterator[pa.RecordBatch]:
    """All rows; each part's rounds come after those of the part before."""
    rounds = 0
    for receipt in receipts:
        part: StagedPart = receipt.staged
        if part.rows is not None:
            for batch in spool.read(part.rows):
                yield _later_rounds(batch, rounds)
        rounds += part.rounds


def parse_rows(schema: TableSchema, batch: pa.RecordBatch) -> Iterator[StagedRow]:
    """A batch row by row."""
    names, keyed = schema.names, bool(schema.key)
    key = [names[position] for position in key_positions(schema)]
    for row in batch.to_pylist():
        cells = {name: row[f"n{number}"] for number, name in enumerate(names)}
        action = row["action"] if keyed else (INSERT if row["delta"] > 0 else DELETE)
        deletes, mask = action == DELETE, row["kept"] if keyed else None
        operation = DELETE if deletes else MOVE if action == MOVE else row.get("op") or INSERT
        yield StagedRow(
            action,
            row["round"] if keyed else 0,
            {name: row[f"k{number}"] for number, name in enumerate(key)} if action == MOVE else {},
            {name: cells[name] for name in schema.key} if deletes and keyed else cells,
            None if mask is None else tuple(name for name, mark in zip(names, mask, strict=True) if mark == "0"),
            _OPERATIONS[operation if keyed else action],
            Lsn(row.get("lsn") or 0),
            row.get("ordinal") or 0,
        )


def flat_rows(target: Target, rows: Sequence[Row], deletes: Sequence[bool]) -> StagedLoad:
    """Whole rows that are to be there, or deleted, as if they had been staged; each key once."""
    count = len(rows)
    cells = {
        f"n{number}": pa.array([row[name] for row in rows], pa.string())
        for number, name in enumerate(target.source.names)
    }
    if target.source.key:
        head = {
            "action": pa.array([DELETE if gone else UPDATE for gone in deletes], pa.uint8()),
            "kept": pa.nulls(count, pa.string()),
            "round": pa.array([0] * count, pa.int32()),
            **{f"k{number}": pa.nulls(count, pa.string()) for number in range(len(target.source.key))},
        }
    else:
        head = {"delta": pa.array([-1 if gone else 1 for gone in deletes], pa.int32())}
    batch = _batch({**head, **cells})
    actions = {DELETE: sum(deletes), INSERT: count - sum(deletes)}
    return StagedLoad(target, [StagedPart(None, rounds=1, actions=actions)], lambda: iter([batch]))


# -- staging, in an executor ------------------------------------------------------------------------------------------


def stage_changes(spool: Spool, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Stage one part, one value at a time."""
    target = work.target
    tally = _Tally(placed=target.truck in work.batch.dead_letters)
    rows = spool.stage(work, tally.batches(target.source, changes))
    return work.receipt(tally.rows, StagedPart(rows, tally.rounds, dict(tally.actions), dict(tally.kept)))


class _Tally:
    """Counts the rows, rounds, actions and unchanged columns of the batches that it yields."""

    def __init__(self, *, placed: bool) -> None:
        self._placed = placed
        self.rows = 0
        self.rounds = 0
        self.actions: Counter[int] = Counter()
        self.kept: Counter[str] = Counter()

    def batches(self, schema: TableSchema, changes: Iterator[Changes | CopiedRows]) -> Iterator[pa.RecordBatch]:
        for value in changes:
            whole = value.to_changes() if isinstance(value, CopiedRows) else value
            self.rows += len(whole)
            if not len(whole):
                continue
            shaped = whole.reshaped(schema)
            batch = self._keyed(shaped) if schema.key else self._bag(shaped)
            self.rounds += 1
            yield batch

    def _keyed(self, changes: Changes) -> pa.RecordBatch:
        key = key_positions(changes.schema)
        old_key = [changes.old.column(position) for position in key]
        deleted = changes.op == DELETE
        masks = _mask_text(changes)
        new = list(changes.new.columns)
        for position, before in zip(key, old_key, strict=True):
            new[position] = _where(deleted | _unsent(changes, position), before, new[position])
        moved = _moved(changes, [new[position] for position in key], old_key)
        action = np.where(deleted, DELETE, np.where(moved, MOVE, UPDATE)).astype(np.uint8)
        self.actions.update(_counts(pa.array(action)))
        self.kept.update(_counts(masks.filter(pa.array(action == UPDATE))))
        from_key = [_where(moved, before, pa.nulls(len(changes), pa.string())) for before in old_key]
        return _batch(
            {
                "action": pa.array(action),
                "kept": masks,
                "round": pa.array(np.full(len(changes), self.rounds, np.int32)),
                **{f"k{number}": cells for number, cells in enumerate(from_key)},
                **{f"n{number}": cells for number, cells in enumerate(new)},
                **self._places(changes, np.arange(len(changes))),
            }
        )

    def _places(self, changes: Changes, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """Where each staged row stands."""
        if not self._placed:
            return {}
        named: dict[str, npt.NDArray[Any]] = {"op": changes.op, "lsn": changes.commit_lsn, "ordinal": changes.ordinal}
        return {name: pa.array(values[rows]) for name, values in named.items()}

    def _bag(self, changes: Changes) -> pa.RecordBatch:
        goes = np.flatnonzero(changes.op != INSERT)
        comes = np.flatnonzero(changes.op != DELETE)
        self.actions.update({DELETE: len(goes), INSERT: len(comes)})
        delta = np.repeat(np.array([-1, 1], np.int32), [len(goes), len(comes)])
        columns = {}
        for number, name in enumerate(changes.schema.names):
            new, old = changes.new.column(number), changes.old.column(number)
            if name in changes.unchanged:
                new = _where(changes.unchanged[name], old, new)
            columns[f"n{number}"] = pa.concat_arrays([old.take(pa.array(goes)), new.take(pa.array(comes))])
        places = self._places(changes, np.concatenate([goes, comes]))
        return _batch({"delta": pa.array(delta), **columns, **places})


def _mask_text(changes: Changes) -> pa.Array:
    """For every change its columns not sent, as text of 0 and 1; null where all were sent."""
    count = len(changes)
    names = changes.schema.names
    rows = np.zeros(count, np.bool_)
    for mask in changes.unchanged.values():
        rows |= mask
    # A delete sends no cells, but its cells do not count as unchanged.
    rows &= changes.op == UPDATE
    partial = np.flatnonzero(rows)
    if not len(partial):
        return pa.nulls(count, pa.string())
    marks = np.full((len(partial), len(names)), ord("0"), np.uint8)
    for position, name in enumerate(names):
        if name in changes.unchanged and name not in changes.schema.key:
            marks[changes.unchanged[name][partial], position] = ord("1")
    kinds, which = np.unique(marks, axis=0, return_inverse=True)
    texts = [None, *(kind.tobytes().decode() if (kind == ord("1")).any() else None for kind in kinds)]
    indices = np.zeros(count, np.int64)
    indices[partial] = which.ravel() + 1
    return pa.array(texts, pa.string()).take(pa.array(indices))


def _unsent(changes: Changes, position: int) -> Mask:
    """Where a key's cell was not sent: it is so large that it is stored apart, and the old row repeats it."""
    nowhere: Mask = np.zeros(len(changes), np.bool_)
    return changes.unchanged.get(changes.schema.names[position], nowhere)


def _moved(changes: Changes, new_key: list[pa.Array], old_key: list[pa.Array]) -> Mask:
    has_both: Mask = (changes.op == UPDATE) & (changes.old_kind != NO_OLD)
    if not has_both.any():
        return has_both
    differs = np.zeros(len(changes), np.bool_)
    for new, old in zip(new_key, old_key, strict=True):
        differs |= pc.fill_null(pc.not_equal(new, old), True).to_numpy(zero_copy_only=False)
    both: Mask = has_both & differs
    return both


def _where(mask: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    if not mask.any():
        return no
    return yes if mask.all() else pc.if_else(pa.array(mask), yes, no)


def _counts(values: pa.Array) -> dict[Any, int]:
    return {
        pair["values"]: pair["counts"] for pair in pc.value_counts(values).to_pylist() if pair["values"] is not None
    }


def _later_rounds(batch: pa.RecordBatch, by: int) -> pa.RecordBatch:
    """The same rows, `by` rounds later; a bag has no rounds."""
    place = batch.schema.get_field_index("round")
    if place < 0 or not by:
        return batch
    return batch.set_column(place, "round", pc.add(batch.column(place), pa.scalar(by, pa.int32())))


def _batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
