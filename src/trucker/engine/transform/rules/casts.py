"""A column's text as another type would write it, checked value by value.

A cast goes by PostgreSQL's text: it is possible where the text of one type is the input of the other. The result is the
text that the other type would write, so that `007` as an integer is `7`. Usual values are converted a column at a time,
other notations one distinct value at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Column, Mask
from trucker.config.cast_types import CastType
from trucker.engine.transform.rules.compare import FALSE, RANGES, TRUE, comparison_of, is_text, read_time
from trucker.engine.transform.rules.moments import beyond_timestamps, moment_text
from trucker.engine.transform.rules.numbers import compare_numerics, float_text, numeric_text, parse_float, trimmed
from trucker.types import Kind, column_kind

Fitted = tuple[pa.Array, Mask]
"""The cells as the type writes them, and which of them it cannot hold."""

_INTEGERS: Final = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
_NUMBERS: Final = _INTEGERS | {Kind.NUMERIC, Kind.REAL, Kind.DOUBLE}
_STAMPS: Final = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
_FROM: Final = {
    **dict.fromkeys(_NUMBERS, _NUMBERS),
    Kind.BOOLEAN: _INTEGERS | {Kind.BOOLEAN},
    Kind.DATE: frozenset({Kind.DATE}),
    Kind.TIMESTAMP: _STAMPS,
    Kind.TIMESTAMPTZ: _STAMPS,
    Kind.TIME: frozenset({Kind.TIME}),
    Kind.UUID: frozenset({Kind.UUID}),
    Kind.JSON: frozenset({Kind.JSON}),
}
_PLAIN_INTEGER: Final = r"^-?\d{1,18}$"
_NUMERAL: Final = r"^-?(?:0|[1-9]\d*)(?:\.\d+)?$"
_NO_ZERO: Final = r"^-0(?:\.0*)?$"
_SMALL: Final = r"^-?0\.0000"
_DAY: Final = (
    r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-"
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,5}[1-9])?"
_UUID: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def castable(column: Column, to: CastType) -> bool:
    """Whether values of the column can be converted to that type."""
    if to.kind is Kind.TEXT:
        return True
    source = column_kind(column)
    if source.array:
        return False
    return source.kind in _FROM[to.kind] or (is_text(column) and to.kind is not Kind.JSON)


def cast(cells: pa.Array, column: Column, to: CastType) -> Fitted:
    """The column's cells as the type writes them."""
    if to.kind is Kind.TEXT:
        too_long = pc.greater(pc.utf8_length(cells), to.length) if to.length else None
        return cells, _true(too_long) if too_long is not None else np.zeros(len(cells), np.bool_)
    source = column_kind(column).kind
    if to.kind in (Kind.JSON, source) and to.length is None:
        return cells, np.zeros(len(cells), np.bool_)
    if to.kind in _INTEGERS:
        return _integers(cells, to.kind)
    if to.kind is Kind.NUMERIC:
        return _numerics(cells, to)
    if to.kind in (Kind.REAL, Kind.DOUBLE):
        return _floats(cells, pa.float32() if to.kind is Kind.REAL else pa.float64())
    if to.kind is Kind.BOOLEAN:
        return _booleans(cells)
    if to.kind in _STAMPS:
        return _stamps(cells, source, to.kind)
    usual, read = (_UUID, _read_uuid) if to.kind is Kind.UUID else (rf"^{_CLOCK}$", read_time)
    return _either(cells, _true(pc.match_substring_regex(cells, usual)), read)


def _integers(cells: pa.Array, kind: Kind) -> Fitted:
    plain = pc.replace_substring_regex(pc.utf8_trim_whitespace(cells), r"^\+", "")
    plain = pc.replace_substring_regex(plain, r"^(-?)0+(\d)", r"\1\2")
    plain = pc.if_else(pc.equal(plain, "-0"), "0", plain)
    whole = pc.match_substring_regex(plain, r"^-?\d+$")
    bad = ~_true(whole) & np.asarray(pc.is_valid(cells))
    short = _true(pc.match_substring_regex(plain, _PLAIN_INTEGER))
    least, beyond = RANGES.get(kind, (-(1 << 63), 1 << 63))
    if kind is not Kind.BIGINT:
        bad |= np.asarray(pc.is_valid(cells)) & ~short
        numbers = np.asarray(pc.if_else(pa.array(short), plain, "0").cast(pa.int64()))
        return plain, bad | (short & ((numbers < least) | (numbers >= beyond)))
    long = np.flatnonzero(_true(whole) & ~short)
    if len(long):
        some = plain.take(pa.array(long))
        bad[long] = (compare_numerics(some, str(beyond - 1)) > 0) | (compare_numerics(some, str(least)) < 0)
    return plain, bad


