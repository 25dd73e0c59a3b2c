"""Differences between a cluster and one machine: executors are elsewhere, start late, and get lost.

`settings` has the options of a session on a cluster. `check_executors` checks the first executors at the start; later
ones are checked by their first task (`executor_entry`). `Executors` watches how many there are.

Spark distributes trucker to executors as a file (`package_zip`): it is in the working folder of an executor before the
first task, and on Python's path by its file name alone.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trucker import failpoint, private
from trucker.config.registry import installed
from trucker.engine.spark.executor_entry import DIFFERENT, MISSING, Runtime, probe, runtime_here
from trucker.engine.spark.interpreter import WORKERS
from trucker.engine.spark.java import cache_folder
from trucker.engine.spark.package_zip import shipped
from trucker.errors import EngineError, TruckerError

if TYPE_CHECKING:
    from pyspark import SparkContext

    from trucker.engine.spark.application import Spark

log = logging.getLogger("trucker.cluster")

MARKS: Final = "spark.trucker.marks"
_MARK: Final = "cluster.mark"
ARRIVAL_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1
_LISTS: Final = ("spark.archives", "spark.files", "spark.jars", "spark.submit.pyFiles")

# An executor's JVM only passes tasks to Python: a garbage collector with threads would cost more than it gains.
_EXECUTOR_JVM: Final = ("-XX:+UseSerialGC", "-XX:-UsePerfData")

_LOGGING: Final = """\
# Written by trucker, for executors: as for the driver, what an error quotes of a row is left out.
status = error
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
{layout}
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM."""
    return re.match(r"local(\[|$)", master) is not None


def settings(state: Path, cache: Path, user_settings: Mapping[str, str], shared: Sequence[Path]) -> dict[str, str]:
    """The settings of a session on a cluster; `user_settings` take precedence. Lists are concatenated.

    `shared` are folders that executors must see.
    """
    package = shipped(cache)
    marks = [folder.resolve() / _MARK for folder in shared]
    for mark in marks:
        private.make_folder(mark.parent)
        private.write_text(mark, "")
    return {
        MARKS: os.pathsep.join(map(str, marks)),
        **_executor_environment(package, user_settings),
        **{name: _absolute(user_settings[name]) for name in _LISTS if name in user_settings},
        "spark.files": ",".join(filter(None, [_absolute(user_settings.get("spark.files", "")), package.as_uri()])),
        "spark.executor.extraJavaOptions": " ".join([*_EXECUTOR_JVM, *_logging(state), *_user_jvm(user_settings)]),
    }


def _executor_environment(package: Path, user_settings: Mapping[str, str]) -> dict[str, str]:
    prefix = "spark.executorEnv."
    variables = dict(WORKERS)
    if armed := os.environ.get(failpoint.VARIABLE):
        variables[failpoint.VARIABLE] = armed
    paths = [package.name, user_settings.get(f"{prefix}PYTHONPATH", "")]
    environment = {f"{prefix}{name}": user_settings.get(f"{prefix}{name}", value) for name, value in variables.items()}
    return {**environment, f"{prefix}PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _user_jvm(user_settings: Mapping[str, str]) -> list[str]:
    options = user_settings.get("spark.executor.extraJavaOptions", "")
    return [options] if options else []


def _logging(state: Path) -> list[str]:
    """Spark's default logging on executors shows the rows that a task fails on (I10): configure it as the driver's."""
    driver = Path(__file__).with_name("log4j2.properties").read_text(encoding="utf-8")
    layout = [line.replace("appender.file.", "appender.console.") for line in driver.splitlines() if ".layout." in line]
    file = state / "executor.log4j2.properties"
    private.write_text(file, _LOGGING.format(layout="\n".join(layout)))
    return [f"-Dlog4j2.configurationFile={file.as_uri()}"]


def _absolute(paths: str) -> str:
    """A list of files with absolute paths: the driver's JVM may run in another working folder."""
    files = []
    for entry in filter(None, map(str.strip, paths.split(","))):
        name, sign, alias = entry.partition("#")
        files.append(entry if "://" in name or name.startswith("file:") else f"{Path(name).absolute()}{sign}{alias}")
    return ",".join(files)


# -- executors that do not fit -------------------------------------------------------------------------------------


def expected(spark: Spark) -> Runtime | None:
    """The runtime that executors must have; None where tasks run in the driver's JVM."""
    return _expected(spark.sparkContext)


@lru_cache(maxsize=1)
def _expected(context: SparkContext) -> Runtime | None:
    if is_local(context.master):
        return None
    marks = context.getConf().get(MARKS) or ""
    paths = map(Path, filter(None, marks.split(os.pathsep)))
    return runtime_here(*paths, adapters=installed().foreign_modules())


