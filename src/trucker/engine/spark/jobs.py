"""Runs the parts of batches and copies, on Spark or, for tests, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from trucker.engine.spark.application import Spark
from trucker.engine.spark.cluster import cores, is_local, let_go
from trucker.engine.spark.job import Reporting, run_job, start_job
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.spark.worker_warmup import bring_up_workers

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
ReportT = TypeVar("ReportT")


class Jobs(Protocol):
    """Runs a function over parts, a task each, in other processes or here."""

    @property
    def cores(self) -> int:
        """How many tasks run at once now."""

    @property
    def is_local(self) -> bool:
        """Whether the tasks run on the driver's machine."""

    def run(
        self,
        function: Callable[[PartT], ResultT],
        parts: Sequence[PartT],
        *,
        group: str = "",
        reporting: Reporting[ResultT, ReportT] | None = None,
    ) -> list[ResultT]:
        """The results, in the order of the parts; see `run_job`."""

    def start(self, function: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> OutcomeStream[ResultT]:
        """As `run`, without waiting: the results arrive as their tasks end."""

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group."""

    def let_go(self) -> None:
        """Cancel all jobs where no executor is left to run them."""

    def bring_up_workers(self) -> threading.Event:
        """Start the processes that run tasks; the event is set when they run, or could not be started."""


class SparkJobs:
    """Jobs of a Spark application."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    @property
    def cores(self) -> int:
        return cores(self._spark)

    @property
    def is_local(self) -> bool:
        return is_local(self._spark.sparkContext.master)

    def run(
        self,
        function: Callable[[PartT], ResultT],
        parts: Sequence[PartT],
        *,
        group: str = "",
        reporting: Reporting[ResultT, ReportT] | None = None,
    ) -> list[ResultT]:
        return run_job(self._spark, function, parts, group=group, reporting=reporting)

    def start(self, function: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> OutcomeStream[ResultT]:
        return start_job(self._spark, function, parts)

    def cancel(self, group: str) -> None:
        self._spark.sparkContext.cancelJobGroup(group)

    def let_go(self) -> None:
        let_go(self._spark)

    def bring_up_workers(self) -> threading.Event:
        return bring_up_workers(self._spark)
