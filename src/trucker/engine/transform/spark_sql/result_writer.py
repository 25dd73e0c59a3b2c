"""Hands the result of Spark SQL to a sink: few rows in the driver, many in an executor.

Imports no pyspark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from trucker.change import Changes, Column
from trucker.engine.destination import task_sinks
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.transform.spark_sql.result import as_rows
from trucker.engine.transform.spark_sql.spark_plan import spill
from trucker.errors import JobFailed, TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import Receipt, Work

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

# A sink is not thread-safe, and this process has one for each destination.
_writing = threading.Lock()


@dataclass(frozen=True)
class SqlResult:
    """A result as text, in order: in memory or in a file."""

    batches: tuple[pa.RecordBatch, ...] = ()
    file: str = ""

    def read(self) -> Iterator[pa.RecordBatch]:
        if not self.file:
            yield from self.batches
            return
        try:
            source = pa.memory_map(self.file)
        except OSError as error:
            raise JobFailed(
                f"the result of Spark SQL in {self.file} cannot be read: {error.strerror or error}",
                remedy="check that driver and executors share the state folder; trucker repeats the batch",
                code="TRK542",
            ) from error
        with source, pa.ipc.open_stream(source) as reader:
            yield from reader

    def in_file(self, folder: Path) -> SqlResult:
        """The same in a file."""
        return self if self.file else SqlResult(file=spill(folder, self._write))

    def discard(self) -> None:
        if self.file:
            Path(self.file).unlink(missing_ok=True)

    def _write(self, file: pa.NativeFile) -> None:
        with pa.ipc.new_stream(file, self.batches[0].schema) as stream:
            for batch in self.batches:
                stream.write_batch(batch)


@dataclass(frozen=True)
class Handing:
    """Results of one part and the work they are for."""

    columns: tuple[Column, ...]
    results: tuple[SqlResult, ...]
    work: Work
    spec: SinkSpec

    def changes(self) -> Iterator[Changes]:
        """The rows as the sink takes them."""
        from trucker.engine.transform.row_transform import written

        batch = self.work.batch
        every = task_sinks.sink_for(self.spec).abilities.every_change
        # The position of a change is below the end of its batch; that of a copied row is the snapshot's.
        lsn = batch.end if batch.snapshot else Lsn(max(0, int(batch.end) - 1))
        first = self.work.part << 32
        for result in self.results:
            for each in result.read():
                if each.num_rows:
                    rows = as_rows(self.columns, each)
                    yield written(rows, self.work.target, lsn, first, every=every, copied=bool(batch.snapshot))
                    first += each.num_rows

    def write(self, part: int) -> Receipt | TruckerError:
        """Stage the results, or return the error. `part` is the number that a Spark job passes to its tasks."""
        try:
            return task_sinks.staged(self.spec, self.work, self.changes())
        except TruckerError as error:
            return error


def hand_on(spark: Spark, handing: Handing, folder: Path) -> Receipt | None:
    """Stage the results: in the driver if all are in memory, else in an executor. None where there are no rows."""
    from trucker.engine.spark.job import run_job

    if not handing.results:
        return None
    if all(not result.file for result in handing.results):
        with _writing:
            outcome = handing.write(0)
    else:
        filed = tuple(result.in_file(folder) for result in handing.results)
        try:
            (outcome,) = run_job(spark, partial(Handing.write, replace(handing, results=filed)), [0])
        finally:
            for result in filed:
                result.discard()
    if isinstance(outcome, TruckerError):
        raise outcome
    return outcome
