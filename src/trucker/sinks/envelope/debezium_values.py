"""Values as Debezium's connector for PostgreSQL writes them, with `decimal.handling.mode=string` and its defaults.

    type                                  JSON
    smallint, integer, bigint, oid        number
    real, double precision                number; "NaN", "Infinity", "-Infinity"
    numeric, money                        string of the digits; "NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY"
    boolean, bit(1)                       boolean
    bytea                                 string, base64
    bit(n), bit varying                   string, base64 of the bytes, the lowest first
    date                                  number of days since 1970-01-01
    time, timestamp                       number of microseconds, with a precision of 0 to 3 of milliseconds
    timestamp with time zone              string 2026-01-31T12:00:00.123456Z; "infinity", "-infinity"
    time with time zone                   string 10:00:00.5Z, in UTC
    interval                              number of microseconds, a month being 30.4375 days
    point                                 {"x":1.0,"y":2.0,"wkb":"…","srid":null}
    arrays                                array of such values
    json, jsonb and all else              string of PostgreSQL's text

The connector writes arrays of several dimensions and the infinities of `date` as numbers that mean nothing; here they
are nested arrays, and the largest and smallest number of four bytes. PostgreSQL's text is converted by column. Values
out of the ordinary (before our era, infinite) and those of rare types are converted one by one, equal ones once.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Column
from trucker.errors import SinkError
from trucker.sinks.envelope.json_arrays import json_arrays
from trucker.sinks.envelope.json_text import RowCells, escaped_text, in_quotes, string_of_bytes
from trucker.sinks.envelope.moments import DAY, MOMENT, clock_micros, date_days, time_micros, timestamp_micros
from trucker.sinks.envelope.text_conversion import binary_of_hex, converted, each_value
from trucker.sinks.target import Target
from trucker.types import BUILT_IN

_MONTH: Final = 30.4375 * DAY
_NAMES: Final = {each.oid: each.name for each in BUILT_IN}
_MODIFIER: Final = re.compile(r"\((\d+)[^)]*\)")
_LARGE: Final = pa.large_string()
_NOTHING: Final = pa.scalar("", _LARGE)


class DebeziumCells(RowCells):
    """The rows of one side (new or old). Columns of `unsent` have `placeholder` instead of their values."""

    def __init__(
        self, rows: pa.RecordBatch, target: Target, unsent: tuple[str, ...] = (), placeholder: str = ""
    ) -> None:
        super().__init__(rows, target)
        self._unsent = unsent
        self._placeholder = placeholder

    def of(self, column: Column) -> tuple[pa.Array, str]:
        if column.name in self._unsent:
            text = _placeholder(column, self._placeholder)
            return pa.array([text] * self._rows.num_rows, _LARGE), ""
        if column.name not in self._cache:
            text = self._rows.column(column.name).cast(_LARGE)
            self._cache[column.name] = (self._converted(text, column), "")
        return self._cache[column.name]

    def _converted(self, text: pa.Array, column: Column) -> pa.Array:
        try:
            return _json(text, column)
        except (pa.ArrowException, ArithmeticError, LookupError, ValueError):  # they quote the value
            raise SinkError(
                f"column {column.name!r} of table {self._target.table} has a value that format debezium cannot write: "
                f"it is not as PostgreSQL writes the type {column.type_name or column.type_oid}",
                remedy=f"in truck {self._target.truck} cast the column to text with a rule, or set format: trucker for "
                "the connection",
                code="TRK701",
            ) from None


def base_type(column: Column) -> tuple[str, int, bool]:
    """The name of a column's type, of an array that of its elements; its precision or length, -1 without one; and
    whether it is an array."""
    if not column.type_name:
        return _NAMES.get(column.type_oid, ""), column.typmod, False
    modifier = _MODIFIER.search(column.type_name)
    name = _MODIFIER.sub("", column.type_name, count=1).strip()
    return name.removesuffix("[]"), int(modifier[1]) if modifier else -1, name.endswith("[]")


def _json(text: pa.Array, column: Column) -> pa.Array:
    """The column's cells as JSON; null where there is no value."""
    name, size, array = base_type(column)
    convert = _converter(name, size)
    return json_arrays(text, convert) if array else convert(text)


def _converter(name: str, size: int) -> Callable[[pa.Array], pa.Array]:
    short = 0 <= size <= 3
    if name in ("time without time zone", "timestamp without time zone"):
        convert = _times if name.startswith("time ") else _timestamps
        return lambda text: convert(text, 1000 if short else 1)
    if name == "timestamp with time zone":
        return lambda text: _zoned(text, 6 if size < 0 else size)
    if name == "bit" and size in (-1, 1):
        return lambda text: pc.if_else(pc.equal(text, "1"), "true", "false").cast(_LARGE)
    return _CONVERTERS.get(name, _strings)


def _strings(text: pa.Array) -> pa.Array:
    return in_quotes(escaped_text(text))


def _as_is(text: pa.Array) -> pa.Array:
    return text


def _floats(text: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(text, r"^(NaN|-?Infinity)$", r'"\1"')


def _booleans(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(text, "t"), "true", "false").cast(_LARGE)


_DECIMALS: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}


def _numerics(text: pa.Array) -> pa.Array:
    return in_quotes(converted(text, r"^-?[0-9.]+$", _as_is, lambda value: _DECIMALS[value]))


def _money(text: pa.Array) -> pa.Array:
    return in_quotes(pc.replace_substring_regex(text, r"[$,]", ""))


# -- moments -----------------------------------------------------------------------------------------------------------


def _dates(text: pa.Array) -> pa.Array:
    return date_days(text, {"infinity": str(2**31 - 1), "-infinity": str(-(2**31))})


_INFINITE: Final = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}


