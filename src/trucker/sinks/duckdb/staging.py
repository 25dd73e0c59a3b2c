"""What an executor makes of changes: rows of text in the target's shape, ready for the SQL of `apply`.

A table with a key:    action, kept, round, k0…   n0…
    action D     the row with the key in n… goes
    action U     the row with the key in n… becomes n…, or is made
    action M     the row with the key in k… becomes n…, its key included
    kept         the columns whose cells were not sent: one 0 or 1 for every column, NULL if all were sent (I7)
    round        which of the part's values it was: they come in order, and each has a key once
A table without one:   delta, n…
    delta        +1 a row n… comes, -1 one goes; what a batch does to a bag of rows is the sum of these

For a truck that sets failing rows aside, op, lsn and ordinal say what a change was and where it stands.
n0… are the columns of the target's source, k0… those of its key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, UPDATE, Changes, CopiedRows, Mask, TableSchema
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.spool import Spool, Staged

MOVE: Final = ord("M")


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a receipt carries: the rows, and what there is to do with them.

    `actions` counts the rows by action (in a bag, by DELETE and INSERT), `kept` the updates by columns not sent.
    """

    rows: Staged | None
    rounds: int = 0
    actions: Mapping[int, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)


def stage(spool: Spool, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Stage one part, one value at a time."""
    target = work.target
    tally = _Tally(placed=target.truck in work.batch.dead_letters)
    rows = spool.stage(work, tally.batches(target.source, changes))
    return work.receipt(tally.rows, StagedPart(rows, tally.rounds, dict(tally.actions), dict(tally.kept)))


class _Tally:
    """Counts what goes by."""

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
        key = [position for position, name in enumerate(changes.schema.names) if name in changes.schema.key]
        old_key = [changes.old.column(position) for position in key]
        deleted = changes.op == DELETE
        kept = kept_text(changes)
        new = list(changes.new.columns)
        for position, before in zip(key, old_key, strict=True):
            new[position] = _where(deleted | _unsent(changes, position), before, new[position])
        moved = _moved(changes, [new[position] for position in key], old_key)
        action = np.where(deleted, DELETE, np.where(moved, MOVE, UPDATE)).astype(np.uint8)
        self.actions.update(_counts(pa.array(action)))
        self.kept.update(_counts(kept.filter(pa.array(action == UPDATE))))
        from_key = [_where(moved, before, pa.nulls(len(changes), pa.string())) for before in old_key]
        return _batch(
            {
                "action": pa.array(action),
                "kept": kept,
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


def kept_text(changes: Changes) -> pa.Array:
    """For every change its columns not sent, as text of 0 and 1; null where all were sent."""
    count = len(changes)
    names = changes.schema.names
    rows = np.zeros(count, np.bool_)
    for mask in changes.unchanged.values():
        rows |= mask
    # Deletes send no cell at all; that says nothing of what stays.
    rows &= changes.op == UPDATE
    found = np.flatnonzero(rows)
    if not len(found):
        return pa.nulls(count, pa.string())
    marks = np.full((len(found), len(names)), ord("0"), np.uint8)
    for position, name in enumerate(names):
        if name in changes.unchanged and name not in changes.schema.key:
            marks[changes.unchanged[name][found], position] = ord("1")
    kinds, which = np.unique(marks, axis=0, return_inverse=True)
    texts = [None, *(kind.tobytes().decode() if (kind == ord("1")).any() else None for kind in kinds)]
    indices = np.zeros(count, np.int64)
    indices[found] = which.ravel() + 1
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


def later_rounds(batch: pa.RecordBatch, by: int) -> pa.RecordBatch:
    """The same rows, `by` rounds later; a bag has no rounds."""
    place = batch.schema.get_field_index("round")
    if place < 0 or not by:
        return batch
    return batch.set_column(place, "round", pc.add(batch.column(place), pa.scalar(by, pa.int32())))


def _batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
