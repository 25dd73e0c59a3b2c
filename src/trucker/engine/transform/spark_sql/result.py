"""Converts the result of Spark SQL to PostgreSQL's columns and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import OPERATIONS, Column
from trucker.engine.transform.spark_sql.spark_plan import ORDER, ResultColumn, SpooledRows, SpooledRun, kept_text
from trucker.engine.transform.spark_sql.typed_cells import texts
from trucker.engine.transform.spark_sql.types import TEXT_FORM, SparkForm, form_of, postgres_column
from trucker.errors import EngineError
from trucker.rows import OPERATION, Rows
from trucker.types import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql.types import DataType

RUN: Final = "run of rows"
"""The result's column with the number of a row's run; a name with blanks that no user's column has by chance."""

_PLAIN: Final[dict[str, tuple[str, Kind, pa.DataType]]] = {
    "smallint": ("smallint", Kind.SMALLINT, pa.int16()),
    "int": ("integer", Kind.INTEGER, pa.int32()),
    "bigint": ("bigint", Kind.BIGINT, pa.int64()),
    "float": ("real", Kind.REAL, pa.float32()),
    "double": ("double precision", Kind.DOUBLE, pa.float64()),
    "boolean": ("boolean", Kind.BOOLEAN, pa.bool_()),
    "binary": ("bytea", Kind.BYTES, pa.binary()),
    "date": ("date", Kind.DATE, pa.date32()),
    "timestamp": ("timestamp with time zone", Kind.TIMESTAMPTZ, pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("timestamp without time zone", Kind.TIMESTAMP, pa.timestamp("us")),
    "string": ("text", Kind.TEXT, pa.string()),
}
_WIDER: Final = {"tinyint": "smallint", "void": "string"}
_JSON: Final = "to json"


def result_column(name: str, kind: DataType, origins: Sequence[Column]) -> ResultColumn | None:
    """A result's column of Spark's type `kind`; None where PostgreSQL has no type for it.

    `origins` are the columns of the rows that it passes on unchanged, if it does.
    """
    if origins:
        form = form_of(origins[0])
        column = replace(origins[0], name=name, not_null=False, missing_value=None, was_name="", was_type="")
        return ResultColumn(column, form.ddl, form, tuple(origin.name for origin in origins))
    computed = _computed(kind)
    if computed is None:
        return None
    type_name, spark, form = computed
    return ResultColumn(postgres_column(name, type_name), spark, form)


def _computed(kind: DataType) -> tuple[str, str, SparkForm] | None:
    from pyspark.sql import types as spark

    if isinstance(kind, spark.ArrayType):
        element = _simple(kind.elementType)
        if element is None:
            return ("jsonb", _JSON, TEXT_FORM) if _has_json(kind.elementType) else None
        type_name, form = element
        return f"{type_name}[]", f"array<{form.spark}>", replace(form, array=True)
    simple = _simple(kind)
    if simple is not None:
        return simple[0], simple[1].spark, simple[1]
    if _has_json(kind):
        return "jsonb", _JSON, TEXT_FORM
    return None


def _simple(kind: DataType) -> tuple[str, SparkForm] | None:
    from pyspark.sql import types as spark

    if isinstance(kind, spark.DecimalType):
        size = f"({kind.precision},{kind.scale})"
        return f"numeric{size}", SparkForm(Kind.NUMERIC, pa.decimal128(kind.precision, kind.scale), f"decimal{size}")
    name = "string" if isinstance(kind, spark.StringType | spark.CharType | spark.VarcharType) else kind.simpleString()
    name = _WIDER.get(name, name)
    if name not in _PLAIN:
        return None
    type_name, family, arrow = _PLAIN[name]
    return type_name, SparkForm(family, arrow, name)


def _has_json(kind: DataType) -> bool:
    from pyspark.sql import types as spark

    return isinstance(kind, spark.StructType | spark.MapType | spark.VariantType | spark.ArrayType)


def expression(each: ResultColumn, present: DataType | None) -> SparkColumn:
    """The expression that selects the column with its type; NULL where a branch of the result does not return it.

    `present` is its type in the branch. Only a column of another type is cast: Spark would report failures at our cast.
    """
    from pyspark.sql import functions

    name, spark = each.column.name, each.form.ddl
    if present is None:
        return functions.lit(None).cast(spark).alias(name)
    column = functions.col(quoted(name))
    if each.type == _JSON:
        return functions.to_json(column, {"ignoreNullFields": "false"}).alias(name)
    return (column if present.simpleString() == spark else column.cast(spark)).alias(name)


def quoted(name: str) -> str:
    """A name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class ResultTexts:
    """Turns typed batches of a result into text, with the operation's code and the run's number.

    A numeric that a query passes on keeps its original text: its value is looked up among those of the rows.
    """

    given: tuple[ResultColumn, ...]
    spooled: SpooledRows
    runs: tuple[SpooledRun, ...]

    @property
    def schema(self) -> pa.Schema:
        names = [(each.column.name, pa.string()) for each in self.given]
        return pa.schema([*names, (OPERATION, pa.uint8()), (RUN, pa.int64())])

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, whose columns are those of `given`, the operation and the run, as text."""
        columns = [self._text(each, batch.column(index)) for index, each in enumerate(self.given)]
        operations = operation_codes(batch.column(len(columns)))
        run = batch.column(len(columns) + 1).cast(pa.int64())
        return pa.RecordBatch.from_arrays([*columns, operations, run], schema=self.schema)

    def _text(self, each: ResultColumn, values: pa.Array) -> pa.Array:
        text = texts(values, each.form, each.column.name)
        if not (each.origins and each.form.loose and len(values)):
            return text
        values_sent, written = self._original_texts(each)
        flat = values.flatten() if each.form.array else values
        if not each.form.array:
            return pc.coalesce(written.take(pc.index_in(flat, value_set=values_sent)), text)
        return pc.coalesce(written.take(pc.index_in(text, value_set=values_sent)), text)

    def _original_texts(self, each: ResultColumn) -> tuple[pa.Array, pa.Array]:
        """The column's values in the rows (of arrays: the texts made from them), and their original texts."""
        value_parts, written = [], []
        for run in self.runs:
            for batch in self.spooled.read(run):
                for origin in each.origins:
                    values = batch.column(origin)
                    value_parts.append(texts(values, each.form, origin) if each.form.array else values)
                    written.append(kept_text(batch, origin))
        return pa.concat_arrays(value_parts), pa.concat_arrays(written)


_CODES: Final = pa.array([code for name in ORDER for code, each in OPERATIONS.items() if each == name], pa.uint8())
_WORDS: Final = pa.array(ORDER)


def operation_codes(words: pa.Array) -> pa.Array:
    """The operations' codes. Raises where a word is none of the three."""
    places = pc.index_in(words, value_set=_WORDS)
    if places.null_count:
        raise EngineError(
            "column operation of the result has a value other than insert, update and delete",
            remedy="return one of the three values in every row, or leave the column out",
            code="TRK546",
        )
    return _CODES.take(places)


def as_rows(columns: tuple[Column, ...], batch: pa.RecordBatch) -> Rows:
    """A batch of text as rows."""
    names = [column.name for column in columns]
    op = batch.column(len(names)).to_numpy(zero_copy_only=False).astype(np.uint8)
    run = batch.column(len(names) + 1).to_numpy(zero_copy_only=False).astype(np.int64)
    cells = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names=names)
    return Rows(columns, cells, op, run)
