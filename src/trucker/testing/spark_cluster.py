"""A real Spark standalone cluster: a master and worker processes of its own, from the jars of the pip package.

    with SparkCluster(folder, workers=2) as cluster:
        settings = {"master": cluster.master, ...}

Every process listens on the loopback interface, at ports that the system chooses. A worker can be killed, and so can
the executor that it runs for an application. The workers' files, logs of executors among them, are below `folder`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import psutil

from trucker.engine.spark.java import Java, cache_folder, find_java
from trucker.engine.spark.launch import scala_version, spark_home
from trucker.errors import TruckerError
from trucker.testing.process import kill_tree, process_tree

_START_SECONDS = 180.0
_POLL_SECONDS = 0.05
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Master and workers only coordinate, and a test runs several of them on a small machine.
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class Executor:
    """An executor's JVM, as its command line tells of it."""

    process: psutil.Process
    id: str
    application: str
    worker: int

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes below it: the daemon and those that it has forked."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each for each in self.process.children(recursive=True) if "python" in _name(each)]
        return []


class SparkCluster:
    """Starts with `with`, and ends every process at the end of it.

    `python` is what the workers run tasks with where an application does not say; `environment` is added to theirs.
    With a `secret` the cluster talks only to applications that have it too (`spark.authenticate`).
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
        secret: str = "",
    ) -> None:
        self.folder = folder
        self._cores = cores
        self._memory = memory
        self._count = workers
        self._java = find_java(cache_folder())
        self._options = (spark_home(cache_folder(), self._java) / "options").read_text(encoding="utf-8").splitlines()
        self._environment = _plain_environment(self._java, environment or {})
        self._secret = secret
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.master = ""

    def __enter__(self) -> SparkCluster:
        try:
            self.start_master()
            for number in range(self._count):
                self.start_worker(number)
            for number in range(self._count):
                self._await_log(f"worker-{number}", r"Successfully registered with master")
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def settings(self) -> dict[str, str]:
        """What an application has to set to be let in, beside the master."""
        return {"spark.authenticate": "true", "spark.authenticate.secret": self._secret} if self._secret else {}

    def start_master(self) -> None:
        """Start the master; `master` is its address then."""
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._await_log("master", r"Starting Spark master at (spark://\S+)")

    def start_worker(self, number: int) -> None:
        """Start a worker; `work_folder(number)` has what its executors leave."""
        self.work_folder(number).mkdir(parents=True, exist_ok=True)
        self._start(
            f"worker-{number}",
            "worker.Worker",
            *("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.work_folder(number))),
            *("--cores", str(self._cores), "--memory", self._memory, self.master),
        )

    def work_folder(self, number: int) -> Path:
        return self.folder / f"work-{number}"

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and its executors, as when its machine goes."""
        kill_tree(self._processes[f"worker-{number}"])

    def lose_worker(self, number: int) -> None:
        """SIGKILL to a worker alone: its executors go on without it, as when its machine is cut off."""
        process = self._processes[f"worker-{number}"]
        process.kill()
        process.wait()

    def kill_master(self) -> None:
        kill_tree(self._processes["master"])

    def executors(self) -> list[Executor]:
        """Every executor that runs now."""
        running = []
        for number in range(self._count):
            worker = self._processes.get(f"worker-{number}")
            for process in process_tree(worker.pid) if worker is not None and worker.poll() is None else []:
                line = _command(process)
                if _EXECUTOR in line:
                    options = dict(pairwise(line))
                    running.append(Executor(process, options["--executor-id"], options["--app-id"], number))
        return running

    def destroy(self) -> None:
        """End all of it at once."""
        for process in self._processes.values():
            kill_tree(process)
        self._processes.clear()

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        home = Path(self._environment["SPARK_HOME"])
        secret = [f"-D{key}={value}" for key, value in self.settings.items() if key != "spark.authenticate.secret"]
        command: Sequence[str] = [
            str(self._java.binary),
            *("-cp", f"{home / 'jars'}/*", *_OPTIONS, *self._options, *secret),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
        ]
        environment = {**self._environment, **({"_SPARK_AUTH_SECRET": self._secret} if self._secret else {})}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _await_log(self, name: str, pattern: str) -> str:
        """Wait for a line in the process's log: the pattern's group, or the whole match."""
        log, deadline = self.folder / f"{name}.log", time.monotonic() + _START_SECONDS
        while True:
            text = log.read_text(errors="replace")
            if match := re.search(pattern, text):
                return match[1] if match.groups() else match[0]
            ended = self._processes[name].poll()
            if ended is not None or time.monotonic() > deadline:
                last = " | ".join(text.strip().splitlines()[-3:])
                raise TruckerError(f"Spark's {name} {'ended' if ended is not None else 'does not start'}: {last}")
            time.sleep(_POLL_SECONDS)


def _plain_environment(java: Java, added: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment as on another machine: of this process's variables only those that locate programs."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    home = Path(spec.submodule_search_locations[0])
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": scala_version(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **added,
    }


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""
