"""A Spark session that is being started in the background.

The JVM takes seconds to start. Meanwhile a run loads modules and checks source and destinations. So the start comes
first, and is given up when a check fails. Imports little, so that the start is not delayed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.registry import adapter_of
from trucker.config.sql.sql_files import ON_SPARK
from trucker.engine.spark.cluster import is_local
from trucker.engine.spark.interpreter import share_import_path
from trucker.engine.spark.session import start_context, start_session, stop_session

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

_LOOK_SECONDS = 0.05


def has_spark_sql(trucks: Sequence[TruckConfig]) -> bool:
    """Whether one of them has SQL for Spark."""
    return any(truck.file(name) for truck in trucks for name in ON_SPARK)


def started(config: ProjectConfig) -> Spark:
    """The project's application, with a session if it has SQL for Spark. The project's lock must be held."""
    start = start_session if has_spark_sql(config.trucks) else start_context
    spark: Spark = start(
        f"trucker {config.unique_id}",
        master=config.spark.master,
        settings=config.spark.settings,
        state=config.state_folder,
        shared=_shared(config),
    )
    adopt(spark, config)
    return spark


def adopt(spark: Spark, config: ProjectConfig) -> None:
    """Prepare an application for the project: workers on this machine import what a program that built it imports."""
    if config.is_built and is_local(spark.sparkContext.master):
        share_import_path(spark)


def _shared(config: ProjectConfig) -> list[Path]:
    """The folders that executors read and write: the change log, rows for Spark SQL, and staged files."""
    used = {truck.output.connection for truck in config.trucks}
    through_files = any(adapter_of(each).uses_folder for each in config.connections if each.name in used)
    location = config.log.location
    folders = [location] if isinstance(location, Path) else []
    if location is not None and not through_files and not has_spark_sql(config.trucks):
        return folders
    return [config.state_folder, *folders]


def session_there() -> bool:
    """Whether this process has a session already: Spark would return that one, which must not be stopped here."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


class SessionFuture:
    """The session that a thread starts. After `result` the caller stops it; otherwise `give_up` must be called."""

    def __init__(self, config: ProjectConfig) -> None:
        self._config = config
        self._future: Future[Spark] = Future()
        self._handed_over = False
        # A daemon: a process that ends does not wait for it, and the JVM ends with the process.
        self._thread = threading.Thread(target=self._start, name="spark", daemon=True)
        self._thread.start()

    def result(self) -> Spark:
        """Wait for the session; raises the error of its start."""
        self._handed_over = True
        return self._future.result()

    def give_up(self) -> None:
        """End the start or the session, unless `result` was called. The process can then start another session."""
        if self._handed_over:
            return
        self._handed_over = True
        with _py4j_silent():
            while self._thread.is_alive():
                self._kill()
                self._thread.join(_LOOK_SECONDS)
            if self._future.exception() is None:
                with suppress(Exception):  # the JVM may have been killed just after the start
                    stop_session(self._future.result(), wait=0.0)
            _forget_gateway()

    def _start(self) -> None:
        try:
            self._future.set_result(started(self._config))
        except BaseException as error:
            self._future.set_exception(error)

    def _kill(self) -> None:
        """Kill the child processes of the thread, and theirs: the JVM, the shell that records an archive, or a search
        for Java."""
        _kill_children(Path(f"/proc/self/task/{self._thread.native_id}/children"))


def _kill_children(listing: Path) -> None:
    """Kill the processes that the file lists, and their children. Each is stopped before its children are listed, so
    that it cannot start another one meanwhile."""
    with suppress(OSError):
        for pid in map(int, listing.read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                _kill_children(Path(f"/proc/{pid}/task/{pid}/children"))
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _py4j_silent() -> Iterator[None]:
    """py4j logs the loss of its JVM as an error (Py4JNetworkError). Here the JVM is killed on purpose."""
    logger = logging.getLogger("py4j")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _forget_gateway() -> None:
    """Remove pyspark's gateway to the JVM that has ended: it would use it for the next session."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
