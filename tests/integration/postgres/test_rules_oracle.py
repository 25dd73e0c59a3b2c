"""Rules compare and convert values as PostgreSQL does: it is asked, for every value and literal."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fixtures.pg import Database
from fixtures.type_oracle import TEXT_FORM
from trucker.change import Column
from trucker.config.cast_types import NAMES, CastType, parse_type
from trucker.engine.transform.rules.casts import cast, castable
from trucker.engine.transform.rules.compare import comparison_of, passing

OPERATORS = {"eq": "=", "ne": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

_MOMENTS = (
    "infinity",
    "-infinity",
    "2000-01-01",
    "1970-01-01",
    "0001-01-01",
    "0001-12-31 BC",
    "0044-03-15 BC",
    "4714-11-24 BC",
    "9999-12-31",
    "10000-01-01",
    "2024-02-29",
    "1900-03-01",
    "294276-12-31",
)
_CLOCKS = (
    "2024-02-29 23:59:59.999999",
    "2024-03-01 00:00:00",
    "2024-03-01 00:00:00.5",
    "0044-03-15 12:00:00.000001 BC",
    "12345-06-07 01:02:03",
    "1999-12-31 23:59:59.999999",
)
_FLOATS = ("0", "-0", "1", "-1", "1.5", "0.1", "NaN", "Infinity", "-Infinity", "1e-30", "1e30", "123456.7", "1e15")

VALUES: dict[str, tuple[str, ...]] = {
    "smallint": ("0", "1", "-1", "32767", "-32768"),
    "integer": ("0", "7", "-7", "2147483647", "-2147483648"),
    "bigint": ("0", "10", "9", "-10", "9223372036854775807", "-9223372036854775808"),
    "oid": ("0", "1", "4294967295"),
    "real": (*_FLOATS, "3.4028235e38", "1e-45"),
    "double precision": (*_FLOATS, "1e300", "5e-324", "1.7976931348623157e308", "123456789012345.6", "0.0001"),
    "numeric": (
        *("0", "1", "1.0", "1.10", "1.1", "-1.1", "-1.10", "10", "9", "9.99", "-10", "-9", "0.001", "0.0010"),
        *("NaN", "Infinity", "-Infinity", "1e40", "-1e40", "1e-40", "123456789012345678901234567890.123", "99999"),
    ),
    "numeric(8,2)": ("0", "1.1", "1.10", "-1.1", "999999.99", "NaN"),
    "boolean": ("t", "f"),
    "date": (*_MOMENTS, "999999-12-31", "5874897-12-31"),
    "timestamp without time zone": (*_MOMENTS, *_CLOCKS),
    "timestamp with time zone": (*_MOMENTS, *_CLOCKS),
    "time without time zone": ("00:00:00", "24:00:00", "12:00:00", "12:00:00.5", "12:00:00.05", "23:59:59.999999"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "a0000000-0000-0000-0000-000000000001", "ffffffff" * 4),
    "bytea": ("\\x", "\\x00", "\\x00ff", "\\xff", "\\x0100"),
    "text": ("", " ", "a", "A", "ab", "ż", "zz", "a ", "🐢", "é"),
    "character varying(5)": ("", "a", "ab", "ż"),
    "character(5)": ("", "a", "ab", "ż", "a  "),
}


def test_values_compare_as_postgresql_has_them(database: Database) -> None:
    with database.connect(options=TEXT_FORM) as connection:
        for type_name, texts in VALUES.items():
            _compare_alike(connection, type_name, list(texts))


def _compare_alike(connection: psycopg.Connection[Any], type_name: str, texts: list[str]) -> None:
    how = comparison_of(Column("c", 0, type_name=type_name))
    rows = _compared(connection, type_name, texts)
    cells = pa.array([row[0] for row in rows[: len(texts)]], pa.string())
    for number, literal in enumerate(texts):
        read = how.read(literal)
        assert read is not None, literal
        asked = rows[number * len(texts) : (number + 1) * len(texts)]
        for at, name in enumerate(OPERATORS):
            assert passing(how, name, (read,), cells).tolist() == [row[1 + at] for row in asked], (name, literal)
        assert passing(how, "in", (read, read), cells).tolist() == [row[1] for row in asked]
    nothing = pa.nulls(2, pa.string())
    read = how.read(texts[0])
    assert read is not None
    for name in (*OPERATORS, "in"):
        assert passing(how, name, (read,), nothing).tolist() == [False, False]


def _compared(connection: psycopg.Connection[Any], type_name: str, texts: list[str]) -> list[tuple[Any, ...]]:
    """For each literal, for each value: its text, and what every operator says."""
    base = type_name.partition("(")[0]
    collate = ' collate "C"' if base in ("text", "character varying", "character") else ""
    compared = ", ".join(f"v{collate} {sign} l" for sign in OPERATORS.values())
    query = (
        f"select format('%%s', v), {compared} from unnest(%s::text[]) with ordinality a(x, i),"
        f" lateral (select x::{type_name} as v) b,"
        " unnest(%s::text[]) with ordinality c(y, j),"
        f" lateral (select y::{type_name} as l) d order by j, i"
    )
    return connection.execute(query.encode(), [texts, texts]).fetchall()


REFUSED = {
    "smallint": ("32768", "1.5", "", "x", "1e3"),
    "bigint": ("9223372036854775808", "--1", "1 1"),
    "real": ("1e39", "1e-60", "one", ""),
    "double precision": ("1e400", "1e-400", "1,5"),
    "numeric": ("1,5", "", "1e", "e5"),
    "boolean": ("maybe", "", "2"),
    "date": ("2023-02-29", "2024-13-01", "0000-01-01", "x", "99999999-01-01", "4714-11-23 BC"),
    "timestamp with time zone": ("2024-01-01 25:00", "2024-02-30 00:00", "294277-01-01 00:00:00"),
    "time without time zone": ("24:00:01", "12:60", "noonish"),
    "uuid": ("1", "g0000000-0000-0000-0000-000000000000"),
    "bytea": ("\\x0", "\\xgg"),
}


def test_what_postgresql_refuses_is_refused(database: Database) -> None:
    with database.connect() as connection:
        for type_name, literals in REFUSED.items():
            how = comparison_of(Column("c", 0, type_name=type_name))
            for literal in literals:
                assert how.read(literal) is None, literal
                with pytest.raises(psycopg.DataError):
                    connection.execute(f"select %s::text::{type_name}".encode(), [literal])


READ = (
    ("timestamp with time zone", "2024-01-01T12:00:00+02:00"),
    ("timestamp with time zone", "2024-01-01 00:30+01"),
    ("timestamp with time zone", "0001-01-01 00:00+01"),
    ("timestamp with time zone", "2024-01-01 00:00:00Z"),
    ("timestamp without time zone", "2024-1-1 9:05"),
    ("date", "2024-1-1"),
    ("boolean", "YES"),
    ("numeric", "+1.50e2"),
    ("numeric", "inf"),
    ("integer", " +7 "),
    ("uuid", "{A0000000-0000-0000-0000-000000000001}"),
)


def test_literals_may_be_written_as_postgresql_reads_them(database: Database) -> None:
    with database.connect(options=TEXT_FORM) as connection:
        for type_name, literal in READ:
            how = comparison_of(Column("c", 0, type_name=type_name))
            row = connection.execute(f"select format('%%s', %s::text::{type_name})".encode(), [literal]).fetchone()
            assert row is not None
            read = how.read(literal)
            assert read is not None
            assert passing(how, "eq", (read,), pa.array([row[0]], pa.string())).tolist() == [True], literal


TEXTS = (
    *("007", " 7 ", "+7", "-0", "1.50", "1e3", "1e-7", ".5", "5.", "99999999999999999999", "32768", "-32769", ""),
    *("NaN", "nan", "inf", "-Infinity", "x", "true", "no", "T", "1", "0", "123456.789", "1234567", "0.00001"),
    *("2024-02-29", "2024-02-30", "2024-02-29 12:30:00.50", "2024-02-29T12:30", "2024-02-29 12:30:00+02", "infinity"),
    *("0044-03-15 BC", "12:30", "12:30:15.250", "A0000000-0000-0000-0000-000000000001", "null", "abcdef"),
)
TARGETS = (*NAMES, "character varying(3)", "numeric(6,2)", "numeric(3,0)")
MUST = {
    ("integer", "007"): "7",
    ("integer", " 7 "): "7",
    ("bigint", "-0"): "0",
    ("numeric", "1e3"): "1000",
    ("numeric(6,2)", "1.5"): "1.50",
    ("double precision", "1e3"): "1000",
    ("double precision", "0.00001"): "1e-05",
    ("real", "1234567"): "1.234567e+06",
    ("boolean", "no"): "f",
    ("timestamp with time zone", "2024-02-29 12:30:00+02"): "2024-02-29 10:30:00+00",
    ("timestamp without time zone", "2024-02-29"): "2024-02-29 00:00:00",
}


def test_casts_give_what_postgresql_gives(database: Database) -> None:
    """What is taken is what PostgreSQL's type would write; what it refuses is refused."""
    with database.connect(options=TEXT_FORM) as connection:
        written = {source: _written(connection, source) for source in VALUES} | {"text": list(TEXTS)}
        for target, (source, texts) in itertools.product(TARGETS, written.items()):
            column, to = Column("c", 0, type_name=source), parse_type(target)
            if castable(column, to):
                _same_as_postgresql(connection, texts, column, to)


