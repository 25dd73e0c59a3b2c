"""COPY's text format from Arrow string columns, without a Python loop per row.

    cell        bytes
    NULL        \\N
    backslash   \\\\
    tab         \\t
    newline     \\n
    CR          \\r

Cells are joined by tabs, rows end with a newline. No end-of-data marker is written: a client's CopyDone ends the data,
and a cell that is `\\.` becomes `\\\\.`, which no server takes for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

# A cell that is one value for all rows may be given as plain text, already escaped.
Cells: TypeAlias = "pa.Array | str"

NULL: Final = "\\N"

# The backslash comes first: the others bring new ones in.
_ESCAPES: Final = ((b"\\", "\\", "\\\\"), (b"\t", "\t", "\\t"), (b"\n", "\n", "\\n"), (b"\r", "\r", "\\r"))
_JOIN: Final = pc.JoinOptions(null_handling="replace", null_replacement=NULL)
# Arrow's string offsets are 32 bits; what is joined must stay well below that.
_LIMIT: Final = 1 << 30
# Made once: Arrow looks for pandas whenever it makes a scalar of a str.
_TAB: Final = pa.scalar("\t")
_NEWLINE: Final = pa.scalar("\n")
_EMPTY: Final = pa.scalar("")


def copy_text(columns: Sequence[Cells], rows: int) -> Iterator[pa.Buffer]:
    """The rows as COPY text, in one buffer or, where it is very large, in several.

    Every array has `rows` string cells. At least one column is needed.
    """
    if rows == 0:
        return
    if rows > 1 and _size(columns, rows) > _LIMIT:
        half = rows // 2
        yield from copy_text([_slice(cells, 0, half) for cells in columns], half)
        yield from copy_text([_slice(cells, half, rows) for cells in columns], rows - half)
        return
    escaped = [escape(cells) if isinstance(cells, pa.Array) else cells for cells in columns]
    last = escaped[-1]
    if isinstance(last, str):
        escaped[-1] = f"{last}\n"
    else:
        escaped[-1] = pc.binary_join_element_wise(last, _EMPTY, _NEWLINE, options=_JOIN)
    if all(isinstance(cells, str) for cells in escaped):
        yield pa.py_buffer("\t".join(escaped).encode() * rows)
        return
    cells = [_scalar(cells) if isinstance(cells, str) else cells for cells in escaped]
    yield _content(pc.binary_join_element_wise(*cells, _TAB, options=_JOIN))


@lru_cache(maxsize=256)
def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text)


def escape(cells: pa.Array) -> pa.Array:
    """The cells with COPY's special characters escaped; the same array where it holds none."""
    content = memoryview(_content(cells))
    raw = content.tobytes()
    for byte, plain, replacement in _ESCAPES:
        if byte in raw:
            cells = pc.replace_substring(cells, plain, replacement)
    return cells


def _content(cells: pa.Array) -> pa.Buffer:
    """The bytes of all cells, one after the other."""
    _, offsets, data = cells.buffers()
    if data is None or len(cells) == 0:
        return pa.py_buffer(b"")
    bounds = memoryview(offsets).cast("i")
    start, end = bounds[cells.offset], bounds[cells.offset + len(cells)]
    return data.slice(start, end - start)


def _size(columns: Sequence[Cells], rows: int) -> int:
    """At least what the text will take, for most texts exactly."""
    return sum(len(c) * rows if isinstance(c, str) else len(_content(c)) + 3 * rows for c in columns)


def _slice(cells: Cells, start: int, end: int) -> Cells:
    return cells if isinstance(cells, str) else cells.slice(start, end - start)
