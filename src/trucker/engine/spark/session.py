"""Creates the Spark session, tuned for small and quick jobs.

What is set here was measured (`bench/README.md`); the user's own settings win over all of it.
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
    # Hadoop has a umask of its own.
    "spark.hadoop.fs.permissions.umask-mode": f"{private.UMASK:03o}",
    # Workers are forked with trucker imported.
    "spark.python.daemon.module": "trucker.engine.spark.worker_daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The other way needs pandas, and says so at every function where there is none.
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
# As Spark itself tells what its pages must not show. Such settings are on no command line either.
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

    `settings` are Spark's own names and win over trucker's. Call it only while the project's lock is held: what
    an earlier run left in the scratch folder is deleted.
    `record=False` is for one that does not do what a run does: it leaves no class-data archive for others.
    On a cluster it waits for the first executors, and raises when they cannot do the driver's work, or do not see the
    folders that are to be `shared`: `state`, unless something else is said.
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
    asked = dict(settings or {})
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
    launch = _launch(state, scratch, asked, here=here, record=record and local)
    python = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    environment = {**launch.environment, **python_environment(python), **(_LOOPBACK if here else {})}
    defaults = _defaults(app_name, state, here=here)
    if not local:
        asked |= cluster.settings(state.resolve(), cache_folder(), asked, [state] if shared is None else shared)
        seats = away(python, state.resolve() / "spark" / "driver", asked)
        environment |= seats.environment
        asked |= seats.settings
    if master.startswith("local-cluster"):
        environment["SPARK_HOME"] = str(_own_home(Path(environment["SPARK_HOME"]), state.resolve() / "spark"))
    with _environment(environment):
        spark = _connect(connect, _retrying(master), {**defaults, **asked}, launch)
    if not local:
        _check_executors(spark)
    return spark


def _skip_lookup(spark: SparkSession) -> None:
    """Tell Spark that no module of this Python brings a data source by its name: trucker registers its own.

    Spark would start two processes to find that out, which stay: half a second of the start, and 70 MiB.
    """
    jvm: Any = spark.sparkContext._jvm
    try:
        manager = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$"), "MODULE$")
        nothing = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Option.apply(nothing))
    except Exception as error:  # no part of Spark's interface: another version looks, as this one would
        log.debug("the lookup of data sources is not skipped", extra={"reason": type(error).__name__})


def _check_executors(spark: Spark) -> None:
    try:
        cluster.check_executors(spark)
    except BaseException:
        with contextlib.suppress(Exception):
            stop_session(spark)
        raise


def stop_session(spark: Spark, *, wait: float | None = None) -> None:
    """Stop Spark and let its JVM end; with `wait`, give it so many seconds to be gone, archive written.

    The process can start no other session that differs in what concerns the JVM, unless it has waited.
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

    shown = [(name, value) for name, value in settings.items() if not _SECRET.search(name)]
    try:
        # The JVM's command line, which other users can see, has these settings; the rest is set when it runs.
        told = SparkConf(loadDefaults=False).setMaster(master).setAll(shown)
        SparkContext._ensure_initialized(conf=told)
        spark = connect(SparkConf().setMaster(master).setAll(list(settings.items())))
        if launch.recording:
            session_of(spark)  # other projects, which have SQL for Spark, will use the same archive
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
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found[1]},{TASK_TRIES}]" if found else master


def _scratch(state: Path) -> Path:
    """An empty folder for Spark's temporary files, below `state` where that can be; a killed run's are gone.

    Unix sockets live in it, and their paths are limited to about a hundred bytes.
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


def _own_home(overlay: Path, folder: Path) -> Path:
    """The same SPARK_HOME at a place of the project's own: `local-cluster` has its executors' files below it."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    private.make_folder(home)
    for entry in overlay.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """pyspark takes what it starts the driver with from the environment; leave it as it was."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _complaint(output: Path) -> str:
    """What the JVM said last before it ended; of a stack trace, its first line."""
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip() and not line.startswith(("\tat ", "\t..."))]
    return " | ".join(line.removeprefix('Exception in thread "main" ') for line in said[-3:])[:400]


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return text.splitlines()[0][:300] if text else type(error).__name__
