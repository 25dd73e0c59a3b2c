"""PostgreSQL's types and text in DuckDB: what a column becomes (`trucker.adapters.duckdb` has the table), and the SQL
that turns its text into that.

DuckDB's own parser agrees with PostgreSQL's text of these types, `infinity`, `24:00:00` and offsets with seconds
included, but for years before Christ and bytea, which are rewritten in SQL.
"""

from __future__ import annotations

import re
from typing import Final

from trucker.adapters.duckdb import TEXT, TIMESTAMPTZ, TYPES
from trucker.table import Column
from trucker.types import Unfit, column_kind

_INTEGERS: Final = ("SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_DIGITS: Final = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19, "HUGEINT": 38}
_CALENDAR: Final = frozenset({"DATE", "TIMESTAMP", TIMESTAMPTZ})
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def duckdb_type(column: Column, unfit: Unfit | None = None) -> str:
    """The type a column is given in a table that trucker makes, as DuckDB's catalog spells it."""
    return TEXT if unfit is Unfit.TEXT else TYPES.of(column_kind(column)).type


def from_text(text: str, kind: str, unfit: Unfit | None = None) -> str:
    """The SQL that makes a value of type `kind` of PostgreSQL's text; `text` is an SQL expression.

    It fails for what the type cannot hold; with the policy `null` it is NULL then.
    """
    if kind == TEXT:
        return text
    return f"TRY({_parsed(text, kind)})" if unfit is Unfit.NULL else _parsed(text, kind)


def _parsed(text: str, kind: str) -> str:
    if kind == "BLOB":
        # What has no \x in front is in the old escape format: unhex refuses the question mark put in its place.
        digits = f"CASE WHEN starts_with({text}, '\\x') THEN substr({text}, 3) WHEN {text} IS NOT NULL THEN '?' END"
        return f"unhex({digits})"
    if kind in _CALENDAR:
        christ = rf"regexp_replace({text}, '^(\d+-\d+-\d+)(.*) BC$', '\1 (BC)\2')"
        return f"CAST(CASE WHEN ends_with({text}, ' BC') THEN {christ} ELSE {text} END AS {kind})"
    return f"CAST({text} AS {kind})"


def to_text(value: str, kind: str) -> str | None:
    """The SQL that makes PostgreSQL's text of a value of type `kind` again; None where DuckDB writes it otherwise."""
    if kind in ("FLOAT", "DOUBLE"):
        return None
    if kind == "BLOB":
        return f"'\\x' || lower(hex({value}))"
    if kind == "BOOLEAN":
        return f"CASE WHEN {value} THEN 't' WHEN NOT {value} THEN 'f' END"
    if kind in _CALENDAR:
        return rf"regexp_replace(CAST({value} AS VARCHAR), '^(\S+) \(BC\)(.*)$', '\1\2 BC')"
    return f"CAST({value} AS VARCHAR)"


def literal(text: str | None, kind: str, unfit: Unfit | None = None) -> str:
    """PostgreSQL's text as an SQL constant of type `kind`."""
    return "NULL" if text is None else from_text("'" + text.replace("'", "''") + "'", kind, unfit)


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
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]) - int(match[2]), int(match[2])) if match else None


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
