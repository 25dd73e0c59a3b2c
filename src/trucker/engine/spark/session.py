"""Creates the Spark session, tuned for small and quick jobs.

The settings here were measured (`bench/README.md`); the user's settings take precedence.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trucker import private
from trucker.config.registry import installed
from trucker.engine.spark import cluster, worker_daemon
from trucker.engine.spark.application import ContextAlone, Spark, session_of
from trucker.engine.spark.interpreter import away, python_environment
from trucker.engine.spark.java import cache_folder, find_java
from trucker.engine.spark.launch import Launch, prepare_launch
from trucker.errors import EngineError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession as SparkSession

log = logging.getLogger("trucker.session")

SparkT = TypeVar("SparkT", bound=Spark)

# The most the driver's heap may take. It holds plans and receipts, never rows, and stays far below.
DRIVER_MEMORY = "1g"
TASK_TRIES = 4
# Of the 108 bytes of a Unix socket's path, the rest is for Spark's file names.
_SOCKET_PATH_ROOM = 60

_JVM = (
    # Spark matches a failure's text with a pattern that recurses; a job cancelled by stop() overflowed the default.
    "-Xss8m",
    # The JVM coordinates and Python works: a compiler quick to warm up and a collector without threads of its own
    # give lower latency, half the memory and next to no idle CPU.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # Grow when needed; the default begins with a 64th of the machine's memory.
    "-Xms128m",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)

_SETTINGS: Mapping[str, str] = {
    # 40 ms less per hop between JVM and Python than loopback TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Hadoop's files do not follow the process's umask.
    "spark.hadoop.fs.permissions.umask-mode": f"{private.UMASK:03o}",
    # Workers are forked with trucker imported.
    "spark.python.daemon.module": "trucker.engine.spark.worker_daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With Arrow, Python functions need pandas, and warn about it at each function where it is missing.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.scheduler.mode": "FAIR",
}

# With all of Spark on this machine nothing listens to the outside.
_LOOPBACK: Mapping[str, str] = {"SPARK_LOCAL_IP": "127.0.0.1"}
_LOOPBACK_JVM = ("-Djava.net.preferIPv4Stack=true",)
_LOOPBACK_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
# Spark's own pattern for settings that its pages hide. Such settings are not on the command line either.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def start_session(
    app_name: str,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    state: Path,
    shared: Sequence[Path] | None = None,
    record: bool = True,
) -> SparkSession:
    """As `start_context`, with a session for Spark SQL."""
    return _start(_session, app_name, master, settings, state, shared, record=record)


def start_context(
    app_name: str,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    state: Path,
    shared: Sequence[Path] | None = None,
    record: bool = True,
) -> Spark:
    """Start Spark's driver and connect to `master`. One per process; its log and scratch files are below `state`.

    `settings` have Spark's names and take precedence over trucker's. Call it only while the project's lock is held: the
    files of an earlier run in the scratch folder are deleted.
    `record=False` is for applications that do less than a run: they leave no class-data archive.
    On a cluster it waits for the first executors, and raises when they do not match the driver, or do not see the
    folders that have to be `shared`, by default `state`.
    """
    return _start(_context, app_name, master, settings, state, shared, record=record)


def _start(
    connect: Callable[[SparkConf], SparkT],
    app_name: str,
    master: str,
    settings: Mapping[str, str] | None,
    state: Path,
    shared: Sequence[Path] | None,
    *,
    record: bool,
) -> SparkT:
    user_settings = dict(settings or {})
    try:
        scratch = _scratch(state)
    except OSError as error:
        raise EngineError(
            f"a folder for Spark's files cannot be created below {state}: {error.strerror}",
            remedy="set `state` in trucker.yml to a folder where trucker may write",
            code="TRK507",
        ) from error
    local = cluster.is_local(master)
    here = master.startswith("local")
    launch = _launch(state, scratch, user_settings, here=here, record=record and local)
    python = user_settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    environment = {**launch.environment, **python_environment(python), **(_LOOPBACK if here else {})}
    defaults = _defaults(app_name, state, here=here)
    if not local:
        user_settings |= cluster.settings(
            state.resolve(), cache_folder(), user_settings, [state] if shared is None else shared
        )
        seats = away(python, state.resolve() / "spark" / "driver", user_settings)
        environment |= seats.environment
        user_settings |= seats.settings
    if master.startswith("local-cluster"):
        environment["SPARK_HOME"] = str(_project_home(Path(environment["SPARK_HOME"]), state.resolve() / "spark"))
    with _environment(environment):
        spark = _connect(connect, _retrying(master), {**defaults, **user_settings}, launch)
    if not local:
        _check_executors(spark)
    return spark


def _skip_lookup(spark: SparkSession) -> None:
    """Make Spark skip its search for Python modules with data sources: trucker registers its own.

    The search starts two processes, which keep running: half a second of the start, and 70 MiB.
    """
    jvm: Any = spark.sparkContext._jvm
    try:
        manager = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$"), "MODULE$")
        nothing = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Option.apply(nothing))
    except Exception as error:  # not a public interface of Spark: where it is missing, Spark searches
        log.debug("the lookup of data sources is not skipped", extra={"reason": type(error).__name__})


def _check_executors(spark: Spark) -> None:
    try:
        cluster.check_executors(spark)
    except BaseException:
        with contextlib.suppress(Exception):
            stop_session(spark)
        raise


def stop_session(spark: Spark, *, wait: float | None = None) -> None:
    """Stop Spark and its JVM; with `wait`, allow it so many seconds to end and to write its archive.

    Without `wait` the JVM stays with this process: a later session gets it with its present options.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    process = getattr(gateway, "proc", None)
    if wait is None or process is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process.stdin.close()
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _session(conf: SparkConf) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    _skip_lookup(spark)
    return spark


