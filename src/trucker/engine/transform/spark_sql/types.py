"""Maps PostgreSQL's types to Spark's, and back.

    PostgreSQL                                  Spark                         and back, for a computed column
    smallint, integer, bigint                   smallint, int, bigint         the same; tinyint is smallint
    real, double precision                      float, double                 the same
    numeric(p,s), p at most 38                  decimal(p,s)                  numeric(p,s)
    numeric                                     decimal(38,18)                numeric(p,s) of the result
    boolean, date, bytea                        boolean, date, binary         the same
    timestamp, timestamptz                      timestamp_ntz, timestamp      the same
    arrays of these, and of text                array                         the same
    any other                                   string, the value's text      text
                                                struct, map, variant,         jsonb
                                                arrays of such and of arrays

A column that a query passes on as it is keeps its PostgreSQL type and text (`origin`). A value that Spark's type has
no place for is an error, never NULL (I8).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from trucker.table import Column
from trucker.types import BUILT_IN, LARGEST_PRECISION, Kind, column_kind

WIDEST: Final = (LARGEST_PRECISION, 18)
"""Precision and scale that a `numeric` of any size has in Spark."""

_PLAIN: Final[dict[Kind, tuple[pa.DataType, str]]] = {
    Kind.SMALLINT: (pa.int16(), "smallint"),
    Kind.INTEGER: (pa.int32(), "int"),
    Kind.BIGINT: (pa.int64(), "bigint"),
    Kind.REAL: (pa.float32(), "float"),
    Kind.DOUBLE: (pa.float64(), "double"),
    Kind.BOOLEAN: (pa.bool_(), "boolean"),
    Kind.BYTES: (pa.binary(), "binary"),
    Kind.DATE: (pa.date32(), "date"),
    Kind.TIMESTAMP: (pa.timestamp("us"), "timestamp_ntz"),
    Kind.TIMESTAMPTZ: (pa.timestamp("us", "UTC"), "timestamp"),
}
_TEXT: Final = (pa.string(), "string")
_TEXTS_IN_ARRAYS: Final = frozenset({"text", "character varying", "character", "name"})
_MODIFIER: Final = re.compile(r"\([^)]*\)")

_OIDS: Final = {each.name: each.oid for each in BUILT_IN}
_ARRAY_OIDS: Final = {
    "smallint": 1005,
    "integer": 1007,
    "bigint": 1016,
    "real": 1021,
    "double precision": 1022,
    "numeric": 1231,
    "boolean": 1000,
    "bytea": 1001,
    "date": 1182,
    "timestamp without time zone": 1115,
    "timestamp with time zone": 1185,
    "text": 1009,
}


@dataclass(frozen=True, slots=True)
class SparkForm:
    """A column as Spark has it: the kind of its values (of an array, of its elements), Arrow's type and Spark's name.

    `loose`: a value does not determine its text, because a numeric without scale may have zeros at the end.
    """

    kind: Kind
    arrow: pa.DataType
    spark: str
    array: bool = False
    loose: bool = False

    @property
    def list_or_value(self) -> pa.DataType:
        """Arrow's type of a cell."""
        return pa.list_(self.arrow) if self.array else self.arrow

    @property
    def ddl(self) -> str:
        """Spark's type of a cell."""
        return f"array<{self.spark}>" if self.array else self.spark


TEXT_FORM: Final = SparkForm(Kind.TEXT, *_TEXT)


def form_of(column: Column) -> SparkForm:
    """The Spark type of a column of the source."""
    column_type = column_kind(column)
    array = column_type.array
    if column_type.kind in _PLAIN:
        return SparkForm(column_type.kind, *_PLAIN[column_type.kind], array)
    if column_type.kind is Kind.NUMERIC:
        precision, scale = (column_type.precision, column_type.scale) if column_type.precision is not None else WIDEST
        if scale is None or not 0 <= scale <= precision <= LARGEST_PRECISION:
            return TEXT_FORM
        loose = column_type.precision is None
        return SparkForm(Kind.NUMERIC, pa.decimal128(precision, scale), f"decimal({precision},{scale})", array, loose)
    base = _MODIFIER.sub("", column.type_name).removesuffix("[]").strip()
    return SparkForm(Kind.TEXT, *_TEXT, array=array and base in _TEXTS_IN_ARRAYS)


def postgres_column(name: str, type_name: str) -> Column:
    """A column that a query computed, of a built-in PostgreSQL type."""
    base = _MODIFIER.sub("", type_name).strip()
    oid = _ARRAY_OIDS[base.removesuffix("[]")] if base.endswith("[]") else _OIDS[base]
    return Column(name, oid, type_name=type_name)
