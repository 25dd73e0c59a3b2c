"""Converts changes to the rows that SQL reads, and the rows that SQL returns to changes for a sink.

A row has the new values, the old ones as `old__<column>` and, where every change is kept, its position. What comes back
has what the truck's SQL gives; the operation of each row says what is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, NO_OLD, OLD_KEY, UPDATE, Changes, Column, Mask, TableSchema, null_rows
from trucker.engine.transform.compact.codes import dense_codes
from trucker.errors import ConfigError, SinkError
from trucker.lsn import Lsn
from trucker.rows import OLD, OPERATION, POSITION, Rows


def relation_of(schema: TableSchema, *, positions: bool) -> tuple[Column, ...]:
    """The columns of `{{ rows }}` for a table."""
    old = tuple(replace(column, name=OLD + column.name, not_null=False) for column in schema.columns)
    columns = (*schema.columns, *old, *(POSITION if positions else ()))
    names = [column.name for column in columns]
    twice = next((name for name in [OPERATION, *names] if [OPERATION, *names].count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{schema.table} has a column {twice!r}, a name that rows reserve",
            remedy=f"rename it with a rule: rename: {{{twice}: …}}",
            code="TRK133",
        )
    return columns


def rows_of(changes: Changes, columns: tuple[Column, ...], run: npt.NDArray[np.int64]) -> Rows:
    """The rows for `columns`, as `relation_of` gives them. Nothing in `changes` is unchanged or a truncate any more."""
    cells = [changes.new.column(name) for name in changes.schema.names]
    for name in changes.schema.names:
        old = changes.old.column(name)
        if name in changes.schema.key:
            # PostgreSQL sends no old key with an update that does not change it.
            same_key = (changes.op == UPDATE) & (changes.old_kind == NO_OLD)
            old = pc.if_else(pa.array(same_key), changes.new.column(name), old) if same_key.any() else old
        cells.append(old)
    if len(columns) > len(cells):
        cells += _position(changes)
    names = [column.name for column in columns]
    return Rows(columns, pa.RecordBatch.from_arrays(cells, names=names), changes.op, run)


def _position(changes: Changes) -> list[pa.Array]:
    """The position columns of each change. Rows of a snapshot belong to no transaction: they have only its LSN."""
    lsn = changes.commit_lsn
    texts = pa.array([f"{value >> 32:X}/{value & 0xFFFFFFFF:X}" for value in np.unique(lsn).tolist()], pa.string())
    places = np.unique(lsn, return_inverse=True)[1]
    when = pc.strftime(pa.array(changes.commit_time, pa.timestamp("us", "UTC")), "%Y-%m-%d %H:%M:%S+00")
    for trailing, replacement in ((r"\.0+\+00$", "+00"), (r"(\.\d*[1-9])0+\+00$", r"\1+00")):
        when = pc.replace_substring_regex(when, trailing, replacement)
    in_transaction = pa.array(changes.xid != 0)
    return [
        texts.take(pa.array(places)),
        pc.if_else(in_transaction, when, None),
        pc.if_else(in_transaction, pc.cast(pa.array(changes.xid), pa.string()), None),
        pc.cast(pa.array(changes.ordinal), pa.string()),
    ]


def written_columns(columns: Sequence[Column], *, old: bool) -> tuple[Column, ...]:
    """The columns of a result that are written; old values are only for SQL."""
    return tuple(column for column in columns if old or not column.name.startswith(OLD))


def statement_changes(rows: Rows, schema: TableSchema) -> Changes:
    """Rows for output.sql: all in `new`, whatever the operation; `ordinal` is the run."""
    count = len(rows)
    return Changes(
        schema,
        rows.op,
        rows.cells.select(list(schema.names)),
        null_rows(schema, count),
        np.zeros(count, np.uint8),
        {},
        np.zeros(count, np.uint64),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint32),
        rows.run,
    )


def keyed_changes(rows: Rows, schema: TableSchema, lsn: Lsn, first: int) -> Changes:
    """Rows to be written by name and key: deletes by their key, the others whole.

    Their positions are `lsn` and the ordinals from `first` on.
    """
    count = len(rows)
    names = list(schema.names)
    deletes = rows.op == DELETE
    new = rows.cells.select(names)
    old = null_rows(schema, count)
    if deletes.any():
        keys = {name: _key_cells(rows, name, deletes, schema) for name in schema.key}
        old = pa.RecordBatch.from_arrays(
            [keys[name] if name in keys else old.column(name) for name in names], names=names
        )
        mask = pa.array(deletes)
        new = pa.RecordBatch.from_arrays([pc.if_else(mask, None, cells) for cells in new.columns], names=names)
    return Changes(
        schema,
        rows.op,
        new,
        old,
        np.where(deletes, OLD_KEY, NO_OLD).astype(np.uint8),
        {},
        np.full(count, lsn, np.uint64),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint32),
        np.arange(first, first + count, dtype=np.int64),
    )


def _key_cells(rows: Rows, name: str, deletes: npt.NDArray[np.bool_], schema: TableSchema) -> pa.Array:
    """A key column's cells in deletes: those of the result, else of its column with the old value."""
    cells = rows.cells.column(name)
    if OLD + name in rows.names:
        cells = pc.coalesce(cells, rows.cells.column(OLD + name))
    if pc.any(pc.and_(pa.array(deletes), pc.is_null(cells))).as_py():
        raise SinkError(
            f"the truck's SQL returns a row of {schema.table} to delete without its key: {name} is NULL",
            remedy=f"a delete has only old values: write coalesce(r.{name}, r.{OLD}{name}) as {name}",
            code="TRK533",
        )
    return pc.if_else(pa.array(deletes), cells, None)


def key_numbers(changes: Changes) -> npt.NDArray[np.int64]:
    """A number for each row, the same for rows of one key: the new key, of a delete the old one."""
    deletes = pa.array(changes.op == DELETE)
    key = changes.schema.key
    cells = [pc.if_else(deletes, changes.old.column(name), changes.new.column(name)) for name in key]
    return dense_codes(cells, [changes.schema.column(name) for name in key])[0]


def last_by_key(changes: Changes) -> Changes:
    """One row for each key, the last one, as sinks for tables require.

    SQL may return a key more than once: for rows of several transactions, or where it maps several keys to one.
    """
    if not changes.schema.key or len(changes) < 2:
        return changes
    places = np.unique(key_numbers(changes)[::-1], return_index=True)[1]
    return changes if len(places) == len(changes) else changes.take(np.sort(len(changes) - 1 - places))


def before_deletes(changes: Changes) -> Mask:
    """Which rows are deleted by a later transaction among these changes; within one, folding leaves a key once."""
    numbers, deletes = key_numbers(changes), changes.op == DELETE
    last = np.zeros(int(numbers.max(initial=-1)) + 1, np.uint64)
    np.maximum.at(last, numbers[deletes], changes.commit_lsn[deletes])
    deleted_later: Mask = ~deletes & (changes.commit_lsn < last[numbers])
    return deleted_later


def only_deletes(changes: Changes, names: Sequence[str], schema: TableSchema) -> Changes:
    """Deletes by key in the shape of a target that has other columns; `names` are the key's."""
    count = len(changes)
    empty = null_rows(schema, count)
    old = [changes.old.column(name) if name in names else empty.column(name) for name in schema.names]
    return replace(
        changes,
        schema=schema,
        new=empty,
        old=pa.RecordBatch.from_arrays(old, names=list(schema.names)),
        old_kind=np.full(count, OLD_KEY, np.uint8),
        unchanged={},
    )