def _context(conf: SparkConf) -> Spark:
    from pyspark import SparkContext

    return ContextAlone(SparkContext.getOrCreate(conf))


def _connect(
    connect: Callable[[SparkConf], SparkT], master: str, settings: Mapping[str, str], launch: Launch
) -> SparkT:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    visible = [(name, value) for name, value in settings.items() if not _SECRET.search(name)]
    try:
        # Other users can see the JVM's command line, so secret settings are set only after the start.
        command_line = SparkConf(loadDefaults=False).setMaster(master).setAll(visible)
        SparkContext._ensure_initialized(conf=command_line)
        spark = connect(SparkConf().setMaster(master).setAll(list(settings.items())))
        if launch.recording:
            session_of(spark)  # so that the archive has the classes of Spark SQL, for projects that use it
        return spark
    except PySparkException as error:
        raise EngineError(
            f"Spark's driver did not start: {_complaint(launch.output) or error}",
            remedy=f"read {launch.output}, and check the `spark:` settings in trucker.yml",
            code="TRK505",
        ) from error
    except Exception as error:
        raise EngineError(
            f"Spark did not start with master {master}: {_cause(error)}",
            remedy=f"check `master` and the `spark:` settings; read {launch.output.with_name('spark.log')}",
            code="TRK506",
        ) from error


def _launch(state: Path, scratch: Path, settings: Mapping[str, str], *, here: bool, record: bool) -> Launch:
    cache = cache_folder()
    options = [
        *_JVM,
        *(_LOOPBACK_JVM if here else ()),
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Dtrucker.spark.log={state.resolve() / 'spark.log'}",
    ]
    return prepare_launch(
        find_java(cache), cache, state.resolve(), options, settings, memory=DRIVER_MEMORY, record=record
    )


def _defaults(app_name: str, state: Path, *, here: bool) -> dict[str, str]:
    return {
        **_SETTINGS,
        **(_LOOPBACK_SETTINGS if here else {}),
        "spark.app.name": app_name,
        f"spark.executorEnv.{worker_daemon.MODULES}": ",".join(installed().source_modules()),
        "spark.sql.warehouse.dir": str(state.resolve() / "spark" / "warehouse"),
    }


def _retrying(master: str) -> str:
    """`local[*]` as `local[*,4]`: Spark's plain local mode never tries a task again."""
    if master == "local":
        return f"local[1,{TASK_TRIES}]"
    match = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{match[1]},{TASK_TRIES}]" if match else master


def _scratch(state: Path) -> Path:
    """An empty folder for Spark's temporary files, below `state` if its path is short enough. Deletes those of a killed
    run.

    It holds Unix sockets, whose paths are limited to about a hundred bytes.
    """
    private.make_folder(state)
    folder = state.resolve() / "spark" / "tmp"
    if len(str(folder)) > _SOCKET_PATH_ROOM:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        folder = _short_temporary() / f"trucker-{os.getuid()}-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    private.make_folder(folder)
    return folder


def _short_temporary() -> Path:
    """The temporary folder, or a usual one where its path is long, too."""
    usual = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    return Path(min((path for path in usual if os.access(path, os.W_OK)), key=len, default=usual[0]))


def _project_home(overlay: Path, folder: Path) -> Path:
    """The same SPARK_HOME in the project's folder: `local-cluster` writes its executors' files below it."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    private.make_folder(home)
    for entry in overlay.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, by which pyspark starts the driver, and restore them afterwards."""
    previous = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _complaint(output: Path) -> str:
    """The last lines that the JVM printed before it ended, without stack traces."""
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    printed = [line.strip() for line in lines if line.strip() and not line.startswith(("\tat ", "\t..."))]
    return " | ".join(line.removeprefix('Exception in thread "main" ') for line in printed[-3:])[:400]


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return text.splitlines()[0][:300] if text else type(error).__name__
