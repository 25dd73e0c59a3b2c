"""Conversion of PostgreSQL's text by column: ordinary values all at once, the others one by one."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc


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