def misfit(error: Exception) -> TruckerError | None:
    """The error of an executor that does not match the driver, if that failed a job. Spark passes it as text only."""
    cause = getattr(error, "java_exception", None)
    try:
        text = str(cause.getMessage() if cause is not None else error)
    except Exception:  # the JVM may have ended
        return None
    if match := re.search(r"\[(TRK51[456])\] (.+)\n +next: (.+)", text):
        return EngineError(match[2], remedy=match[3], code=match[1])
    return _other_python(text)


def _other_python(text: str) -> TruckerError | None:
    remedy = "install the same Python there, or ship an environment (docs/howto/spark_cluster.md)"
    if match := re.search(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)", text):
        return EngineError(f"an executor has another Python: {match[1][:200]}", remedy=remedy, code=DIFFERENT)
    if match := re.search(r'Cannot run program "([^"]+)"', text):
        return EngineError(f"a worker has no Python {match[1]}", remedy=_PYTHON.format(remedy), code=MISSING)
    if match := re.search(r"(?:ModuleNotFoundError|No module named)[^\n]{0,200}", text):
        return EngineError(f"an executor's Python: {match[0]}", remedy=remedy, code=MISSING)
    return None


_PYTHON: Final = "{}; spark.pyspark.python sets its path"


def check_executors(spark: Spark, *, arrival: float = ARRIVAL_SECONDS) -> None:
    """Wait for the first executors, and check that they match the driver."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    await_executor(spark, arrival)
    context, driver = spark.sparkContext, expected(spark)
    count = max(2, context.defaultParallelism)
    try:
        context.parallelize(range(count), count).mapPartitions(partial(probe, driver)).collect()
    except (Py4JError, PySparkException) as error:
        if (unfit := misfit(error)) is not None:
            raise unfit from error
        raise


def await_executor(spark: Spark, seconds: float) -> None:
    """Return once there is an executor."""
    deadline = time.monotonic() + seconds
    while not count_executors(spark):
        check_context(spark)
        if time.monotonic() > deadline:
            context = spark.sparkContext
            host, port = (context.getConf().get(f"spark.driver.{name}", "?") for name in ("host", "port"))
            raise EngineError(
                f"no executor of {context.master} registered within {seconds:.0f} s",
                remedy="check on the master's page that cores and memory are free (spark.cores.max, "
                f"spark.executor.memory), and that workers reach the driver at {host}:{port} "
                "(spark.driver.host, spark.driver.port)",
                code="TRK517",
            )
        time.sleep(_LOOK_SECONDS)


def ship(spark: Spark) -> None:
    """Send this trucker to the executors of a session that the caller created."""
    if not is_local(spark.sparkContext.master) and spark.sparkContext.getConf().get(MARKS) is None:
        spark.sparkContext.addPyFile(str(shipped(cache_folder())))


# -- while it runs -------------------------------------------------------------------------------------------------


def count_executors(spark: Spark) -> int:
    """How many there are now."""
    # `getExecutorMemoryStatus` counts the driver's block manager, too.
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def cores(spark: Spark) -> int:
    """How many tasks run at once, with the executors there are now."""
    context = spark.sparkContext
    return _local_cores(context) if is_local(context.master) else max(1, int(context.defaultParallelism))


@lru_cache(maxsize=1)
def _local_cores(context: SparkContext) -> int:
    """Cached: the number of local cores does not change, and a call to the JVM would delay a small batch."""
    return max(1, int(context.defaultParallelism))


def check_context(spark: Spark) -> None:
    """Raise when the cluster has ended the application: no job can run in it any more."""
    if spark.sparkContext._jsc.sc().isStopped():
        raise EngineError(
            f"{spark.sparkContext.master} has ended the application, as it does when executors fail repeatedly",
            remedy="read spark.log in the state folder and the executors' logs, then restart; nothing is lost",
            code="TRK513",
        )


def let_go(spark: Spark) -> None:
    """Cancel all jobs where no executor is left to run them: the caller waits for their end."""
    if not is_local(spark.sparkContext.master) and not count_executors(spark):
        spark.sparkContext.cancelAllJobs()


class Executors:
    """Logs changes in the number of executors; `trouble` is set when none is left. Call `look` at intervals."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._local = is_local(spark.sparkContext.master)
        self._count: int | None = None

    @property
    def trouble(self) -> str | None:
        if self._local or self._count != 0:
            return None
        return str(
            EngineError(
                f"no executor of {self._spark.sparkContext.master} is left; all trucks wait for one",
                remedy="check the master's page and the executors' logs; nothing is lost",
                code="TRK518",
            )
        )

    def look(self) -> None:
        if self._local:
            return
        check_context(self._spark)
        now = count_executors(self._spark)
        if now != self._count:
            tell = log.warning if not now or now < (self._count or 0) else log.info
            previous = {} if self._count is None else {"before": self._count}
            tell("number of executors changed", extra={"executors": now, **previous})
            self._count = now
