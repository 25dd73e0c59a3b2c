"""Numbers for keys: equal keys get equal numbers, from 0 up without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.table import Column

KeyNumbers = npt.NDArray[np.int64]

# bigint, smallint, integer, oid: equal numbers have equal texts, so the numbers, which compare faster, can be used.
_INTEGER_TYPES: Final = frozenset({20, 21, 23, 26})
# Products of counts stay below this, so that an int64 holds them.
_ROOM: Final = 1 << 62


def dense_codes(columns: Sequence[pa.Array], schema: Sequence[Column]) -> tuple[KeyNumbers, int]:
    """A number for each row's cells, and how many different ones there are. NULLs are equal."""
    parts = [_column(_plain(cells, column)) for cells, column in zip(columns, schema, strict=True)]
    codes, count = parts[0]
    for column_codes, size in parts[1:]:
        if count * size >= _ROOM:
            codes, count = _column(pa.array(codes))
        codes, count = codes * size + column_codes, count * size
    return _column(pa.array(codes)) if len(parts) > 1 else (codes, count)


def rising(cells: pa.Array, column: Column) -> bool:
    """Whether these are integers, each greater than the one before: all different, by a cheap test."""
    plain = _plain(cells, column)
    if not pa.types.is_integer(plain.type) or plain.null_count:
        return False
    return bool((np.diff(plain.to_numpy()) > 0).all())


def _plain(cells: pa.Array, column: Column) -> pa.Array:
    if column.type_oid not in _INTEGER_TYPES:
        return cells
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return cells


def _column(cells: pa.Array) -> tuple[KeyNumbers, int]:
    encoded = cells.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
