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
from trucker.engine.spark.executor_entry import DIFFERENT, MISSING, Runtime, made, probe
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

# An executor's JVM hands tasks to Python: no collector with threads of its own.
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


def settings(state: Path, cache: Path, asked: Mapping[str, str], shared: Sequence[Path]) -> dict[str, str]:
    """What a session on a cluster is started with; `asked` is the user's, which wins. Lists have both.

    `shared` are folders that executors must see.
    """
    package = shipped(cache)
    marks = [folder.resolve() / _MARK for folder in shared]
    for mark in marks:
        private.make_folder(mark.parent)
        private.write_text(mark, "")
    return {
        MARKS: os.pathsep.join(map(str, marks)),
        **_executor_environment(package, asked),
        **{name: _absolute(asked[name]) for name in _LISTS if name in asked},
        "spark.files": ",".join(filter(None, [_absolute(asked.get("spark.files", "")), package.as_uri()])),
        "spark.executor.extraJavaOptions": " ".join([*_EXECUTOR_JVM, *_logging(state), *_asked_jvm(asked)]),
    }


def _executor_environment(package: Path, asked: Mapping[str, str]) -> dict[str, str]:
    prefix = "spark.executorEnv."
    own = dict(WORKERS)
    if armed := os.environ.get(failpoint.VARIABLE):
        own[failpoint.VARIABLE] = armed
    paths = [package.name, asked.get(f"{prefix}PYTHONPATH", "")]
    found = {f"{prefix}{name}": asked.get(f"{prefix}{name}", value) for name, value in own.items()}
    return {**found, f"{prefix}PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _asked_jvm(asked: Mapping[str, str]) -> list[str]:
    options = asked.get("spark.executor.extraJavaOptions", "")
    return [options] if options else []


def _logging(state: Path) -> list[str]:
    """Spark's executors log what rows they fail on, unless configured otherwise."""
    driver = Path(__file__).with_name("log4j2.properties").read_text(encoding="utf-8")
    layout = [line.replace("appender.file.", "appender.console.") for line in driver.splitlines() if ".layout." in line]
    file = state / "executor.log4j2.properties"
    private.write_text(file, _LOGGING.format(layout="\n".join(layout)))
    return [f"-Dlog4j2.configurationFile={file.as_uri()}"]


def _absolute(paths: str) -> str:
    """A list of files, those that are named from here named from the root: the driver's JVM may run elsewhere."""
    found = []
    for entry in filter(None, map(str.strip, paths.split(","))):
        name, sign, alias = entry.partition("#")
        found.append(entry if "://" in name or name.startswith("file:") else f"{Path(name).absolute()}{sign}{alias}")
    return ",".join(found)


# -- executors that do not fit -------------------------------------------------------------------------------------


def expected(spark: Spark) -> Runtime | None:
    """What executors are held against; None where they are the driver itself."""
    return _expected(spark.sparkContext)


@lru_cache(maxsize=1)
def _expected(context: SparkContext) -> Runtime | None:
    if is_local(context.master):
        return None
    marks = context.getConf().get(MARKS) or ""
    paths = map(Path, filter(None, marks.split(os.pathsep)))
    return made(*paths, adapters=installed().foreign_modules())


def misfit(error: Exception) -> TruckerError | None:
    """Why an executor cannot do the driver's work, if that is what a job failed for. Spark has it as text only."""
    cause = getattr(error, "java_exception", None)
    try:
        text = str(cause.getMessage() if cause is not None else error)
    except Exception:  # the JVM that could tell may be gone
        return None
    if found := re.search(r"\[(TRK51[456])\] (.+)\n +next: (.+)", text):
        return EngineError(found[2], remedy=found[3], code=found[1])
    return _other_python(text)


def _other_python(text: str) -> TruckerError | None:
    remedy = "install the same Python there, or ship an environment (docs/howto/spark_cluster.md)"
    if found := re.search(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)", text):
        return EngineError(f"an executor has another Python: {found[1][:200]}", remedy=remedy, code=DIFFERENT)
    if found := re.search(r'Cannot run program "([^"]+)"', text):
        return EngineError(f"a worker has no Python {found[1]}", remedy=_PYTHON.format(remedy), code=MISSING)
    if found := re.search(r"(?:ModuleNotFoundError|No module named)[^\n]{0,200}", text):
        return EngineError(f"an executor's Python: {found[0]}", remedy=remedy, code=MISSING)
    return None


_PYTHON: Final = "{}; spark.pyspark.python sets its path"


def check_executors(spark: Spark, *, arrival: float = ARRIVAL_SECONDS) -> None:
    """Wait for the first executors, and see whether they can do the driver's work."""
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
    """Have the executors of somebody's own session run this trucker, where they are not the driver itself."""
    if not is_local(spark.sparkContext.master) and spark.sparkContext.getConf().get(MARKS) is None:
        spark.sparkContext.addPyFile(str(shipped(cache_folder())))


# -- while it runs -------------------------------------------------------------------------------------------------


def count_executors(spark: Spark) -> int:
    """How many there are now."""
    # The driver counts as one of those who hold blocks.
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def cores(spark: Spark) -> int:
    """How many tasks run at once, with the executors there are now."""
    context = spark.sparkContext
    return _own_cores(context) if is_local(context.master) else max(1, int(context.defaultParallelism))


@lru_cache(maxsize=1)
def _own_cores(context: SparkContext) -> int:
    """The driver's own do not change, and to ask its JVM takes time that a small batch would wait."""
    return max(1, int(context.defaultParallelism))


def check_context(spark: Spark) -> None:
    """Raise when the cluster has let go of the application: nothing can be done in it any more."""
    if spark.sparkContext._jsc.sc().isStopped():
        raise EngineError(
            f"{spark.sparkContext.master} has ended the application, as it does when executors fail repeatedly",
            remedy="read spark.log in the state folder and the executors' logs, then restart; nothing is lost",
            code="TRK513",
        )


def let_go(spark: Spark) -> None:
    """Give up what is under way where no executor is left to do it: somebody waits for it to end."""
    if not is_local(spark.sparkContext.master) and not count_executors(spark):
        spark.sparkContext.cancelAllJobs()


class Executors:
    """Tells in the log when executors come and go, and is the `trouble` when none is left. Call `look` now and then."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._local = is_local(spark.sparkContext.master)
        self._known: int | None = None

    @property
    def trouble(self) -> str | None:
        if self._local or self._known != 0:
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
        if now != self._known:
            tell = log.warning if not now or now < (self._known or 0) else log.info
            before = {} if self._known is None else {"before": self._known}
            tell("number of executors changed", extra={"executors": now, **before})
            self._known = now
