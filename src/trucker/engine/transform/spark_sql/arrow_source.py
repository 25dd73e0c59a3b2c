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
    """Where the texts of a result are written, and how many rows it may have."""

    folder: str
    stem: str
    texts: ResultTexts
    rows_max: int

    @property
    def summary(self) -> Path:
        return Path(self.folder) / f"{self.stem}.done"


def new_format() -> type[DataSource]:
    """The data source under a new name: Spark refuses a name that another session has registered."""
    name = f"trucker_rows_{next(_numbers)}"
    return type("RowsSource", (_RowsSource,), {"name": classmethod(lambda _: name)})


def option(what: SpooledRelation | Writing) -> str:
    """An option for the data source: what to read or write, as text."""
    return b64encode(pickle.dumps(what)).decode()


class _RowsSource(DataSource):
    def reader(self, schema: StructType) -> DataSourceReader:
        return _SpooledReader(self.options["rows"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(self.options["result"])


class _SpooledReader(DataSourceReader):
    def __init__(self, encoded: str) -> None:
        self._option = encoded

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reading: SpooledRelation = pickle.loads(b64decode(self._option))
        return reading.batches()


@dataclass
class _Written(WriterCommitMessage):
    file: str
    rows: int


class _Writer(DataSourceArrowWriter):
    """Each task writes a separate file; `commit` lists those of the attempts that count, a failed one leaves none."""

    def __init__(self, encoded: str) -> None:
        self._option = encoded

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        writing: Writing = pickle.loads(b64decode(self._option))
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
        writing: Writing = pickle.loads(b64decode(self._option))
        written = [message for message in messages if isinstance(message, _Written)]
        content = json.dumps([[message.file, message.rows] for message in written])
        private.write_text(writing.summary, content)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        for message in messages:
            if isinstance(message, _Written):
                Path(message.file).unlink(missing_ok=True)


def results(writing: Writing) -> list[str]:
    """The files that the tasks of a job wrote, in order. The limit of rows is checked again, for all tasks together."""
    files: list[Any] = json.loads(writing.summary.read_text(encoding="utf-8"))
    writing.summary.unlink()
    check_rows(sum(rows for _, rows in files), writing.rows_max)
    return [file for file, rows in files if rows]


def check_rows(rows: int, most: int) -> None:
    """Refuse a result with more than `most` rows, for example of a join without a condition."""
    if rows > most:
        raise EngineError(
            f"the truck's Spark SQL returns more than {most} rows for the rows of one batch",
            remedy="check for a join that multiplies rows, or raise rows_max in truck.yml",
            code=TOO_MANY,
        )
