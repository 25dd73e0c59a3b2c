"""PostgreSQL's types and text in DuckDB: what a column becomes, and the SQL that turns its text into that.

| PostgreSQL                               | DuckDB            |
|------------------------------------------|-------------------|
| smallint, integer, bigint                | the same          |
| real, double precision                   | FLOAT, DOUBLE     |
| numeric(p,s) with p ≤ 38 and 0 ≤ s ≤ p   | DECIMAL(p,s)      |
| boolean, date, uuid                      | the same          |
| time, timestamp, timestamptz             | the same          |
| bytea                                    | BLOB              |
| json, jsonb                              | JSON              |
| everything else                          | VARCHAR, the text |

DuckDB's own parser agrees with PostgreSQL's text of these types, `infinity`, `24:00:00` and offsets with seconds
included, but for years before Christ and bytea, which are rewritten in SQL.
"""

from __future__ import annotations

import re
from typing import Final

from trucker.change import Column
from trucker.sinks.column_kind import ColumnKind, Kind, column_kind

TEXT: Final = "VARCHAR"
TIMESTAMPTZ: Final = "TIMESTAMP WITH TIME ZONE"
_LARGEST_PRECISION: Final = 38

_TYPES: Final = {
    Kind.SMALLINT: "SMALLINT",
    Kind.INTEGER: "INTEGER",
    Kind.BIGINT: "BIGINT",
    Kind.REAL: "FLOAT",
    Kind.DOUBLE: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.BYTES: "BLOB",
    Kind.DATE: "DATE",
    Kind.TIME: "TIME",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: TIMESTAMPTZ,
    Kind.UUID: "UUID",
    Kind.JSON: "JSON",
    Kind.TEXT: TEXT,
}

_INTEGERS: Final = ("SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_DIGITS: Final = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19, "HUGEINT": 38}
_CALENDAR: Final = frozenset({"DATE", "TIMESTAMP", TIMESTAMPTZ})
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def duckdb_type(column: Column) -> str:
    """The type a column is given in a table that trucker makes, as DuckDB's catalog spells it."""
    found = column_kind(column)
    return _decimal_or_text(found) if found.kind is Kind.NUMERIC else _TYPES[found.kind]


def _decimal_or_text(found: ColumnKind) -> str:
    precision, scale = found.precision, found.scale
    if precision is None or scale is None or not 0 <= scale <= precision <= _LARGEST_PRECISION:
        return TEXT
    return f"DECIMAL({precision},{scale})"


def from_text(text: str, kind: str) -> str:
    """The SQL that makes a value of type `kind` of PostgreSQL's text; `text` is an SQL expression."""
    if kind == TEXT:
        return text
    if kind == "BLOB":
        # What has no \x in front is in the old escape format: unhex refuses the question mark put in its place.
        digits = f"CASE WHEN starts_with({text}, '\\x') THEN substr({text}, 3) WHEN {text} IS NOT NULL THEN '?' END"
        return f"unhex({digits})"
    if kind in _CALENDAR:
        christ = rf"regexp_replace({text}, '^(\d+-\d+-\d+)(.*) BC$', '\1 (BC)\2')"
        return f"CAST(CASE WHEN ends_with({text}, ' BC') THEN {christ} ELSE {text} END AS {kind})"
    return f"CAST({text} AS {kind})"


def literal(text: str | None, kind: str) -> str:
    """PostgreSQL's text as an SQL constant of type `kind`."""
    return "NULL" if text is None else from_text("'" + text.replace("'", "''") + "'", kind)


def holds(actual: str, wanted: str) -> bool:
    """Whether a column of type `actual` takes every value of type `wanted` without loss."""
    if actual in (wanted, TEXT):
        return True
    if actual == "DOUBLE" and wanted == "FLOAT":
        return True
    if actual in _INTEGERS and wanted in _INTEGERS:
        return _INTEGERS.index(actual) >= _INTEGERS.index(wanted)
    room, need = _digits(actual), _digits(wanted)
    if room is None or need is None or not _DECIMAL.fullmatch(actual):
        return False
    return room[0] >= need[0] and room[1] >= need[1]


def widens(actual: str, wanted: str) -> bool:
    """Whether a column of type `actual` may be altered to `wanted`: every value stays what it is."""
    return wanted != TEXT and holds(wanted, actual)


def _digits(kind: str) -> tuple[int, int] | None:
    """Digits before and after the point."""
    if kind in _DIGITS:
        return _DIGITS[kind], 0
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None


def describe(text: str, kind: str) -> str:
    """What kind of value a text is that does not fit, without any of it (I10)."""
    if text == "NaN":
        return "NaN"
    if text.lower().lstrip("-") == "infinity":
        return "infinity"
    if kind == "JSON":
        return "JSON that DuckDB cannot read (such as half of a surrogate pair)"
    if kind == "BLOB":
        return "bytea that is not in hex format (bytea_output)"
    if kind in _CALENDAR and re.match(r"\d+-\d\d-\d\d", text):
        return "a time outside DuckDB's range"
    if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", text):
        return "a number out of range"
    return "a value that cannot be read as such"