def test_values_that_a_cast_must_take() -> None:
    for (target, text), result in MUST.items():
        made, bad = cast(pa.array([text]), Column("c", 25, type_name="text"), parse_type(target))
        assert (made.to_pylist(), bad.tolist()) == ([result], [False]), target


def _written(connection: psycopg.Connection[Any], source: str) -> list[str]:
    query = f"select format('%%s', x::{source}) from unnest(%s::text[]) x"
    return [text for (text,) in connection.execute(query.encode(), [list(VALUES[source])])]


def _same_as_postgresql(connection: psycopg.Connection[Any], texts: list[str], column: Column, to: CastType) -> None:
    made, bad = cast(pa.array([*texts, None], pa.string()), column, to)
    assert made[-1].as_py() is None
    assert not bad[-1]
    strict = column.type_name != "text"
    for text, found, unfit in zip(texts, made.to_pylist(), bad.tolist(), strict=False):
        try:
            # As input, so that what a cast would cut or round in silence is refused or seen.
            query = f"select format('%%s', %s::text::{to.type_name}), length(%s) > {to.length or 10**9}"
            row = connection.execute(query.encode(), [text, text]).fetchone()
        except psycopg.DataError:
            assert unfit, (text, column.type_name, to.type_name)
            continue
        assert row is not None
        if not unfit:
            assert found == row[0], (text, column.type_name, to.type_name)
        elif strict and to.length is None:
            pytest.fail(f"{text} of {column.type_name} is a {to.type_name}")


def test_a_cast_is_possible_only_where_the_text_is_the_others_input() -> None:
    possible = {
        (source, target)
        for source, target in itertools.product([*VALUES, "integer[]", "jsonb", "public.mood"], TARGETS)
        if castable(Column("c", 0, type_name=source), parse_type(target))
    }
    everything = {source for source, target in possible if target == "text"}
    assert everything == {*VALUES, "integer[]", "jsonb", "public.mood"}
    assert ("jsonb", "json") in possible
    assert ("date", "timestamp with time zone") in possible
    for pair in (("boolean", "integer"), ("integer[]", "integer"), ("public.mood", "date"), ("text", "json")):
        assert pair not in possible
    assert ("timestamp without time zone", "date") not in possible
