"""Text of JSON, made by column: cells, positions, times, and templates of constants and columns that Arrow joins.

Cells: integers, floats and numerics are JSON numbers with PostgreSQL's own digits (NaN and the infinities are strings),
booleans are booleans, json and jsonb are embedded as they are, everything else is PostgreSQL's text as a string. A
column whose policy is `text` is a string whatever its type; `null` and `error` are for numbers without digits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.adapters.json_types import TYPES, JsonForm
from trucker.change import Column
from trucker.errors import SinkError
from trucker.sinks.target import Target
from trucker.types import Unfit, column_kind


class JsonTemplate:
    """Constants and columns of text, joined row by row at the end."""

    def __init__(self) -> None:
        self._pieces: list[str | pa.Array] = [""]

    def constant(self, text: str) -> None:
        if isinstance(self._pieces[-1], str):
            self._pieces[-1] += text
        else:
            self._pieces.append(text)

    def cells(self, text: pa.Array) -> None:
        """A column of JSON; a null in it is JSON's null."""
        self._pieces.append(text)

    def item(self, name: str, columns: Sequence[Column] | None, cells: RowCells) -> None:
        """`,"name":{…}` with these columns, or null where `columns` is None."""
        self.constant(f',"{name}":')
        self.row(columns, cells)

    def row(self, columns: Sequence[Column] | None, cells: RowCells) -> None:
        """An object with these columns, or null where `columns` is None."""
        if columns is None:
            self.constant("null")
            return
        self.constant("{")
        self.members(columns, cells)
        self.constant("}")

    def members(self, columns: Sequence[Column], cells: RowCells) -> None:
        """`"column":…` for each of these columns, with commas between them."""
        for position, column in enumerate(columns):
            self.constant(f"{',' if position else ''}{quoted(column.name)}:")
            text, mark = cells.of(column)
            self.constant(mark)
            self.cells(text)
            self.constant(mark)

    def json_nulls(self, name: str, columns: Sequence[Column], cells: RowCells) -> None:
        """`,"name":[…]` in rows where one of the columns holds JSON's null."""
        marks = [
            pc.if_else(held, pa.scalar(f",{quoted(column.name)}", pa.large_string()), _NOTHING)
            for column in columns
            if (held := cells.json_null(column)) is not None
        ]
        if marks:
            names = pc.binary_join_element_wise(*marks, _NOTHING)
            self.cells(pc.replace_substring_regex(names, "(?s)^,(.+)$", rf',"{name}":[\1]'))

    def join(self, count: int) -> pa.LargeStringArray:
        pieces = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in self._pieces]
        if not any(isinstance(piece, pa.Array) for piece in pieces):
            return pa.array([self._pieces[0]] * count, pa.large_string())
        nothing = pa.scalar("", pa.large_string())
        return pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement="null")


class RowCells:
    """The rows of one side (new or old) as JSON, each column made once."""

    def __init__(self, rows: pa.RecordBatch, target: Target) -> None:
        self._rows = rows
        self._target = target
        self._cache: dict[str, tuple[pa.Array, str]] = {}

    def of(self, column: Column) -> tuple[pa.Array, str]:
        """The column's cells, and the quotation mark to put around each of them, or none."""
        if column.name not in self._cache:
            text = self._rows.column(column.name).cast(pa.large_string())
            self._cache[column.name] = _json_cells(text, column, self._target)
        return self._cache[column.name]

    def json_null(self, column: Column) -> pa.Array | None:
        """Which of the column's cells are JSON's null; None where none is, or could be mistaken."""
        if _form(column, self._target) is not JsonForm.EMBEDDED:
            return None
        held = pc.fill_null(pc.equal(pc.utf8_trim(self.of(column)[0], " \t"), "null"), False)
        return held if pc.any(held).as_py() else None


def _form(column: Column, target: Target) -> JsonForm:
    return JsonForm.STRING if target.unfit_of(column.name) is Unfit.TEXT else TYPES.json_form(column_kind(column))


def _json_cells(text: pa.Array, column: Column, target: Target) -> tuple[pa.Array, str]:
    unfit, form = target.unfit_of(column.name), _form(column, target)
    if form is JsonForm.NUMBER:
        return _numbers(text, unfit, column, target), ""
    if form is JsonForm.BOOLEAN:
        return pc.if_else(pc.equal(text, "t"), _TRUE, _FALSE), ""
    if form is JsonForm.EMBEDDED:
        return _one_line(text), ""
    escaped = escaped_text(text)
    if escaped.null_count == 0:
        return escaped, '"'
    return in_quotes(escaped), ""


def in_quotes(escaped: pa.Array) -> pa.Array:
    """Escaped text as strings of JSON; null where the text is."""
    return pc.binary_join_element_wise(_MARK, escaped, _MARK, _NOTHING)


