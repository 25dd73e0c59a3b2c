"""Debezium's envelope, compared with what the real Debezium wrote of the same changes."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fixtures.debezium import comparison
from trucker.change import TableId
from trucker.sinks.envelope.debezium_values import DebeziumCells
from trucker.sinks.target import Target
from trucker.testing.handmade import rows_of, schema_of


def test_events_are_those_of_the_real_debezium(tmp_path: Path) -> None:
    """Recorded by `tests/soak/test_debezium_soak.py`."""
    comparison.check(comparison.Recording.load(), tmp_path)


def cells(type_name: str, values: Sequence[str | None]) -> list[Any]:
    """What the envelope makes of a column's values."""
    schema = schema_of(TableId("public", "t"), {"v": type_name})
    rows = rows_of(schema, [{"v": value} for value in values])
    text, mark = DebeziumCells(rows, Target("main", schema, schema.table)).of(schema.columns[0])
    assert mark == ""
    return [None if cell is None else json.loads(cell) for cell in text.to_pylist()]


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_bytes_are_base64(values: list[bytes | None]) -> None:
    texts = [None if value is None else f"\\x{value.hex()}" for value in values]
    assert cells("bytea", texts) == [None if value is None else base64.b64encode(value).decode() for value in values]


ELEMENT = st.none() | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=6)
NESTED = st.lists(st.lists(ELEMENT, min_size=2, max_size=2), min_size=1, max_size=3)


def literal(array: list[Any]) -> str:
    """An array as PostgreSQL writes it."""
    parts = []
    for each in array:
        if isinstance(each, list):
            parts.append(literal(each))
        elif each is None:
            parts.append("NULL")
        else:
            plain = each and each.upper() != "NULL" and not re.search(r'[\s{},"\\]', each, re.ASCII)
            escaped = each.replace("\\", "\\\\").replace('"', '\\"')
            parts.append(each if plain else f'"{escaped}"')
    return f"{{{','.join(parts)}}}"


@given(st.lists(st.none() | st.lists(ELEMENT, max_size=4) | NESTED, max_size=6))
def test_arrays_are_arrays_whatever_is_in_them(arrays: list[Any]) -> None:
    assert cells("text[]", [None if array is None else literal(array) for array in arrays]) == arrays


MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))


@given(st.lists(MOMENTS, max_size=5))
def test_moments_are_numbers_or_texts_by_their_type(moments: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1)
    micros = [(moment - epoch) // timedelta(microseconds=1) for moment in moments]
    texts = [f"{moment.isoformat(' ')}" for moment in moments]
    assert cells("timestamp without time zone", texts) == micros
    assert cells("date", [moment.date().isoformat() for moment in moments]) == [m // 86_400_000_000 for m in micros]
    assert cells("time without time zone", [m.time().isoformat() for m in moments]) == [
        m % 86_400_000_000 for m in micros
    ]
    zoned = [moment.isoformat(timespec="microseconds") + "Z" for moment in moments]
    assert cells("timestamp with time zone", [f"{text}+00" for text in texts]) == zoned


def test_an_array_of_types_with_a_form_of_their_own_has_elements_in_that_form() -> None:
    assert cells("date[]", ["{1970-01-02,NULL,infinity}", "{}", None]) == [[1, None, 2**31 - 1], [], None]
    assert cells("numeric(6,2)[]", ["{{1.50,NaN},{2.00,3.00}}"]) == [[["1.50", "NAN"], ["2.00", "3.00"]]]
    assert cells("timestamp(3) without time zone[]", ['{"1970-01-01 00:00:01.5"}']) == [[1500]]


def test_an_infinite_interval_and_a_strange_one_are_numbers() -> None:
    assert cells("interval", ["infinity", "-infinity", "1 day", "-00:00:01"]) == [
        2**63 - 1,
        -(2**63),
        86_400_000_000,
        -1_000_000,
    ]
