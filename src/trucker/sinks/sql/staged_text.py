"""Net changes as rows to stage: sorted by what is to be done with them, as COPY text.

A staged row is `k, c0, c1, …, o0, o1, …`: what to do, the cells, and the key before it moved. Staging tables name their
columns by number, so that no name of a user's collides with ours, and type them like the target's.

    k                what                                      cells
    0  UPSERT        write the whole row                       all
    1  DELETE        delete the row                            the key (all of them in a table without key)
    2  REPLACE       write the whole row, which was there      all
    3… a patch       update the cells that were sent           key and those sent
    n… a move        the row at the old key goes to a new one  key and those sent; the others are taken from the row

For a truck that sets failing rows aside two more columns say where a change stands: `l`, its commit's LSN as a number,
and `n`, its ordinal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, NO_OLD, OLD_FULL, UPDATE, Changes, Mask
from trucker.errors import SinkError
from trucker.sinks.copy_text import Cells, copy_text
from trucker.sinks.target import Target

UPSERT_ROW: Final = 0
DELETE_ROW: Final = 1
REPLACE_ROW: Final = 2
FIRST_PATCH: Final = 3

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with the same unchanged cells. `columns` are those sent (a patch) or those not sent (a move)."""

    code: int
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a staged value holds, by kind. `rows` counts staged rows, which may be more than there were changes.

    `placed` says that every row has its position. A `bare` value's rows are all new ones, and its text is that of the
    target's own rows: there is no code in it.
    """

    columns: tuple[str, ...]
    rows: int
    upserts: int
    deletes: int
    replaces: int = 0
    patches: tuple[Group, ...] = ()
    moves: tuple[Group, ...] = ()
    placed: bool = False
    bare: bool = False

    @property
    def written(self) -> int:
        """The rows that are to be there."""
        return self.upserts + self.replaces + sum(group.rows for group in (*self.patches, *self.moves))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One value of a part, staged: its text is carried along, or in a file, or in a table of its own.

    In a `plain` table every cell is text: it holds rows whatever is in them. A file with `types` is in COPY's binary
    format, and has values of these types, by number, in the contents' columns.
    """

    contents: Contents
    text: bytes = b""
    table: str = ""
    plain: bool = False
    file: str = ""
    types: tuple[int, ...] = ()


def sort_out(changes: Changes, target: Target, *, placed: bool = False) -> tuple[Contents, Iterator[pa.Buffer]]:
    """One value's rows sorted by kind, and their COPY text."""
    if target.source.key:
        return _keyed(changes, target.source.key, placed)
    return _bag(changes, target, placed)


def _keyed(changes: Changes, key: Sequence[str], placed: bool) -> tuple[Contents, Iterator[pa.Buffer]]:
    written = (changes.op == INSERT) | (changes.op == UPDATE)
    moved = _moved(changes, key)
    partial = np.zeros(len(changes), np.bool_)
    for mask in changes.unchanged.values():
        partial |= mask
    partial &= written
    replaced = (changes.op == UPDATE) & ~partial & ~moved
    codes = np.where(replaced, REPLACE_ROW, UPSERT_ROW).astype(np.int16)
    patches = _groups(changes, partial & ~moved, codes, FIRST_PATCH, sent=True)
    moves = _groups(changes, partial & moved, codes, FIRST_PATCH + len(patches), sent=False)
    rows = np.flatnonzero(written)
    gone = np.flatnonzero((changes.op == DELETE) | (moved & ~partial))
    upserts = int(np.count_nonzero(written & ~partial & ~replaced))
    bare = not placed and upserts == len(rows) + len(gone)
    contents = Contents(
        changes.schema.names,
        len(rows) + len(gone),
        upserts,
        len(gone),
        int(np.count_nonzero(replaced)),
        patches,
        moves,
        placed,
        bare,
    )
    columns: list[Cells] = [] if bare else [_code_cells(codes[rows], len(gone))]
    for name in changes.schema.names:
        after = changes.old.column(name) if name in key else None
        columns.append(_joined(changes.new.column(name), rows, after, gone))
    if moves:
        columns += [_joined(changes.old.column(name), rows, None, gone) for name in key]
    columns += _places(changes, rows, gone) if placed else ()
    return contents, copy_text(columns, contents.rows)


