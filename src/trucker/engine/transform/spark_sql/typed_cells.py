"""Converts cells between PostgreSQL's text and typed Arrow columns for Spark.

Whole columns at a time. The text of a result is the text that PostgreSQL would write (with `postgres.connect`'s
settings), so that an unchanged value is the same to the byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.engine.transform.spark_sql.arrays import NotOneDimension, flat, format_arrays, parse_arrays, strings
from trucker.engine.transform.spark_sql.floats import float_text
from trucker.engine.transform.spark_sql.types import SparkForm
from trucker.errors import EngineError
from trucker.table import Column
from trucker.types import Kind

UNHELD: Final = "TRK540"
OUT_OF_RANGE: Final = "TRK541"

_WHAT_NOT: Final = {
    Kind.NUMERIC: "NaN, infinity, or a number with more digits",
    Kind.DATE: "infinity, or a year outside 1 to 9999",
    Kind.TIMESTAMP: "infinity, or a year outside 1 to 9999",
    Kind.TIMESTAMPTZ: "infinity, or a year outside 1 to 9999",
}
# 0001-01-01 and 9999-12-31, in days from 1970-01-01.
_DAYS: Final = (-719_162, 2_932_896)
_DAY_MICROSECONDS: Final = 86_400_000_000
_SCALE_WITHOUT_EXPONENT: Final = 6
_NIBBLES: Final = np.zeros(256, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _NIBBLES[_byte] = _digit
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def typed(cells: pa.Array, column: Column, form: SparkForm) -> pa.Array:
    """PostgreSQL's texts as values of `form`. Raises an error that names the column, never a value (I10)."""
    try:
        if not form.array:
            return _values(cells, form)
        lists = parse_arrays(cells)
        values = _values(lists.values, form)
        return pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null() if lists.null_count else None)
    except NotOneDimension:
        what = "an array of more than one dimension, or one that does not begin at 1"
    except pa.ArrowInvalid:
        what = _WHAT_NOT.get(form.kind, "a value in another format")
    raise EngineError(
        f'column "{column.name}" ({column.type_name}) has a value that Spark type {form.ddl} cannot hold: {what}',
        remedy=f'convert it to text before Spark: a `cast` rule for "{column.name}", or ::text in input.sql',
        code=UNHELD,
    )


def texts(values: pa.Array, form: SparkForm, name: str) -> pa.Array:
    """Spark's values as PostgreSQL's texts; `name` is the column's, for an error."""
    if not form.array:
        return _texts(values, form.kind, name)
    return format_arrays(values, _texts(values.flatten(), form.kind, name))


def _values(cells: pa.Array, form: SparkForm) -> pa.Array:
    if form.kind is Kind.TEXT:
        return cells
    if form.kind is Kind.BOOLEAN:
        return pc.equal(cells, "t")
    if form.kind is Kind.BYTES:
        return _bytes(cells)
    return pc.cast(cells, form.arrow)


def _bytes(cells: pa.Array) -> pa.Array:
    r"""`\x6162` as the bytes `ab`."""
    offsets, data = flat(cells.fill_null("\\x") if cells.null_count else cells)
    is_digit = np.ones(len(data), np.bool_)
    is_digit[offsets[:-1]] = is_digit[offsets[:-1] + 1] = False
    digits = _NIBBLES[data[is_digit]]
    count = np.arange(len(offsets), dtype=np.int64)
    octets = (digits[0::2] * 16 + digits[1::2]).astype(np.uint8)
    decoded = strings((offsets - 2 * count) // 2, octets, pa.binary())
    return pc.if_else(cells.is_valid(), decoded, pa.scalar(None, pa.binary())) if cells.null_count else decoded


def _texts(values: pa.Array, kind: Kind, name: str) -> pa.Array:
    if kind in (Kind.REAL, Kind.DOUBLE):
        return float_text(values)
    if kind is Kind.NUMERIC:
        return _numeric_text(values)
    if kind is Kind.BOOLEAN:
        return pc.if_else(values, "t", "f")
    if kind is Kind.BYTES:
        return _hex_text(values)
    if kind is Kind.DATE:
        _check_range(pc.cast(values, pa.int32()), 1, name)
    elif kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _timestamp_text(values, kind, name)
    return pc.cast(values, pa.string())


def _numeric_text(values: pa.Array) -> pa.Array:
    """Decimals as text. Arrow writes small ones with an exponent, but never integers: so the point is inserted here."""
    scale = values.type.scale
    if scale <= _SCALE_WITHOUT_EXPONENT:
        return pc.cast(values, pa.string())
    whole = pa.Array.from_buffers(
        pa.decimal128(values.type.precision, 0), len(values), values.buffers(), offset=values.offset
    )
    digits = pc.cast(whole, pa.string())
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    whole_digits, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, whole_digits, ".", fraction, "")


def _hex_text(values: pa.Array) -> pa.Array:
    offsets, data = flat(values.fill_null(b"") if values.null_count else values)
    count = np.arange(len(offsets), dtype=np.int64)
    places = offsets * 2 + 2 * count
    text = np.empty(places[-1], np.uint8)
    digits = np.ones(len(text), np.bool_)
    text[places[:-1]], text[places[:-1] + 1] = b"\\x"
    digits[places[:-1]] = digits[places[:-1] + 1] = False
    pairs = np.empty(2 * len(data), np.uint8)
    pairs[0::2], pairs[1::2] = _HEX[data >> 4], _HEX[data & 15]
    text[digits] = pairs
    hex_text = strings(places, text, pa.string())
    return pc.if_else(values.is_valid(), hex_text, pa.scalar(None, pa.string())) if values.null_count else hex_text


def _timestamp_text(values: pa.Array, kind: Kind, name: str) -> pa.Array:
    moments = values.view(pa.int64())
    _check_range(moments, _DAY_MICROSECONDS, name)
    # Always six digits after the point: zeros at the end go, and the point with them.
    text = pc.replace_substring_regex(pc.cast(moments.view(pa.timestamp("us")), pa.string()), r"\.?0+$", "")
    return text if kind is Kind.TIMESTAMP else pc.binary_join_element_wise(text, "+00", "")


def _check_range(numbers: pa.Array, unit: int, name: str) -> None:
    """Refuse years outside 1 to 9999: PostgreSQL writes them differently, and most come from a mistake in a query."""
    first, last = _DAYS[0] * unit, (_DAYS[1] + 1) * unit - 1
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and not (first <= ends["min"] and ends["max"] <= last):
        raise EngineError(
            f'column "{name}" of the result has a year outside 1 to 9999',
            remedy="correct the query, or return the value as text",
            code=OUT_OF_RANGE,
        )
