"""What driver and executors exchange for Spark SQL: a truck's plan for a table, and spooled rows.

Imports no pyspark: executors spool rows without it. A spool can be made again from the change log: it is not fsynced,
and files that are no longer referred to are removed with the folder at the next start.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker import private
from trucker.change import OPERATIONS, Column, TableId
from trucker.engine.transform.spark_sql.typed_cells import typed
from trucker.engine.transform.spark_sql.types import SparkForm, form_of
from trucker.errors import JobFailed
from trucker.rows import OPERATION, Rows

ORDER: Final = ("delete", "update", "insert")
"""The operations, in the order in which a run's rows are given and written."""

INLINE_BYTES: Final = 256 << 10
"""A spool of at most so many bytes is part of a task's outcome; a larger one is a file."""

BATCH_ROWS: Final = 10_000
_CODES: Final = {code: name for code, name in OPERATIONS.items() if name in ORDER}
_TEXT: Final = "text of "


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column that the truck's files give. `type` is Spark's; `origins` the columns of the rows it is, untouched.

    `form` is how its values become text; a value that PostgreSQL has as JSON comes from Spark as text already.
    """

    column: Column
    type: str
    form: SparkForm
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkPlan:
    """What a truck's files make of a table's rows, by Spark's analysis of them.

    `rows` are the columns of `{{ rows }}`, `needed` those that the files look at. `at_once` says that transform.sql
    tells the operation of each row itself, and so gets all of them at once.
    """

    table: TableId
    rows: tuple[Column, ...]
    needed: frozenset[str]
    given: tuple[ResultColumn, ...]
    at_once: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the result, the operation not among them."""
        return tuple(each.column for each in self.given)

    @cached_property
    def loose(self) -> frozenset[str]:
        """The columns of the rows whose texts are stored with their values, for results that pass them on."""
        origins = {name for each in self.given for name in each.origins}
        return frozenset(c.name for c in self.rows if c.name in origins and form_of(c).loose)


@dataclass(frozen=True, slots=True)
class SpooledRun:
    """One run of a spool: its number, operations and rows, and which of the spool's batches it is."""

    number: int
    operations: tuple[str, ...]
    rows: int
    first: int
    batches: int


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """Rows of a part, typed for Spark: in `data` where they are few, else in `file`.

    `schema` has all columns that a query sees. Those that no file looks at are not kept, and read as NULL.
    """

    runs: tuple[SpooledRun, ...]
    schema: pa.Schema
    data: bytes = b""
    file: str = ""

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def read(self, run: SpooledRun) -> Iterator[pa.RecordBatch]:
        """A run's batches, those of its operations together, hidden columns included."""
        with self.opened() as reader:
            for index in range(run.first, run.first + run.batches):
                yield reader.get_batch(index)

    @contextmanager
    def opened(self) -> Iterator[pa.ipc.RecordBatchFileReader]:
        """The spool's batches. Raises a transient error where its file cannot be read."""
        try:
            source = pa.BufferReader(self.data) if self.data else pa.memory_map(self.file)
        except OSError as error:
            raise JobFailed(
                f"the rows for Spark SQL in {self.file} cannot be read: {error.strerror or error}",
                remedy="check that driver and executors share the state folder; trucker repeats the batch",
                code="TRK542",
            ) from error
        with source, pa.ipc.open_file(source) as reader:
            yield reader

    def in_file(self, folder: Path) -> SpooledRows:
        """The same in a file."""
        if self.file:
            return self
        with self.opened() as reader:
            pieces = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            return SpooledRows(
                self.runs, self.schema, file=spill(folder, partial(_write, schema=reader.schema, pieces=pieces))
            )

    def discard(self) -> None:
        """Delete the file."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SpooledRelation:
    """Which rows a relation is: a run of a spool, of one operation or of all."""

    spooled: SpooledRows
    run: SpooledRun
    operation: str = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a query sees them."""
        for batch in self.spooled.read(self.run):
            rows = self._whole(batch)
            if self.operation and self.run.operations != (self.operation,):
                rows = rows.filter(pc.equal(rows.column(OPERATION), self.operation))
            if rows.num_rows:
                yield rows

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        stored = set(batch.schema.names)
        cells = [
            batch.column(field.name) if field.name in stored else pa.nulls(batch.num_rows, field.type)
            for field in self.spooled.schema
        ]
        return pa.RecordBatch.from_arrays(cells, schema=self.spooled.schema)