def _places(changes: Changes, rows: Indices, gone: Indices) -> list[Cells]:
    """The position of every staged row."""
    staged = np.concatenate([rows, gone])
    return [pc.cast(pa.array(numbers[staged]), pa.string()) for numbers in (changes.commit_lsn, changes.ordinal)]


def _bag(changes: Changes, target: Target, placed: bool) -> tuple[Contents, Iterator[pa.Buffer]]:
    """In a table without key an update is a delete of the old row and an insert of the new one."""
    added = (changes.op == INSERT) | (changes.op == UPDATE)
    removed = (changes.op == DELETE) | (changes.op == UPDATE)
    if np.any(changes.old_kind[removed] != OLD_FULL):
        raise SinkError(
            f"table {target.source.table} has no key, and a change arrived without the old row",
            remedy=f"run at the source: ALTER TABLE {target.source.table.quoted} REPLICA IDENTITY FULL",
        )
    rows, gone = np.flatnonzero(added), np.flatnonzero(removed)
    bare = not placed and not len(gone)
    contents = Contents(changes.schema.names, len(rows) + len(gone), len(rows), len(gone), placed=placed, bare=bare)
    columns: list[Cells] = [] if bare else [_code_cells(np.full(len(rows), UPSERT_ROW, np.int16), len(gone))]
    for name in changes.schema.names:
        new, old = changes.new.column(name), changes.old.column(name)
        if name in changes.unchanged:
            new = pc.if_else(pa.array(changes.unchanged[name]), old, new)
        columns.append(_joined(new, rows, old, gone))
    columns += _places(changes, rows, gone) if placed else ()
    return contents, copy_text(columns, contents.rows)


def _moved(changes: Changes, key: Sequence[str]) -> Mask:
    """Updates whose old key is not their new one."""
    candidates: Mask = (changes.op == UPDATE) & (changes.old_kind != NO_OLD)
    if not candidates.any():
        return candidates
    differs = np.zeros(len(changes), np.bool_)
    for name in key:
        unequal = pc.not_equal(changes.old.column(name), changes.new.column(name))
        differs |= np.asarray(unequal.fill_null(False))
    moved: Mask = candidates & differs
    return moved


def _groups(
    changes: Changes, chosen: Mask, codes: npt.NDArray[np.int16], first: int, *, sent: bool
) -> tuple[Group, ...]:
    """Give every set of unchanged cells among the chosen rows a code from `first` on, written into `codes`."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return ()
    names = list(changes.unchanged)
    masks = np.stack([changes.unchanged[name][rows] for name in names], axis=1)
    patterns, group, counts = np.unique(masks, axis=0, return_inverse=True, return_counts=True)
    codes[rows] = first + group.reshape(-1)
    groups = []
    for number, (pattern, count) in enumerate(zip(patterns, counts, strict=True)):
        unsent = frozenset(name for name, marked in zip(names, pattern, strict=True) if marked)
        columns = tuple(name for name in changes.schema.names if (name in unsent) != sent)
        groups.append(Group(first + number, columns, int(count)))
    return tuple(groups)


def _code_cells(codes: npt.NDArray[np.int16], deletes: int) -> Cells:
    whole = np.concatenate([codes, np.full(deletes, DELETE_ROW, np.int16)]) if deletes else codes
    if len(whole) and (whole == whole[0]).all():
        return str(whole[0])
    return pc.cast(pa.array(whole), pa.string())


def _joined(first: pa.Array, rows: Indices, second: pa.Array | None, more: Indices) -> pa.Array:
    """Cells of `first` at `rows`, then of `second` (NULL without one) at `more`."""
    chosen = first if len(rows) == len(first) else first.take(pa.array(rows))
    if not len(more):
        return chosen
    tail = pa.nulls(len(more), pa.string()) if second is None else second.take(pa.array(more))
    return pa.concat_arrays([chosen, tail]) if len(chosen) else tail
