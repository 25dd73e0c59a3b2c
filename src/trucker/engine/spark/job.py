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
"""What a task reports of a result, and who gets it in the driver."""


def run_job(
    spark: Spark,
    function: Callable[[PartT], ResultT],
    parts: Sequence[PartT],
    *,
    group: str = "",
    reporting: Reporting[ResultT, ReportT] | None = None,
) -> list[ResultT]:
    """Run `function` over every part, a task each, and collect the results in the parts' order.

    What `function` holds travels to each executor once; a part should hold what is its own. By the name of its `group`
    the job can be cancelled; with `reporting` each task reports when it ends.

    Raises JobFailed when Spark gives up on a task, whose process has died more often than Spark tries again, and
    EngineError for an executor that cannot do the work because it is made of something else than the driver.
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
        with _held(spark, what) as held:
            results: list[ResultT] = tasks.mapPartitionsWithIndex(
                partial(task, expected(spark), held, secrets)
            ).collect()
        return results
    except (PythonException, Py4JError, OSError, EOFError) as error:  # the last two when the JVM dies under it
        if (unfit := misfit(error)) is not None:
            raise unfit from error
        if isinstance(error, PythonException):  # of a task's own: a bug
            raise
        raise JobFailed(
            f"a Spark job of {len(parts)} tasks failed: {_first_line(error)}",
            remedy="read spark.log in the project's state folder",
        ) from error


def start_job(spark: Spark, function: Callable[[PartT], ResultT], parts: Sequence[PartT]) -> OutcomeStream[ResultT]:
    """As `run_job`, and does not wait: the results arrive as their tasks are done."""
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
            said = f"a Spark job of {len(parts)} tasks failed unexpectedly: {type(error).__name__}"
            arriving.end(EngineError(said, remedy="read the log", code="TRK599"))
        finally:
            board.close(job)

    threading.Thread(target=run, name="job", daemon=True).start()
    return arriving


@contextmanager
def _held(spark: Spark, what: bytes) -> Iterator[Any]:
    """Something whose `value` is `what` in every task. Spark writes a large function into a file, as it does the parts:
    the secrets, which travel with it, must not be in there.
    """
    if len(what) <= LARGE_BYTES:
        yield Held(what)
        return
    sent = spark.sparkContext.broadcast(what)
    try:
        yield sent
    finally:
        sent.destroy()


def _first_line(error: Exception) -> str:
    text = str(error)
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        with suppress(Exception):  # the JVM that could tell may be gone
            text = str(cause.getMessage())
    return text.splitlines()[0][:300] if text else type(error).__name__
