"""Python functions of a truck in its Spark SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.spark_trucks import SparkTruckCase, columns, rows
from trucker.engine.transform.spark_sql.functions import load_functions
from trucker.errors import ConfigError

FUNCTIONS = """
from __future__ import annotations

import dataclasses
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Optional

from pyspark.sql.functions import udf

RATE = Decimal("1.25")


@dataclasses.dataclass
class _Name:
    text: str


def _shown(name: _Name) -> str:
    return name.text.upper()


def shout(text: str | None) -> str:
    return _shown(_Name(text)) if text else "?"


def twice(n: int) -> int:
    return n * 2


def half(x: float) -> float:
    return x / 2


def gross(net: Decimal) -> Optional[Decimal]:
    return net * RATE


def day_after(day: date) -> date:
    return day + timedelta(days=1)


def an_hour_on(at: datetime) -> datetime:
    return at + timedelta(hours=1)


def words(text: str) -> list[str]:
    return text.split()


def is_long(text: str) -> bool:
    return len(text) > 3


def raw(text: str) -> bytes:
    return text.encode()


size_of = udf(len, "int")
"""


def test_functions_have_the_types_of_their_annotations(spark: SparkSession, tmp_path: Path) -> None:
    own = columns(id="integer", name="text", price="numeric(10,2)", day="date", at="timestamp with time zone")
    case = SparkTruckCase(
        spark,
        tmp_path,
        {
            "transform.sql": "select shout(name) a, twice(id) b, half(id) c, gross(price) d, day_after(day) e,"
            " an_hour_on(at) f, words(name) g, is_long(name) h, raw(name) i, size_of(name) j from {{ rows }}"
        },
        functions=FUNCTIONS,
    )
    row = {"id": "3", "name": "ab cd", "price": "2.00", "day": "2024-02-28", "at": "2024-03-01 23:30:00+00"}
    assert [column.type_name for column in case.compile(own).columns] == [
        "text",
        "bigint",
        "double precision",
        "numeric(38,18)",
        "date",
        "timestamp with time zone",
        "text[]",
        "boolean",
        "bytea",
        "integer",
    ]
    ((_, given),) = case.give(rows(own, ("insert", row)))
    assert given == {
        "a": "AB CD",
        "b": "6",
        "c": "1.5",
        "d": "2.500000000000000000",
        "e": "2024-02-29",
        "f": "2024-03-02 00:30:00+00",
        "g": "{ab,cd}",
        "h": "t",
        "i": "\\x6162206364",
        "j": "5",
    }


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("def f(x: str) -> str:\n    return x +\n", 2, "invalid syntax"),
        ("import os\nimport no_such_module_here\n", 2, "ModuleNotFoundError"),
        ("x = 1\n\ndef f(x):\n    return x\n", 3, "has no return annotation"),
        ("def f(x: str) -> dict:\n    return {}\n", 1, "returns a type that Spark SQL does not have"),
        ("def f(x: str) -> nowhere:\n    return x\n", 1, "NameError"),
        ("from __future__ import annotations\ndef f(x: str) -> nowhere:\n    return x\n", 2, "NameError"),
        ("raise SystemExit(3)\n", 1, "SystemExit"),
    ],
)
def test_mistakes_in_the_file_are_reported_with_their_place(tmp_path: Path, text: str, line: int, said: str) -> None:
    folder = tmp_path / "trucks" / "orders"
    folder.mkdir(parents=True)
    (folder / "functions.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_functions(folder)
    assert (caught.value.code, caught.value.place is not None and caught.value.place.line) == ("TRK154", line)
    assert said in caught.value.message


def test_a_name_that_spark_has_itself_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would take its own, and nobody would notice."""
    case = SparkTruckCase(
        spark,
        tmp_path,
        {"transform.sql": "select upper(name) from {{ rows }}"},
        functions="\ndef upper(text: str) -> str:\n    return text\n",
    )
    with pytest.raises(ConfigError, match=r"functions.py:2: upper is a built-in function of Spark"):
        case.compile(columns(name="text"))