def spool_rows(folder: Path, rows: Rows, plan: SparkPlan | None = None) -> SpooledRows:
    """Spool rows for Spark SQL, typed; with a `plan`, only the columns that its files use.

    Raises `EngineError` where a value does not fit Spark's type for its column.
    """
    batch = _typed(rows, plan)
    cuts = [0, *(np.flatnonzero(np.diff(rows.run)) + 1).tolist(), len(rows)] if len(rows) else [0]
    runs: list[SpooledRun] = []
    pieces: list[pa.RecordBatch] = []
    for start, end in pairwise(cuts):
        present = {_CODES[code] for code in np.unique(rows.op[start:end]).tolist()}
        batches = [batch.slice(at, min(BATCH_ROWS, end - at)) for at in range(start, end, BATCH_ROWS)]
        operations = tuple(name for name in ORDER if name in present)
        runs.append(SpooledRun(int(rows.run[start]), operations, end - start, len(pieces), len(batches)))
        pieces += batches
    schema = rows_schema(rows.columns)
    sink = pa.BufferOutputStream()
    if batch.nbytes <= INLINE_BYTES:
        _write(sink, schema=batch.schema, pieces=pieces)
        return SpooledRows(tuple(runs), schema, data=sink.getvalue().to_pybytes())
    return SpooledRows(tuple(runs), schema, file=spill(folder, partial(_write, schema=batch.schema, pieces=pieces)))


def rows_schema(columns: Sequence[Column]) -> pa.Schema:
    """The rows' columns and their operation, typed."""
    fields = [(column.name, form_of(column).list_or_value) for column in columns]
    return pa.schema([*fields, (OPERATION, pa.string())])


def kept_text(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The texts of a loose column as they came."""
    return batch.column(_TEXT + name)


def _typed(rows: Rows, plan: SparkPlan | None) -> pa.RecordBatch:
    names: list[str] = []
    arrays: list[pa.Array] = []
    for column, cells in zip(rows.columns, rows.cells.columns, strict=True):
        if plan is None or column.name in plan.needed:
            names.append(column.name)
            arrays.append(typed(cells, column, form_of(column)))
        if form_of(column).loose and (plan is None or column.name in plan.loose):
            names.append(_TEXT + column.name)
            arrays.append(cells)
    words = pa.array(list(_CODES.values())).take(pa.array(_positions(rows)))
    return pa.RecordBatch.from_arrays([*arrays, words], names=[*names, OPERATION])


def _positions(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    table = np.zeros(256, np.int64)
    for position, code in enumerate(_CODES):
        table[code] = position
    return table[rows.op]


def _write(sink: pa.NativeFile, *, schema: pa.Schema, pieces: list[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(sink, schema) as writer:
        for piece in pieces:
            writer.write_batch(piece)


def spill(folder: Path, write: Callable[[pa.NativeFile], None]) -> str:
    """A new file that `write` fills, whole or not at all."""
    path = folder / f"{secrets.token_hex(8)}.rows"
    try:
        private.make_folder(folder)
        private.create(path)
        with pa.OSFile(str(path), "wb") as file:
            write(file)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JobFailed(
            f"rows for Spark SQL cannot be written to {folder}: {error.strerror or error}",
            remedy="free disk space for, or give trucker access to, the project's state folder",
            code="TRK543",
        ) from error
    return str(path)
