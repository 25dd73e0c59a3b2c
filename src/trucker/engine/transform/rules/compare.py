"""How values of a column are compared with a literal: by the order PostgreSQL gives their type.

| type                                         | compared as                                             |
|----------------------------------------------|---------------------------------------------------------|
| smallint, integer, bigint, oid               | integers                                                |
| real, double precision                       | numbers of that precision; NaN equals NaN, above all    |
| numeric                                      | exact numbers of any length; NaN likewise               |
| boolean                                      | false before true                                       |
| date, timestamp, timestamptz                 | moments, infinity included, UTC where no offset is given |
| time without time zone, uuid, bytea          | their text, whose order is theirs                       |
| text, varchar, char, name                    | bytes of UTF-8 (char without the blanks it is filled up with) |
| any other                                    | equal or not, by PostgreSQL's text                      |
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import Column, Mask
from trucker.engine.transform.rules.moments import dates, moment_text, moments
from trucker.engine.transform.rules.numbers import compare_numerics, float_literal, float_order, numeric_text, trimmed
from trucker.types import Kind, column_kind

RANGES: Final = {Kind.SMALLINT: (-(1 << 15), 1 << 15), Kind.INTEGER: (-(1 << 31), 1 << 31)}
TRUE: Final = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
FALSE: Final = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")
_BIGINT: Final = (-(1 << 63), 1 << 63)
_OID: Final = (0, 1 << 32)
_INTEGER: Final = re.compile(r"\s*[+-]?\d+\s*")
_TIME: Final = re.compile(r"(?:([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,6}))?)?|24:00(?::00)?)")
_BYTES: Final = re.compile(r"\\x(?:[0-9a-f]{2})*", re.IGNORECASE)
_CHAR: Final = re.compile(r"character(\(\d+\))?")
_TEXT_NAMES: Final = re.compile(r'(text|character varying|character|name|"char")(\(\d+\))?')
_TEXT_OIDS: Final = frozenset({25, 1043, 1042, 19, 18})

Literal = int | str
Order = Callable[[pa.Array, Literal], np.ndarray[tuple[int], np.dtype[np.int8]]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a type is compared: `read` converts a literal to a comparable value (None where it is none), `ready` cells.

    Comparable values are equal where the values are, and have their order where `ordered`; `order` is for types whose
    order is not that of the comparable values. `example` is a valid literal.
    """

    what: str
    example: str
    read: Callable[[str], Literal | None]
    ready: Callable[[pa.Array], pa.Array]
    ordered: bool = True
    order: Order | None = None


def is_text(column: Column) -> bool:
    """Whether the type is one of texts."""
    if column.type_name:
        return _TEXT_NAMES.fullmatch(column.type_name) is not None
    return column.type_oid in _TEXT_OIDS


def comparison_of(column: Column) -> Comparison:
    """How values of the column are compared."""
    column_type = column_kind(column)
    if column_type.array:
        return _BY_TEXT
    if column_type.kind in _BY_KIND:
        return _BY_KIND[column_type.kind]
    if column.type_oid == 26:
        return _integers("an oid", *_OID)
    if not is_text(column):
        return _labels(column) if column.labels and "[]" not in column.type_name else _BY_TEXT
    padded = _CHAR.fullmatch(column.type_name) if column.type_name else column.type_oid == 1042
    return _PADDED if padded else _TEXT


def passing(comparison: Comparison, name: str, literals: tuple[Literal, ...], cells: pa.Array) -> Mask:
    """Which cells pass the comparison `name` (`eq`, `lt` …). NULL never passes."""
    if name == "contains":
        return _true(pc.match_substring(cells, str(literals[0])))
    ready = comparison.ready(cells)
    if name == "in":
        return _true(pc.is_in(ready, value_set=pa.array(literals, ready.type), skip_nulls=True))
    if comparison.order is not None and name not in ("eq", "ne"):
        valid = np.asarray(pc.is_valid(ready))
        mask = np.zeros(len(cells), np.bool_)
        signs = comparison.order(ready.drop_null(), literals[0])
        mask[valid] = getattr(np, _SIGNS[name])(signs, 0)
        return mask
    return _true(getattr(pc, _FUNCTIONS[name])(ready, pa.scalar(literals[0], ready.type)))


