"""Changes as JSON lines, one line per change, made by column.

    {"operation":"update","schema":"public","table":"orders","commit_lsn":"0/16B3748",
     "commit_time":"2026-01-31T12:00:00.123456Z","xid":741,"new":{…},"old":{…},"key":{…},"unchanged":["body"]}

`new` is null in deletes and truncates. `old` is what PostgreSQL sent of the row before: the key, the whole row (replica
identity FULL) or null. `key` is the row's key after the change (before it, in a delete), null where the table has none.
`unchanged` is there only when a value was not sent because it did not change; such a column is absent from `new`.
`json_null` and `old_json_null` are there only when a json column of `new` or `old` holds JSON's own null: they name it,
because a column without a value looks the same.
A row of a snapshot is an insert with `"snapshot":true` and the snapshot's LSN; it has no time and no xid.

Cells: integers, floats and numerics are JSON numbers with PostgreSQL's own digits (NaN and the infinities are strings),
booleans are booleans, json and jsonb are embedded as they are, everything else is PostgreSQL's text as a string. A
column whose policy is `text` is a string whatever its type; `null` and `error` are for numbers without digits.

Rows alike in shape (operation, kind of old row, columns not sent) share one template of constants and cells, which
Arrow joins; no step is done per row in Python.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.adapters.json_types import TYPES, JsonForm
from trucker.change import DELETE, NO_OLD, OLD_FULL, OPERATIONS, TRUNCATE, Changes, Column, TableSchema
from trucker.errors import SinkError
from trucker.sinks.target import Target
from trucker.types import Unfit, column_kind

Indices = npt.NDArray[np.int64]


def lines(changes: Changes, target: Target | None = None, *, snapshot: bool = False) -> pa.LargeStringArray:
    """One line per change, in their order, each with its newline.

    `target` gives the name to show, if not the source's, and the policy for numbers that JSON cannot express.
    """
    if not len(changes):
        return pa.array([], pa.large_string())
    shapes = _shapes(changes)
    target = target or Target("", changes.schema, changes.schema.table)
    parts = [_shape_lines(changes, shape, target, snapshot) for shape in shapes]
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([shape.rows for shape in shapes]), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


@dataclass(frozen=True, slots=True)
class _Shape:
    """Rows that have the same operation, kind of old row and columns not sent."""

    rows: Indices
    op: int
    old_kind: int
    unchanged: tuple[str, ...]


def _shapes(changes: Changes) -> list[_Shape]:
    names = [name for name in changes.schema.names if name in changes.unchanged]
    code = changes.op.astype(np.int64) << 8 | changes.old_kind
    masks = np.zeros(len(changes), np.int64)
    for name in names:
        # Renumbered at every column, so that any number of columns fits.
        _, masks = np.unique(masks << 1 | changes.unchanged[name], return_inverse=True)
    _, first, shape = np.unique(masks << 16 | code, return_index=True, return_inverse=True)
    order = np.argsort(shape, kind="stable")
    bounds = np.searchsorted(shape[order], np.arange(len(first) + 1))
    return [
        _Shape(
            order[bounds[i] : bounds[i + 1]],
            int(changes.op[row]),
            int(changes.old_kind[row]),
            tuple(name for name in names if changes.unchanged[name][row]),
        )
        for i, row in enumerate(first)
    ]


def _shape_lines(changes: Changes, shape: _Shape, target: Target, snapshot: bool) -> pa.LargeStringArray:
    part = changes if len(shape.rows) == len(changes) else changes.take(shape.rows)
    schema, table = part.schema, target.table
    line = _Template()
    line.constant(f'{{"operation":"{OPERATIONS[shape.op]}","schema":{_quoted(table.schema)}')
    line.constant(f',"table":{_quoted(table.name)},"commit_lsn":"')
    line.cells(_transactions(part, snapshot))
    has_new = shape.op not in (DELETE, TRUNCATE)
    has_old = shape.old_kind != NO_OLD and shape.op != TRUNCATE
    sent = [column for column in schema.columns if column.name not in shape.unchanged]
    old_columns = schema.columns if shape.old_kind == OLD_FULL else _key_columns(schema)
    new, old = _Cells(part.new, target), _Cells(part.old, target)
    line.item("new", sent if has_new else None, new)
    line.item("old", old_columns if has_old else None, old)
    key = _key_columns(schema) if schema.key and (has_new or has_old) else None
    line.item("key", key, old if not has_new or _key_unsent(schema, shape) else new)
    if shape.unchanged and has_new:
        line.constant(f',"unchanged":{json.dumps(shape.unchanged, ensure_ascii=False, separators=(",", ":"))}')
    line.json_nulls("json_null", sent if has_new else (), new)
    line.json_nulls("old_json_null", old_columns if has_old else (), old)
    line.constant("}\n")
    return line.join(len(part))


def _key_columns(schema: TableSchema) -> Sequence[Column]:
    return [column for column in schema.columns if column.name in schema.key]


def _key_unsent(schema: TableSchema, shape: _Shape) -> bool:
    """A key too large for its row is not sent again when it stays: the old row, where there is one, has it."""
    return shape.old_kind != NO_OLD and not frozenset(schema.key).isdisjoint(shape.unchanged)


class _Template:
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

    def item(self, name: str, columns: Sequence[Column] | None, cells: _Cells) -> None:
        """`,"name":{…}` with these columns, or null where `columns` is None."""
        if columns is None:
            self.constant(f',"{name}":null')
            return
        self.constant(f',"{name}":{{')
        for position, column in enumerate(columns):
            self.constant(f"{',' if position else ''}{_quoted(column.name)}:")
            text, mark = cells.of(column)
            self.constant(mark)
            self.cells(text)
            self.constant(mark)
        self.constant("}")

    def json_nulls(self, name: str, columns: Sequence[Column], cells: _Cells) -> None:
        """`,"name":[…]` in rows where one of the columns holds JSON's null."""
        marks = [
            pc.if_else(held, pa.scalar(f",{_quoted(column.name)}", pa.large_string()), _NOTHING)
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


class _Cells:
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
    escaped = _escaped(text)
    if escaped.null_count == 0:
        return escaped, '"'
    return pc.binary_join_element_wise(_MARK, escaped, _MARK, _NOTHING), ""


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


def _escaped(text: pa.Array) -> pa.Array:
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


def _transactions(changes: Changes, snapshot: bool) -> pa.Array:
    """What a line says of its transaction, from the LSN on; made once for all lines of one that follow each other."""
    lsn, time, xid = changes.commit_lsn, changes.commit_time, changes.xid
    new = np.ones(len(changes), np.bool_)
    new[1:] = (lsn[1:] != lsn[:-1]) | (time[1:] != time[:-1]) | (xid[1:] != xid[:-1])
    line = _Template()
    line.cells(_lsn_text(lsn[new]))
    if snapshot:
        line.constant('","commit_time":null,"xid":null,"snapshot":true')
    else:
        line.constant('","commit_time":"')
        line.cells(_time_text(time[new]))
        line.constant('","xid":')
        line.cells(pa.array(xid[new]).cast(pa.large_string()))
    texts = line.join(int(np.count_nonzero(new)))
    return texts if len(texts) == len(changes) else texts.take(pa.array(np.cumsum(new) - 1))


def _lsn_text(lsn: npt.NDArray[np.uint64]) -> pa.Array:
    """PostgreSQL's form of every position, `16/B374D848`, from a matrix of digits less its leading zeros."""
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (lsn[:, None] >> shifts & np.uint64(15)).astype(np.uint8)
    shown = np.empty((len(lsn), 17), np.bool_)
    characters = np.full((len(lsn), 17), ord("/"), np.uint8)
    for half, place in ((slice(0, 8), slice(0, 8)), (slice(8, 16), slice(9, 17))):
        characters[:, place] = _HEX[digits[:, half]]
        shown[:, place] = np.logical_or.accumulate(digits[:, half] != 0, axis=1)
    shown[:, [7, 8, 16]] = True
    return _text_of(characters[shown], np.count_nonzero(shown, axis=1))


_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _time_text(microseconds: npt.NDArray[np.int64]) -> pa.Array:
    """RFC 3339 with six digits of a second, in UTC."""
    text = pa.array(microseconds, pa.timestamp("us")).cast(pa.large_string())
    # Arrow writes years of four digits in a fixed width, with a space where RFC 3339 has a T.
    characters = np.frombuffer(text.buffers()[2], np.uint8).copy().reshape(len(microseconds), -1)
    characters[:, 10] = ord("T")
    stamped = np.hstack([characters, np.full((len(characters), 1), ord("Z"), np.uint8)])
    return _text_of(stamped.ravel(), np.full(len(stamped), stamped.shape[1]))


def _text_of(data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def block(text: pa.LargeStringArray) -> memoryview:
    """The bytes of all these lines, without a copy."""
    if len(text) == 0:
        return memoryview(b"")
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    return memoryview(text.buffers()[2])[offsets[0] : offsets[-1]]