_TRUE: Final = pa.scalar("true", pa.large_string())
_FALSE: Final = pa.scalar("false", pa.large_string())
_MARK: Final = pa.scalar('"', pa.large_string())
_NOTHING: Final = pa.scalar("", pa.large_string())


def _table_of(characters: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(characters)] = True
    return table


_ESCAPED: Final = _table_of(b'"\\' + bytes(range(32)))
_NAME_LETTERS: Final = _table_of(b"Ny")
_BREAKS: Final = _table_of(b"\n\r")


def _has_any(text: pa.Array, wanted: npt.NDArray[np.bool_]) -> bool:
    """Whether any byte of the column is one of these: one pass over the buffer, whatever the rows."""
    data = text.buffers()[2]
    if data is None or len(text) == 0:
        return False
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    return bool(wanted[np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]].any())


def _numbers(text: pa.Array, unfit: Unfit | None, column: Column, target: Target) -> pa.Array:
    """Numbers as they are; NaN, Infinity and -Infinity, which JSON has no numbers for, as strings or as is said."""
    if not _has_any(text, _NAME_LETTERS):
        return text
    if unfit is None:
        return pc.replace_substring_regex(text, r"^(NaN|-?Infinity)$", r'"\1"')
    named = pc.match_substring_regex(text, r"^(NaN|-?Infinity)$")
    if unfit is Unfit.ERROR and pc.any(named).as_py():
        raise SinkError(
            f"column {column.name!r} of table {target.table} has NaN or infinity, which are not numbers in JSON",
            remedy=f"in truck {target.truck} write output.columns.{column.name}.unfit: null or text; by default "
            "they are strings",
            code="TRK459",
        )
    return pc.if_else(named, pa.scalar(None, pa.large_string()), text)


def _one_line(text: pa.Array) -> pa.Array:
    """JSON in one line. A raw line break in valid JSON stands between tokens only, so a space means the same."""
    if not _has_any(text, _BREAKS):
        return text
    return pc.replace_substring_regex(text, r"[\r\n]", " ")


def escaped_text(text: pa.Array) -> pa.Array:
    """The text as it stands between JSON's quotation marks; only rows that need it are touched."""
    if not _has_any(text, _ESCAPED):
        return text
    touched = pc.fill_null(pc.match_substring_regex(text, r'["\\\x00-\x1f]'), False)
    rows = text.filter(touched)
    present = np.unique(np.frombuffer(rows.buffers()[2], np.uint8))
    # The backslash comes first: the others bring backslashes of their own.
    for code in sorted(set(present[_ESCAPED[present]].tolist()), key=lambda code: code != ord("\\")):
        rows = pc.replace_substring(rows, chr(code), json.dumps(chr(code))[1:-1])
    return pc.replace_with_mask(text, touched, rows)


def lsn_text(lsn: npt.NDArray[np.uint64]) -> pa.Array:
    """PostgreSQL's form of every position, `16/B374D848`, from a matrix of digits less its leading zeros."""
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (lsn[:, None] >> shifts & np.uint64(15)).astype(np.uint8)
    shown = np.empty((len(lsn), 17), np.bool_)
    characters = np.full((len(lsn), 17), ord("/"), np.uint8)
    for half, place in ((slice(0, 8), slice(0, 8)), (slice(8, 16), slice(9, 17))):
        characters[:, place] = _HEX[digits[:, half]]
        shown[:, place] = np.logical_or.accumulate(digits[:, half] != 0, axis=1)
    shown[:, [7, 8, 16]] = True
    return string_of_bytes(characters[shown], np.count_nonzero(shown, axis=1))


_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def time_text(microseconds: npt.NDArray[np.int64]) -> pa.Array:
    """RFC 3339 with six digits of a second, in UTC."""
    if not len(microseconds):
        return pa.array([], pa.large_string())
    text = pa.array(microseconds, pa.timestamp("us")).cast(pa.large_string())
    # Arrow writes years of four digits in a fixed width, with a space where RFC 3339 has a T.
    characters = np.frombuffer(text.buffers()[2], np.uint8).copy().reshape(len(microseconds), -1)
    characters[:, 10] = ord("T")
    stamped = np.hstack([characters, np.full((len(characters), 1), ord("Z"), np.uint8)])
    return string_of_bytes(stamped.ravel(), np.full(len(stamped), stamped.shape[1]))


def string_of_bytes(data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def block(text: pa.LargeStringArray) -> memoryview:
    """The bytes of all these lines, without a copy."""
    if len(text) == 0:
        return memoryview(b"")
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    return memoryview(text.buffers()[2])[offsets[0] : offsets[-1]]
