"""Converts columns of text to PostgreSQL's array literals: `{"a","b\\"c",NULL}`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

LARGEST: Final = 1 << 30
"""PostgreSQL's limit for the bytes of a value."""


def array_literal(cells: pa.Array, delimiter: str = ",", *, plain: bool = False) -> bytes | None:
    """The cells as an array's text; None where all are NULL: `unnest` pads a shorter array with NULL.

    `plain` cells are known to need no quotes.
    """
    if cells.null_count == len(cells):
        return None
    texts = cells if plain else _quoted(cells)
    if texts.null_count:
        texts = pc.fill_null(texts, pa.scalar("NULL", texts.type))
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts.cast(pa.large_string()))
    joined = pc.binary_join(whole, pa.scalar(delimiter, pa.large_string()))
    return b"".join((b"{", joined[0].as_buffer(), b"}"))


def _quoted(cells: pa.Array) -> pa.Array:
    for special in ("\\", '"'):
        if pc.any(pc.match_substring(cells, special)).as_py():
            cells = pc.replace_substring(cells, special, f"\\{special}")
    quote = pa.scalar('"', cells.type)
    return pc.binary_join_element_wise(quote, cells, quote, pa.scalar("", cells.type))