_SIGNS: Final = {"gt": "greater", "gte": "greater_equal", "lt": "less", "lte": "less_equal"}
_FUNCTIONS: Final = {"eq": "equal", "ne": "not_equal", **_SIGNS}


def _true(mask: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(mask, False))


def _integers(what: str, least: int, beyond: int) -> Comparison:
    def read(text: str) -> int | None:
        number = int(text) if _INTEGER.fullmatch(text) else None
        return number if number is not None and least <= number < beyond else None

    return Comparison(what, "42", read, lambda cells: cells.cast(pa.int64()))


def _floats(what: str, kind: pa.DataType) -> Comparison:
    return Comparison(what, "1.5", lambda text: float_literal(text, kind), lambda cells: float_order(cells, kind))


def _read_numeric(text: str) -> str | None:
    parsed = numeric_text(text)
    return None if parsed is None else str(trimmed(pa.array([parsed]))[0].as_py())


def _compare_numeric(cells: pa.Array, literal: Literal) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    return compare_numerics(cells, str(literal))


def read_boolean(text: str) -> int | None:
    """1, 0, or None for what PostgreSQL does not accept as a boolean."""
    word = text.strip().lower()
    return 1 if word in TRUE else 0 if word in FALSE else None


def _moments(what: str, example: str, *, zone: bool, clock: bool) -> Comparison:
    count = moments if clock else dates

    def read(text: str) -> int | None:
        written = moment_text(text, zone=zone, clock=clock)
        return None if written is None else int(count(pa.array([written]))[0].as_py())

    return Comparison(what, example, read, count)


def read_time(text: str) -> str | None:
    """A time as PostgreSQL writes it."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    if match[1] is None:
        return "24:00:00"
    digits = (match[4] or "").rstrip("0")
    return f"{match[1]}:{match[2]}:{match[3] or '00'}{'.' + digits if digits else ''}"


def _read_uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return None


def _read_bytes(text: str) -> str | None:
    return text.lower() if _BYTES.fullmatch(text) else None


def _labels(column: Column) -> Comparison:
    labels = column.labels
    return Comparison(
        f"one of its labels ({', '.join(labels)})",
        labels[0],
        lambda text: text if text in labels else None,
        lambda cells: cells,
        ordered=False,
    )


_TEXT: Final = Comparison("a text", "some text", lambda text: text, lambda cells: cells)
_PADDED: Final = Comparison(
    "a text", "some text", lambda text: text.rstrip(" "), lambda cells: pc.utf8_rtrim(cells, " ")
)
_BY_TEXT: Final = Comparison("a value", "", lambda text: text, lambda cells: cells, ordered=False)
_BOOLEANS: Final = Comparison("a boolean", "true", read_boolean, lambda cells: pc.equal(cells, "t").cast(pa.int64()))
_BY_KIND: Final = {
    Kind.SMALLINT: _integers("a smallint", *RANGES[Kind.SMALLINT]),
    Kind.INTEGER: _integers("an integer", *RANGES[Kind.INTEGER]),
    Kind.BIGINT: _integers("a bigint", *_BIGINT),
    Kind.REAL: _floats("a real", pa.float32()),
    Kind.DOUBLE: _floats("a double precision", pa.float64()),
    Kind.NUMERIC: Comparison("a numeric", "1.50", _read_numeric, trimmed, order=_compare_numeric),
    Kind.BOOLEAN: _BOOLEANS,
    Kind.BYTES: Comparison("a bytea", "\\x00ff", _read_bytes, lambda cells: cells),
    Kind.DATE: _moments("a date", "2024-01-31", zone=False, clock=False),
    Kind.TIMESTAMP: _moments("a timestamp", "2024-01-31 12:00:00", zone=False, clock=True),
    Kind.TIMESTAMPTZ: _moments("a timestamp", "2024-01-31 12:00:00+00", zone=True, clock=True),
    Kind.TIME: Comparison("a time", "12:00:00", read_time, lambda cells: cells),
    Kind.UUID: Comparison("a uuid", "9f1c…", _read_uuid, lambda cells: cells),
}
