"""PostgreSQL's array text and Arrow's lists, a whole column at a time.

Only arrays of one dimension that begin at 1 have a list: `{1,2,NULL}`, `{"a,b","say \\"hi\\"",""}`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,{}'
_NEEDS_QUOTES: Final = r'^$|^(?i:null)$|[{},"\\ \t\n\r\v\f]'


class NotOneDimension(ValueError):
    """A value has more dimensions than one, or other bounds than from 1 on."""


def flat(cells: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each cell of a string or binary column begins and ends in the bytes of all; the first begins at 0."""
    _, offsets, data = cells.buffers()
    bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], content[bounds[0] : bounds[-1]]


def strings(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    """A string or binary column of the cells that lie so in `data`."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def parse_arrays(cells: pa.Array) -> pa.Array:
    """The arrays' texts as lists of their elements' texts. Raises NotOneDimension."""
    if len(cells) == 0:
        return pa.array([], pa.list_(pa.string()))
    nulls = cells.is_null() if cells.null_count else None
    offsets, data = flat(cells.fill_null("{}") if cells.null_count else cells)
    # A character is escaped by an odd number of backslashes before it.
    at = np.arange(len(data))
    slashes = data == _BACKSLASH
    plain_before = np.maximum.accumulate(np.where(slashes, -1, at))
    escaped = np.zeros(len(data), np.bool_)
    escaped[1:] = ((at[:-1] - plain_before[:-1]) % 2).astype(np.bool_)
    quotes = (data == _QUOTE) & ~escaped
    outside = (np.cumsum(quotes) % 2 == 0) & ~quotes
    opening, closing = outside & (data == _OPEN), outside & (data == _CLOSE)
    if not np.array_equal(np.flatnonzero(opening), offsets[:-1]):
        raise NotOneDimension
    commas = outside & (data == _COMMA)
    filled = np.diff(offsets) > 2
    begins, ends = commas.copy(), commas.copy()
    begins[offsets[:-1][filled]] = True
    ends[offsets[1:][filled] - 1] = True
    starts = np.flatnonzero(begins) + 1
    content = ~(quotes | opening | closing | commas | (slashes & ~escaped))
    places = np.concatenate([[0], np.cumsum(content)])
    elements = strings(np.append(places[starts], places[-1]), data[content], pa.string())
    unquoted = pa.array(data[starts] != _QUOTE) if len(starts) else pa.array([], pa.bool_())
    is_null = pc.and_(unquoted, pc.equal(elements, "NULL"))
    elements = pc.if_else(is_null, pa.scalar(None, pa.string()), elements)
    counts = np.searchsorted(starts, offsets[1:]) if len(starts) else np.zeros(len(cells), np.int64)
    bounds = pa.array(np.concatenate([[0], counts]), pa.int32())
    return pa.ListArray.from_arrays(bounds, elements, mask=nulls)


def format_arrays(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """The arrays' texts. `elements` are the texts of all the lists' values, `lists.flatten()`."""
    needs = pc.match_substring_regex(elements, _NEEDS_QUOTES)
    if pc.any(needs).as_py():
        escaped = pc.replace_substring_regex(elements, r'(["\\])', r"\\\1")
        quoted = pc.binary_join_element_wise('"', escaped, '"', "")
        elements = pc.if_else(needs, quoted, elements)
    elements = elements.fill_null("NULL")
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(bounds, elements), ",")
    text = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(lists.is_valid(), text, pa.scalar(None, pa.string()))
