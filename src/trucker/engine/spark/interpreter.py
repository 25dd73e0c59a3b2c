"""Chooses the Python interpreter of tasks, for the driver's machine and for executors.

Spark has one name of a program for both: what plans a query in the driver's JVM, and what works on executors. On a
cluster they need not be the same program: executors may have one at another path, or one that was sent along and lies
in the folder that they run in. So the name is one that is looked for, on the path or in the folder of the process
that starts it, and in the driver's JVM it is this Python that is found.
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
"""Python workers work on one core each, and are forked: no pool of threads, few heaps."""

_IMPORT_PATH: Final = "PYTHONPATH"
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EXECUTOR_PATH: Final = "spark.executorEnv.PATH"


def python_environment(python: str) -> dict[str, str]:
    """Workers of the driver's JVM run this Python and find this trucker, also where it is not installed."""
    source = str(Path(trucker.__file__).parents[1])
    paths = [source] if source not in site.getsitepackages() else []
    paths += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    found = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **{name: os.environ.get(name, value) for name, value in WORKERS.items()},
    }
    return {**found, "PYTHONPATH": os.pathsep.join(paths)} if paths else found


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
    """What has each side find its own Python: the environment of the driver's JVM, and Spark's settings."""

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def away(python: str, folder: Path, settings: Mapping[str, str]) -> Seats:
    """For executors that run `python`; below `folder` is what stands in for it here."""
    if python == sys.executable:
        return Seats()
    path = Path(python)
    if "/" in python and not path.is_absolute():  # below the folder that an executor runs in
        _stand_in(folder / path)
        return Seats({"TRUCKER_JVM_FOLDER": str(folder)})
    _stand_in(folder / path.name)
    here = {"PYSPARK_PYTHON": path.name, "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", _USUAL_PATH)])}
    if "/" not in python:
        return Seats(here)
    there = os.pathsep.join([str(path.parent), settings.get(_EXECUTOR_PATH, _USUAL_PATH)])
    return Seats(here, {_EXECUTOR_PATH: there})


def _stand_in(program: Path) -> None:
    put(program, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', mode=0o700)
