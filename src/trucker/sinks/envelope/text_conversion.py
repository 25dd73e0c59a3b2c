"""Conversion of PostgreSQL's text by column: ordinary values all at once, the others one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NIBBLES: Final = np.zeros(256, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def converted(
    text: pa.Array, ordinary: str, convert: Callable[[pa.Array], pa.Array], one: Callable[[str], str | None]
) -> pa.Array:
    """What `convert` makes of the values that the pattern matches, and `one` of each other."""
    matched = pc.fill_null(pc.match_substring_regex(text, ordinary), True)
    if pc.all(matched, min_count=0).as_py():
        return convert(text)
    result = pc.if_else(matched, text, None)
    others = each_value(text.filter(pc.invert(matched)), one)
    return pc.replace_with_mask(convert(result), pc.invert(matched), others)


def each_value(text: pa.Array, one: Callable[[str], str | None]) -> pa.Array:
    """What `one` makes of each value; of equal ones once."""
    encoded = pc.dictionary_encode(text)
    known = [one(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(known, pa.large_string()).take(encoded.indices)


def binary_of_hex(text: pa.Array) -> pa.LargeBinaryArray:
    """The bytes that hexadecimal digits behind `\\x` stand for, all values in one pass; of nulls nothing.

    Raises `ValueError` where the text is something else.
    """
    filled = pc.fill_null(text, "\\x")
    if not pc.all(pc.starts_with(filled, "\\x"), min_count=0).as_py():
        raise ValueError("not bytes as PostgreSQL writes them")
    begins = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset : filled.offset + len(filled) + 1]
    lengths = (np.diff(begins) - 2) // 2
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    value = np.repeat(np.arange(len(lengths)), lengths)
    digits = begins[value] + 2 + 2 * (np.arange(offsets[-1]) - offsets[value])
    characters = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    data = _NIBBLES[characters[digits]] << 4 | _NIBBLES[characters[digits + 1]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