def _timestamps(text: pa.Array, divisor: int) -> pa.Array:
    return timestamp_micros(text, {name: str(value) for name, value in _INFINITE.items()}, divisor)


def _times(text: pa.Array, divisor: int) -> pa.Array:
    return time_micros(text, str(DAY // divisor), divisor)


def _zoned(text: pa.Array, digits: int) -> pa.Array:
    width = 20 + digits if digits else 19

    def convert(some: pa.Array) -> pa.Array:
        stamp = pc.replace_substring(pc.replace_substring(some, "+00", ""), " ", "T")
        if digits:
            dotted = pc.binary_join_element_wise(stamp, pa.scalar(".", _LARGE), _NOTHING)
            stamp = pc.if_else(pc.match_substring(stamp, "."), stamp, dotted)
            stamp = pc.utf8_rpad(stamp, width, "0")
        return _quoted_with(stamp, "Z")

    def one(value: str) -> str:
        if value in _INFINITE:
            return f'"{value}"'
        match = MOMENT.fullmatch(value)
        if match is None:
            raise ValueError("not a moment as PostgreSQL writes it")
        year = 1 - int(match[1]) if match[8] else int(match[1])
        shown = f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04d}"
        fraction = f".{(match[7] or '').ljust(digits, '0')}" if digits else ""
        return f'"{shown}-{match[2]}-{match[3]}T{match[4]}:{match[5]}:{match[6]}{fraction}Z"'

    return converted(text, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00$", convert, one)


def _quoted_with(text: pa.Array, end: str) -> pa.Array:
    marks = pa.scalar('"', _LARGE), pa.scalar(f'{end}"', _LARGE)
    return pc.binary_join_element_wise(marks[0], text, marks[1], _NOTHING)


_ZONED_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")


def _zoned_time(text: str) -> str:
    match = _ZONED_TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time as PostgreSQL writes it")
    offset = clock_micros(match[6], match[7], match[8], None) * (1 if match[5] == "+" else -1)
    moment = (clock_micros(match[1], match[2], match[3], match[4]) - offset) % DAY
    seconds, micros = divmod(moment, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return f'"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}Z"'


_INTERVAL: Final = re.compile(
    r"(?:([+-]?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)


def _interval(text: str) -> str:
    match = _INTERVAL.fullmatch(text)
    if match is None:  # PostgreSQL 17 has infinite ones
        return str(2**63 - 1 if not text.startswith("-") else -(2**63))
    months = int(match[1] or 0) * 12 + int(match[2] or 0)
    clock = clock_micros(match[5], match[6], match[7], match[8]) * (-1 if match[4] == "-" else 1)
    return str(int(months * _MONTH) + int(match[3] or 0) * DAY + clock)


# -- bytes -------------------------------------------------------------------------------------------------------------

_DIGITS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def _bytea(text: pa.Array) -> pa.Array:
    """Hexadecimal digits behind `\\x` as base64, all values in one pass."""
    binary = binary_of_hex(text)
    first = np.frombuffer(binary.buffers()[1], np.int64)
    lengths = np.diff(first)
    groups = (lengths + 2) // 3
    value = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(first[-1]) - first[value]
    starts = np.concatenate([[0], np.cumsum(groups * 3)])
    padded = np.zeros(starts[-1], np.uint8)
    padded[starts[value] + place] = np.frombuffer(binary.buffers()[2], np.uint8)[: first[-1]]
    triples = padded.reshape(-1, 3).astype(np.uint32)
    bits = triples[:, 0] << 16 | triples[:, 1] << 8 | triples[:, 2]
    letters = _DIGITS[(bits[:, None] >> np.array([18, 12, 6, 0], np.uint32)) & 63]
    ends = np.cumsum(groups)
    for lacking in (1, 2):  # values whose last group is not full
        rows = ends[groups * 3 - lengths >= lacking] - 1
        letters[rows, 4 - lacking] = ord("=")
    encoded = string_of_bytes(letters.ravel(), groups * 4)
    return in_quotes(pc.if_else(pc.is_valid(text), encoded, None))


def _bits(text: str) -> str:
    size = (len(text) + 7) // 8
    return f'"{base64.b64encode(int(text or "0", 2).to_bytes(max(size, 1), "little")).decode()}"'


def _point(text: str) -> str:
    x, y = (float(number) for number in text.strip("()").split(","))
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    return f'{{"x":{_number(x)},"y":{_number(y)},"wkb":"{wkb}","srid":null}}'


def _number(value: float) -> str:
    return json.dumps(value) if abs(value) < float("inf") else f'"{json.dumps(value)}"'


def _one_by_one(one: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    return lambda text: each_value(text, one)


_CONVERTERS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid"), _as_is),
    **dict.fromkeys(("real", "double precision"), _floats),
    "numeric": _numerics,
    "money": _money,
    "boolean": _booleans,
    "bytea": _bytea,
    "date": _dates,
    "time with time zone": _one_by_one(_zoned_time),
    "interval": _one_by_one(_interval),
    **dict.fromkeys(("bit", "bit varying"), _one_by_one(_bits)),
    "point": _one_by_one(_point),
}


# -- values that were not sent -----------------------------------------------------------------------------------------


def _placeholder(column: Column, text: str) -> str:
    """What stands for a value that was not sent: in a column of bytes the text as base64, in an array the text as its
    element, or its bytes where elements are numbers."""
    name, _, array = base_type(column)
    if name == "bytea":
        text = base64.b64encode(text.encode()).decode()
    if array and name in ("smallint", "integer", "bigint", "real", "double precision"):
        return json.dumps(list(text.encode()), separators=(",", ":"))
    quoted = json.dumps(text, ensure_ascii=False)
    return f"[{quoted}]" if array else quoted
