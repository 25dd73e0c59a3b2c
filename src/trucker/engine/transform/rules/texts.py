"""Texts masked, hashed and rewritten, a column at a time. NULL stays NULL."""

from __future__ import annotations

import hmac

import pyarrow as pa
import pyarrow.compute as pc


def mask(cells: pa.Array, keep_first: int, keep_last: int, with_: str) -> pa.Array:
    """All characters replaced except some at both ends; a text that is not longer than those is replaced whole."""
    length = pc.utf8_length(cells)
    shown_length = keep_first + keep_last
    long_enough = pc.greater(length, shown_length)
    hidden = pc.if_else(long_enough, pc.subtract(length, shown_length), length)
    stars = pc.binary_repeat(pa.scalar(with_), pc.cast(hidden, pa.int64()))
    if not shown_length:
        return stars
    first = pc.utf8_slice_codeunits(cells, 0, keep_first) if keep_first else ""
    last = pc.utf8_slice_codeunits(cells, -keep_last) if keep_last else ""
    return pc.if_else(long_enough, pc.binary_join_element_wise(first, stars, last, ""), stars)


def keyed_hash(cells: pa.Array, key: bytes) -> pa.Array:
    """HMAC-SHA256 as hexadecimal digits; each different value is hashed once."""
    encoded = cells.dictionary_encode()
    digest = hmac.digest
    hashes = [digest(key, value, "sha256").hex() for value in encoded.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(hashes, pa.string()).take(encoded.indices)


def rewrite(cells: pa.Array, pattern: str, replacement: str) -> pa.Array:
    """Every match replaced."""
    return pc.replace_substring_regex(cells, pattern=pattern, replacement=replacement)
