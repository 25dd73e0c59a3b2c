"""Changes as flat rows of Arrow columns, for Parquet and CSV files.

The row's columns, and behind them:

    _operation    insert, update, delete or truncate
    _schema       the table's schema …
    _table        … and name, as the truck's output has it
    _lsn          the LSN of the commit, as a number; of a copied row its snapshot's
    _ordinal      the place of the change in its transaction; null in copied rows
    _commit_time  null in copied rows and those that SQL returned, as is
    _xid          the transaction
    _snapshot     whether the row is of a copy
    _unsent       the columns that were not sent because they did not change: their cells are null

An update that changes the key is a delete and an insert. A delete has what was sent of the row: its key, or all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.adapters.files import TYPES
from trucker.change import DELETE, OPERATIONS, Changes, Column
from trucker.errors import SinkError
from trucker.sinks.envelope.key_moves import split_key_moves
from trucker.sinks.envelope.moments import date_days, time_micros, timestamp_micros
from trucker.sinks.envelope.text_conversion import binary_of_hex
from trucker.sinks.target import Target
from trucker.types import Unfit, column_kind

_INFINITE: Final[Mapping[str, str | None]] = {"infinity": None, "-infinity": None}
_OPERATIONS: Final = {code: pa.scalar(name, pa.string()) for code, name in OPERATIONS.items()}


def typed_rows(changes: Changes, target: Target, *, snapshot: bool, text: bool) -> pa.RecordBatch:
    """The changes as rows; with `text` all values are PostgreSQL's text."""
    split = split_key_moves(changes).changes
    deletes = pa.array(split.op == DELETE)
    columns: dict[str, pa.Array] = {}
    for column in split.schema.columns:
        new, old = split.new.column(column.name), split.old.column(column.name)
        cells = pc.if_else(deletes, old, new) if pc.any(deletes).as_py() else new
        columns[column.name] = cells if text else typed_cells(cells, column, target)
    return pa.RecordBatch.from_pydict(columns | _added(split, target, snapshot))


def _added(changes: Changes, target: Target, snapshot: bool) -> dict[str, pa.Array]:
    count = len(changes)
    names = np.array([OPERATIONS.get(code, "") for code in range(256)], object)
    placeless, timeless = np.full(count, snapshot), changes.xid == 0
    return {
        "_operation": pa.array(names[changes.op], pa.string()),
        "_schema": pa.array([target.table.schema] * count, pa.string()),
        "_table": pa.array([target.table.name] * count, pa.string()),
        "_lsn": pa.array(changes.commit_lsn.astype(np.int64)),
        "_ordinal": pa.array(changes.ordinal, mask=placeless),
        "_commit_time": pa.array(changes.commit_time, pa.timestamp("us", "UTC"), mask=timeless),
        "_xid": pa.array(changes.xid.astype(np.int64), mask=timeless),
        "_snapshot": pa.array(placeless),
        "_unsent": _unsent(changes),
    }


def _unsent(changes: Changes) -> pa.Array:
    """The names of the columns that were not sent, as a list for each row; null where all were."""
    count, kind = len(changes), pa.list_(pa.string())
    names = [name for name in changes.schema.names if name in changes.unchanged]
    if not names:
        return pa.nulls(count, kind)
    masks = np.column_stack([changes.unchanged[name] for name in names])
    sizes = masks.sum(axis=1)
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(masks)[1]))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, values)
    return pc.if_else(pa.array(sizes > 0), lists, pa.scalar(None, kind))


def arrow_type(column: Column, unfit: Unfit | None) -> pa.DataType:
    """The type that a column has in a Parquet file."""
    kind = column_kind(column)
    form = TYPES.text if unfit is Unfit.TEXT else TYPES.of(kind)
    if form.type.startswith("decimal128"):
        return pa.decimal128(kind.precision, kind.scale)
    return _KINDS.get(form.type, pa.string())


def typed_cells(text: pa.Array, column: Column, target: Target) -> pa.Array:
    """PostgreSQL's text as values. What the type cannot hold is refused or null, as the truck says."""
    unfit = target.unfit_of(column.name)
    kind = arrow_type(column, unfit)
    if kind == pa.string():
        return text
    try:
        values = _CONVERTERS.get(kind, lambda cells, wanted: _decimals(cells, wanted))(text, kind)
    except (pa.ArrowException, ArithmeticError, LookupError, ValueError):  # they quote the value
        raise _refused(column, target, kind) from None
    lost = pc.and_(pc.is_valid(text), pc.is_null(values))
    if unfit is not Unfit.NULL and pc.any(lost).as_py():
        raise _refused(column, target, kind)
    return values


def _refused(column: Column, target: Target, kind: pa.DataType) -> SinkError:
    return SinkError(
        f"column {column.name!r} of table {target.table} has a value that {kind} cannot hold in a Parquet file",
        remedy=f"in truck {target.truck} write output.columns.{column.name}.unfit: text, for a column of text, or null",
        code="TRK751",
    )


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return text.cast(kind)


def _booleans(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.equal(text, "t")


def _decimals(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.if_else(pc.equal(text, "NaN"), None, text).cast(kind)


def _bytes(text: pa.Array, kind: pa.DataType) -> pa.Array:
    binary = binary_of_hex(text.cast(pa.large_string())).cast(kind)
    return pc.if_else(pc.is_valid(text), binary, pa.scalar(None, kind))


def _dates(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return date_days(text.cast(pa.large_string()), _INFINITE).cast(pa.int32()).cast(kind)


def _times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return time_micros(text.cast(pa.large_string()), None).cast(pa.int64()).cast(kind)


def _timestamps(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return timestamp_micros(text.cast(pa.large_string()), _INFINITE).cast(pa.int64()).cast(kind)


_KINDS: Final[Mapping[str, pa.DataType]] = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "time64[us]": pa.time64("us"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
}
_CONVERTERS: Final[Mapping[pa.DataType, Callable[[pa.Array, pa.DataType], pa.Array]]] = {
    **dict.fromkeys((pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()), _cast),
    pa.bool_(): _booleans,
    pa.binary(): _bytes,
    pa.date32(): _dates,
    pa.time64("us"): _times,
    pa.timestamp("us"): _timestamps,
    pa.timestamp("us", "UTC"): _timestamps,
}