def _numerics(cells: pa.Array, to: CastType) -> Fitted:
    usual = _true(pc.match_substring_regex(cells, _NUMERAL)) & ~_true(pc.match_substring_regex(cells, _NO_ZERO))
    plain, bad = _either(cells, usual, numeric_text)
    if to.length is None or to.scale is None:
        return plain, bad
    short = trimmed(plain)
    number = _true(pc.match_substring_regex(short, _NUMERAL))
    parts = pc.extract_regex(pc.if_else(pa.array(number), short, "0"), r"^(?P<sign>-?)(?P<whole>\d+)\.?(?P<rest>\d*)$")
    whole, rest = parts.field("whole"), parts.field("rest")
    digits = np.where(_true(pc.equal(whole, "0")), 0, np.asarray(pc.fill_null(pc.utf8_length(whole), 0)))
    bad |= (digits > to.length - to.scale) | _true(pc.greater(pc.utf8_length(rest), to.scale))
    bad |= ~number & _true(pc.not_equal(short, "NaN"))
    if to.scale:
        whole = pc.binary_join_element_wise(whole, pc.utf8_rpad(rest, to.scale, "0"), ".")
    text = pc.binary_join_element_wise(parts.field("sign"), whole, "")
    return pc.if_else(pa.array(number), text, plain), bad


def _floats(cells: pa.Array, kind: pa.DataType) -> Fitted:
    """A number with at most 6 (real) or 15 significant digits survives as text; others are parsed and written again."""
    most = 6 if pa.types.is_float32(kind) else 15
    short = trimmed(cells)
    few = pc.less_equal(pc.count_substring_regex(short, r"\d"), most)
    usual = _true(pc.match_substring_regex(cells, _NUMERAL)) & _true(few)
    usual &= ~_true(pc.match_substring_regex(short, _SMALL)) & ~_true(pc.match_substring_regex(short, _NO_ZERO))

    def read(text: str) -> str | None:
        number = parse_float(text, kind)
        return None if number is None else float_text(number, kind)

    plain, bad = _either(cells, usual, read)
    return pc.if_else(pa.array(usual), short, plain), bad


def _booleans(cells: pa.Array) -> Fitted:
    words = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
    yes, no = pc.is_in(words, value_set=pa.array(TRUE)), pc.is_in(words, value_set=pa.array(FALSE))
    text = pc.if_else(yes, "t", pc.if_else(no, "f", pa.scalar(None, pa.string())))
    return text, np.asarray(pc.is_valid(cells)) & ~_true(pc.or_(yes, no))


def _stamps(cells: pa.Array, source: Kind, to: Kind) -> Fitted:
    zone, clock = to is Kind.TIMESTAMPTZ, to is not Kind.DATE
    if source in _STAMPS:
        far = beyond_timestamps(cells) if source is Kind.DATE else np.zeros(len(cells), np.bool_)
        return _restamped(cells, source, to), far
    usual = rf"^{_DAY}{f' {_CLOCK}' if clock else ''}{r'[+]00' if zone else ''}$"
    return _either(
        cells, _true(pc.match_substring_regex(cells, usual)), lambda text: moment_text(text, zone=zone, clock=clock)
    )


def _restamped(cells: pa.Array, source: Kind, to: Kind) -> pa.Array:
    """Between dates and timestamps: at midnight, and in UTC."""
    if source is Kind.TIMESTAMPTZ:
        return pc.replace_substring(cells, "+00", "")
    added = (" 00:00:00" if source is Kind.DATE else "") + ("+00" if to is Kind.TIMESTAMPTZ else "")
    return pc.replace_substring_regex(cells, r"^(\d.*?)( BC)?$", rf"\1{added}\2")


def _read_uuid(text: str) -> str | None:
    parsed = comparison_of(Column("", 2950, type_name="uuid")).read(text)
    return None if parsed is None else str(parsed)


def _either(cells: pa.Array, usual: Mask, read: Callable[[str], str | None]) -> Fitted:
    """The cells, with those that are not usual converted by `read`, which returns None for what does not fit."""
    odd = np.flatnonzero(~usual & np.asarray(pc.is_valid(cells)))
    bad = np.zeros(len(cells), np.bool_)
    if not len(odd):
        return cells, bad
    encoded = cells.take(pa.array(odd)).dictionary_encode()
    parsed = pa.array([read(text) for text in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)
    bad[odd] = np.asarray(pc.is_null(parsed))
    mask = np.zeros(len(cells), np.bool_)
    mask[odd] = True
    return pc.replace_with_mask(cells, pa.array(mask), parsed), bad


def _true(mask: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(mask, False))
