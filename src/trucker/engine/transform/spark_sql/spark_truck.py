"""Runs the Spark SQL files of one truck, in the driver.

Few rows are a relation of the driver: Spark plans and runs the query without files and mostly without another process,
and the driver hands the result to the sink. Many rows stay in files: executors read them, write the result, and hand it
to the sink (`arrow_source`, `result_writer`). The result is the same either way.

Safe in several threads. Errors fail this truck alone (I8); failures of Spark itself are transient.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from trucker.config.adapter import Connection
from trucker.config.models import TruckConfig
from trucker.engine.spark.cluster import cores
from trucker.engine.transform.spark_sql.chain import Attempt, Branch, SqlChain
from trucker.engine.transform.spark_sql.compile import Compiling
from trucker.engine.transform.spark_sql.failure import be_quiet, explained
from trucker.engine.transform.spark_sql.functions import functions_of, register_functions
from trucker.engine.transform.spark_sql.lookups import Lookups
from trucker.engine.transform.spark_sql.result import RUN, ResultTexts, as_rows, expression
from trucker.engine.transform.spark_sql.result_writer import Handing, SqlResult, hand_on
from trucker.engine.transform.spark_sql.spark_plan import (
    SparkPlan,
    SpooledRelation,
    SpooledRows,
    SpooledRun,
    rows_schema,
)
from trucker.rows import OPERATION, Rows
from trucker.sinks.batch import Receipt, Work
from trucker.table import Column, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from trucker.config.sql.sql_template import RenderedSql
    from trucker.engine.destination.task_sinks import SinkSpec

FEW_ROWS: Final = 5_000
"""The most rows that the driver processes itself, as input and as result."""

_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_MOST_SHUFFLES: Final = 64

RUNS_AT_ONCE: Final = 8
"""The most small runs in one query."""


class SparkTruck:
    """See the module's docstring. `folder` is where rows wait, shared by driver and executors."""

    def __init__(
        self, spark: SparkSession, truck: TruckConfig, connections: Sequence[Connection], folder: Path
    ) -> None:
        be_quiet()
        self._spark = spark
        self._truck = truck
        self._folder = folder
        self._lookups = Lookups(truck, connections)
        self._lock = threading.Lock()
        self._session: _TruckSession | None = None

    def compile(self, columns: tuple[Column, ...], table: TableId) -> SparkPlan:
        """The plan for rows with these columns, from Spark's analysis alone. Raises `ConfigError` with its place."""
        from pyspark.sql.pandas.types import from_arrow_schema

        attempts: list[Attempt] = []
        with self._explaining(attempts):
            truck_session = self._ready()
            kinds = from_arrow_schema(rows_schema(columns), prefer_timestamp_ntz=True)
            frame = truck_session.session.createDataFrame([], kinds)
            attempt = Attempt(
                truck_session.session, tuple(c.name for c in columns), table, lambda _: frame, checks=True
            )
            attempts.append(attempt)
            self._lookups.describe(attempt, truck_session.chain.lookups, columns)
            plan = Compiling(truck_session.chain, attempt, columns, table).plan()
            return replace(plan, needed=plan.needed | self._lookups.needs(truck_session.chain.lookups, columns))

    def run(self, plan: SparkPlan, rows: SpooledRows, work: Work, spec: SinkSpec) -> Receipt | None:
        """Run the files on the rows and stage the result; None where it is empty."""
        with self._results(plan, rows) as results:
            return hand_on(self._spark, Handing(plan.columns, results, work, spec), self._folder)

    def give(self, plan: SparkPlan, rows: SpooledRows) -> list[Rows]:
        """The result of the files for the rows, in pieces, all in memory: for `trucker try`. Nothing is written."""
        with self._results(plan, rows) as results:
            return [as_rows(plan.columns, batch) for result in results for batch in result.read()]

    def close(self) -> None:
        """Give connections back."""
        self._lookups.close()

    @contextmanager
    def _results(self, plan: SparkPlan, rows: SpooledRows) -> Iterator[tuple[SqlResult, ...]]:
        results: list[SqlResult] = []
        try:
            for group in _groups(rows.runs):
                few = sum(run.rows for run in group) <= FEW_ROWS
                group_results = self._in_driver(plan, rows, group) if few else None
                results += self._in_executors(plan, rows, group) if group_results is None else group_results
            yield tuple(results)
        finally:
            for result in results:
                result.discard()

    # -- the two ways ----------------------------------------------------------------------------------------------

    def _in_driver(self, plan: SparkPlan, rows: SpooledRows, group: Sequence[SpooledRun]) -> list[SqlResult] | None:
        """The result of a few rows; None where it is too large for the driver."""
        from pyspark.sql.pandas.types import from_arrow_schema

        attempts: list[Attempt] = []
        with self._explaining(attempts):
            truck_session = self._ready()
            kinds = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)

            def frame(run: SpooledRun, operation: str) -> DataFrame:
                batches = SpooledRelation(rows, run, operation).batches()
                return truck_session.session.createDataFrame(pa.Table.from_batches(batches, rows.schema), kinds)

            whole = reduce(_union, [self._result(truck_session, plan, rows, run, frame, attempts) for run in group])
            table = whole.limit(min(FEW_ROWS, self._truck.rows_max) + 1).toArrow()
        if table.num_rows > min(FEW_ROWS, self._truck.rows_max):
            if len(group) == 1:
                self._check(table.num_rows)
            return None
        texts = ResultTexts(plan.given, rows, tuple(group))
        batches = tuple(texts.of(batch) for batch in table.combine_chunks().to_batches() if batch.num_rows)
        return [SqlResult(batches)] if batches else []

    def _in_executors(self, plan: SparkPlan, rows: SpooledRows, group: Sequence[SpooledRun]) -> list[SqlResult]:
        """The results of runs, a query each, in files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from trucker.engine.transform.spark_sql.arrow_source import Writing, option, results

        filed = rows.in_file(self._folder)
        files_written: list[SqlResult] = []
        try:
            kinds = from_arrow_schema(filed.schema, prefer_timestamp_ntz=True)
            for run in group:
                attempts: list[Attempt] = []
                with self._explaining(attempts):
                    truck_session = self._ready()
                    reader = truck_session.session.read.format(truck_session.format).schema(kinds)

                    def frame(run: SpooledRun, operation: str, reader: DataFrameReader = reader) -> DataFrame:
                        return reader.option("rows", option(SpooledRelation(filed, run, operation))).load()

                    result = self._result(truck_session, plan, filed, run, frame, attempts)
                    texts = ResultTexts(plan.given, filed, (run,))
                    writing = Writing(str(self._folder), secrets.token_hex(8), texts, self._truck.rows_max)
                    result.write.format(truck_session.format).option("result", option(writing)).mode("append").save()
                    files_written += [SqlResult(file=file) for file in results(writing)]
        except BaseException:
            for each in files_written:
                each.discard()
            raise
        finally:
            if not rows.file:
                filed.discard()
        return files_written

    def _result(
        self,
        truck_session: _TruckSession,
        plan: SparkPlan,
        rows: SpooledRows,
        run: SpooledRun,
        frame: Callable[[SpooledRun, str], DataFrame],
        attempts: list[Attempt],
    ) -> DataFrame:
        """The result of the files for a run, with the columns of the plan, the operation and the run."""
        names = tuple(column.name for column in plan.rows)
        attempt = Attempt(truck_session.session, names, plan.table, lambda operation: frame(run, operation))
        attempts.append(attempt)
        self._lookups.fill(attempt, truck_session.chain.lookups, SpooledRelation(rows, run))
        branches = truck_session.chain.branches(attempt, run.operations, at_once=plan.at_once)
        return reduce(_union, [_shaped(branch, plan, run) for branch in branches])

    # -- what both need --------------------------------------------------------------------------------------------

    def _ready(self) -> _TruckSession:
        """The truck's session, with its functions. Created at first use, so that an error in a file stops this truck
        only."""
        with self._lock:
            if self._session is None:
                self._session = _TruckSession(self._spark, self._truck)
        self._session.take_thread()
        return self._session

    @contextmanager
    def _explaining(self, attempts: list[Attempt]) -> Iterator[None]:
        """Turn what Spark raises into trucker's errors; forget the attempts' views afterwards."""
        try:
            yield
        except Exception as error:
            rendered: list[RenderedSql] = [each for attempt in attempts for each in attempt.rendered]
            raise explained(error, self._truck.name, rendered) from None
        finally:
            for attempt in attempts:
                attempt.close()

    def _check(self, rows: int) -> None:
        from trucker.engine.transform.spark_sql.arrow_source import check_rows

        check_rows(rows, self._truck.rows_max)


class _TruckSession:
    """A truck's Spark session, with its views, functions and formats, on the project's Spark context."""

    def __init__(self, spark: SparkSession, truck: TruckConfig) -> None:
        from trucker.engine.transform.spark_sql.arrow_source import new_format

        self.chain = SqlChain(truck)
        functions = functions_of(truck)
        self.session = spark.newSession()
        self.session.conf.set("spark.sql.session.timeZone", "UTC")
        if not spark.sparkContext.getConf().contains(_SHUFFLES):
            self.session.conf.set(_SHUFFLES, str(min(_MOST_SHUFFLES, cores(spark))))
        source = new_format()
        self.format = source.name()
        self.session.dataSource.register(source)
        register_functions(self.session, functions)

    def take_thread(self) -> None:
        """Make it this thread's active session: for a write, Spark looks up the format in the active session only."""
        session = self.session
        type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def _groups(runs: Sequence[SpooledRun]) -> Iterator[list[SpooledRun]]:
    """Runs that go through Spark in one query: several small ones, or a large one."""
    group: list[SpooledRun] = []
    for run in runs:
        rows = sum(each.rows for each in group)
        if group and (len(group) == RUNS_AT_ONCE or rows + run.rows > FEW_ROWS):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _shaped(branch: Branch, plan: SparkPlan, run: SpooledRun) -> DataFrame:
    from pyspark.sql import functions

    types = {field.name.lower(): field.dataType for field in branch.frame.schema.fields}
    word = functions.lit(branch.operation) if branch.operation else functions.col(OPERATION)
    return branch.frame.select(
        *(expression(each, types.get(each.column.name.lower())) for each in plan.given),
        word.alias(OPERATION),
        functions.lit(run.number).cast("bigint").alias(RUN),
    )


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionAll(other)
