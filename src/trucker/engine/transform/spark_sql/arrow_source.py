"""A Python data source with which Spark reads waiting rows from Arrow files and writes results to them.

Both run in executors. Their options hold no secret: Spark's plans show them.
"""

from __future__ import annotations

import json
import pickle
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trucker import private
from trucker.engine.transform.spark_sql.result import ResultTexts
from trucker.engine.transform.spark_sql.spark_plan import SpooledRelation
from trucker.errors import EngineError

TOO_MANY: Final = "TRK545"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Writing:
    """Where a result goes, as text, and how many rows of it there may be."""

    folder: str
    stem: str
    texts: ResultTexts
    rows_max: int

    @property
    def summary(self) -> Path:
        return Path(self.folder) / f"{self.stem}.done"


def new_format() -> type[DataSource]:
    """The data source under a name that no other session has: Spark looks for taken names in all of them."""
    name = f"trucker_rows_{next(_numbers)}"
    return type("RowsSource", (_RowsSource,), {"name": classmethod(lambda _: name)})


def option(what: SpooledRelation | Writing) -> str:
    """What the data source is to do, as text."""
    return b64encode(pickle.dumps(what)).decode()


class _RowsSource(DataSource):
    def reader(self, schema: StructType) -> DataSourceReader:
        return _SpooledReader(self.options["rows"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(self.options["result"])


class _SpooledReader(DataSourceReader):
    def __init__(self, told: str) -> None:
        self._told = told

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reading: SpooledRelation = pickle.loads(b64decode(self._told))
        return reading.batches()


@dataclass
class _Written(WriterCommitMessage):
    file: str
    rows: int


class _Writer(DataSourceArrowWriter):
    """Each task writes a file of its own; `commit` names those that count, and an attempt that failed leaves none."""

    def __init__(self, told: str) -> None:
        self._told = told

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        writing: Writing = pickle.loads(b64decode(self._told))
        path = Path(writing.folder) / f"{writing.stem}.{secrets.token_hex(6)}.rows"
        rows = 0
        try:
            private.create(path)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, writing.texts.schema) as stream:
                for batch in iterator:
                    rows += batch.num_rows
                    check_rows(rows, writing.rows_max)
                    stream.write_batch(writing.texts.of(batch))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return _Written(str(path), rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        writing: Writing = pickle.loads(b64decode(self._told))
        written = [message for message in messages if isinstance(message, _Written)]
        content = json.dumps([[message.file, message.rows] for message in written])
        private.write_text(writing.summary, content)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, _Written):
                Path(message.file).unlink(missing_ok=True)


def results(writing: Writing) -> list[str]:
    """The files that the tasks of a job wrote, in their order; the rows of all are counted once more."""
    found: list[Any] = json.loads(writing.summary.read_text(encoding="utf-8"))
    writing.summary.unlink()
    check_rows(sum(rows for _, rows in found), writing.rows_max)
    return [file for file, rows in found if rows]


def check_rows(rows: int, most: int) -> None:
    """Stop a result that has grown beyond what the truck says, as by a join without a condition."""
    if rows > most:
        raise EngineError(
            f"the truck's Spark SQL returns more than {most} rows for the rows of one batch",
            remedy="check for a join that multiplies rows, or raise rows_max in truck.yml",
            code=TOO_MANY,
        )
