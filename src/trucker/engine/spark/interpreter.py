"""Chooses the Python interpreter of tasks, for the driver's machine and for executors.

Spark has one setting for both: the Python that plans a query in the driver's JVM, and the Python of executors. On a
cluster these need not be the same: executors may have Python at another path, or in an archive that is unpacked in
their working folder. So the setting is a name that each process looks up, on its path or in its working folder, and the
driver's JVM finds a link to this Python.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trucker
from trucker.engine.spark.java import put

if TYPE_CHECKING:
    from trucker.engine.spark.application import Spark

WORKERS: Final[Mapping[str, str]] = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}
"""A Python worker uses one core and is forked: no thread pool, and few malloc arenas."""

_IMPORT_PATH: Final = "PYTHONPATH"
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EXECUTOR_PATH: Final = "spark.executorEnv.PATH"


def python_environment(python: str) -> dict[str, str]:
    """Workers of the driver's JVM run this Python and find this trucker, also where it is not installed."""
    source = str(Path(trucker.__file__).parents[1])
    paths = [source] if source not in site.getsitepackages() else []
    paths += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **{name: os.environ.get(name, value) for name, value in WORKERS.items()},
    }
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)} if paths else environment


def share_import_path(spark: Spark) -> None:
    """Let workers import what this program imports, its own folder included. They take the environment of the context
    when they start, so this comes before the first job."""
    environment = spark.sparkContext.environment
    paths = [entry for entry in environment.get(_IMPORT_PATH, "").split(os.pathsep) if entry]
    environment[_IMPORT_PATH] = os.pathsep.join(dict.fromkeys([*paths, *_program_path()]))


def _program_path() -> list[str]:
    """The folders of Python's path that a bare interpreter does not have."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    folders = [Path(entry).absolute() for entry in sys.path]
    return [
        str(folder)
        for folder in folders
        if folder.exists() and not folder.is_relative_to(standard) and str(folder) not in site.getsitepackages()
    ]


@dataclass(frozen=True, slots=True)
class Seats:
    """The environment of the driver's JVM and the settings of Spark by which each side finds its own Python."""

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def away(python: str, folder: Path, settings: Mapping[str, str]) -> Seats:
    """For executors that run `python`; its substitute for the driver's JVM is written below `folder`."""
    if python == sys.executable:
        return Seats()
    path = Path(python)
    if "/" in python and not path.is_absolute():  # below the folder that an executor runs in
        _stand_in(folder / path)
        return Seats({"TRUCKER_JVM_FOLDER": str(folder)})
    _stand_in(folder / path.name)
    driver_environment = {
        "PYSPARK_PYTHON": path.name,
        "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", _USUAL_PATH)]),
    }
    if "/" not in python:
        return Seats(driver_environment)
    executor_path = os.pathsep.join([str(path.parent), settings.get(_EXECUTOR_PATH, _USUAL_PATH)])
    return Seats(driver_environment, {_EXECUTOR_PATH: executor_path})


def _stand_in(program: Path) -> None:
    put(program, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', mode=0o700)
