"""Runs one Spark job over a list of parts. All work of trucker reaches the cluster this way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trucker.engine.spark.cluster import expected, misfit
from trucker.engine.spark.executor_entry import Held, post_task, report_task, run_task
from trucker.engine.spark.outcome_stream import OutcomeStream, board_of
from trucker.engine.spark.secret_pickle import seal
from trucker.errors import EngineError, JobFailed, TruckerError

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.job")

LARGE_BYTES = 256 << 10
POST_SECONDS = 60.0

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
ReportT = TypeVar("ReportT")

Reporting = tuple[Callable[[ResultT], ReportT], Callable[[ReportT], None]]
"""A function of a task that makes a report of a result, and one of the driver that gets it."""


def run_job(
    spark: Spark,
    function: Callable[[PartT], ResultT],
    parts: Sequence[PartT],
    *,
    group: str = "",
    reporting: Reporting[ResultT, ReportT] | None = None,
) -> list[ResultT]:
    """Run `function` over every part, a task each, and collect the results in the parts' order.

    `function` is sent to each executor once, so a part should hold only its own data. The job can be cancelled by the
    name of its `group`; with `reporting` each task reports when it ends.

    Raises JobFailed when Spark gives up on a task, whose process has died more often than Spark tries again, and
    EngineError for an executor whose versions do not match the driver's.
    """
    if group:
        spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
    if reporting is None:
        return _run(spark, run_task, function, parts)
    board = board_of(spark.sparkContext)
    report, take = reporting
    job = board.listen(take)
    try:
        return _run(spark, partial(report_task, board.accumulator, job, report), function, parts)
    finally:
        board.close(job)


def _run(
    spark: Spark, task: Callable[..., Any], function: Callable[[PartT], ResultT], parts: Sequence[PartT]
) -> list[ResultT]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PythonException

    try:
        (what, *sealed), secrets = seal([function, *parts])
        tasks = spark.sparkContext.parallelize(sealed, len(parts))
        with _shared_bytes(spark, what) as shared:
            results: list[ResultT] = tasks.mapPartitionsWithIndex(
                partial(task, expected(spark), shared, secrets)
            ).collect()
        return results
    except (PythonException, Py4JError, OSError, EOFError) as error:  # the last two when the JVM dies meanwhile
        if (unfit := misfit(error)) is not None:
            raise unfit from error
        if isinstance(error, PythonException):  # raised by the function: a bug
            raise
        raise JobFailed(
            f"a Spark job of {len(parts)} tasks failed: {_first_line(error)}",
            remedy="read spark.log in the project's state folder",
        ) from error


def start_job(spark: Spark, function: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> OutcomeStream[ResultT]:
    """As `run_job`, without waiting: the results arrive as their tasks end."""
    board = board_of(spark.sparkContext)
    job, arriving = board.open(len(parts))

    def run() -> None:
        try:
            _run(spark, partial(post_task, board.accumulator, job), function, parts)
            if not arriving.wait(POST_SECONDS):
                raise JobFailed(f"a Spark job of {len(parts)} tasks ended without all results")
        except TruckerError as error:
            arriving.end(error)
        except BaseException as error:
            log.exception("job failed unexpectedly", extra={"tasks": len(parts)})
            message = f"a Spark job of {len(parts)} tasks failed unexpectedly: {type(error).__name__}"
            arriving.end(EngineError(message, remedy="read the log", code="TRK599"))
        finally:
            board.close(job)

    threading.Thread(target=run, name="job", daemon=True).start()
    return arriving


@contextmanager
def _shared_bytes(spark: Spark, what: bytes) -> Iterator[Any]:
    """An object whose `value` is `what` in every task: a broadcast variable where it is large. Spark writes a large
    function to a file, and the function holds the secrets, which must not be on disk (I10): so it has to stay small.
    """
    if len(what) <= LARGE_BYTES:
        yield Held(what)
        return
    variable = spark.sparkContext.broadcast(what)
    try:
        yield variable
    finally:
        variable.destroy()


def _first_line(error: Exception) -> str:
    text = str(error)
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        with suppress(Exception):  # the JVM may have ended
            text = str(cause.getMessage())
    return text.splitlines()[0][:300] if text else type(error).__name__
