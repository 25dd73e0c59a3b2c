"""The entry point of a task on an executor: checks first that driver and executor run the same versions.

An executor must be able to unpickle what the driver pickles. So a task carries the driver's versions, and an executor
with other ones raises an error with a remedy. Imports only the standard library: a package that a worker lacks is
reported here, by name.
"""

from __future__ import annotations

import importlib
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

import trucker
from trucker.errors import EngineError

DIFFERENT: Final = "TRK514"
MISSING: Final = "TRK515"
NOT_SHARED: Final = "TRK516"

# Packages whose objects are pickled or sent as Arrow, and how many numbers of their versions have to be the same.
_ALIKE: Final = {"pyspark": 2, "pyarrow": 1, "numpy": 1, "pydantic": 1}
_NEEDED: Final = ("pyarrow", "numpy", "pydantic", "psycopg", "jinja2", "yaml")


class Value(Protocol):
    """Bytes that every task has: a broadcast of Spark's, or `Held`."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that are pickled with the function, with the interface of a broadcast variable."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Runtime:
    """A driver's versions. `marks` are files that it has written to folders that executors must see, too; `adapters`
    are the modules of the adapters in use that other packages provide."""

    python: str
    trucker: str
    modules: Mapping[str, str]
    marks: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


def runtime_here(*marks: Path, adapters: Sequence[str] = ()) -> Runtime:
    """The versions of this process."""
    modules = {name: version(name) for name in _ALIKE}
    return Runtime(platform.python_version(), _digest_here(), modules, tuple(map(str, marks)), tuple(adapters))


def run_task(
    driver: Runtime | None, held: Value, secrets: Sequence[str], _: int, sealed: Iterator[bytes]
) -> Iterator[Any]:
    """Run the parts of a Spark partition (`parts.run_parts`), after a check that this executor matches the driver.

    `driver` is None where the task runs in the driver's JVM.
    """
    check_here(driver)
    from trucker.engine.spark.parts import run_parts

    yield from run_parts(held.value, secrets, sealed)


def post_task(
    board: Any,
    job: int,
    driver: Runtime | None,
    held: Value,
    secrets: Sequence[str],
    part: int,
    sealed: Iterator[bytes],
) -> Iterator[Any]:
    """As `run_task`, but the outcome of the partition's one part is posted (`outcome_stream`) instead of returned."""
    for outcome in run_task(driver, held, secrets, part, sealed):
        board.add([(job, part, outcome)])
    return iter(())


def report_task(
    board: Any,
    job: int,
    report: Callable[[Any], Any],
    driver: Runtime | None,
    held: Value,
    secrets: Sequence[str],
    part: int,
    sealed: Iterator[bytes],
) -> Iterator[Any]:
    """As `run_task`, and the `report` of each result is posted as soon as the task is done, before the job is."""
    for outcome in run_task(driver, held, secrets, part, sealed):
        board.add([(job, part, report(outcome))])
        yield outcome


class Posts:
    """How Spark accumulates posts: in a list in a task, on a `Board` in the driver."""

    def zero(self, _: object) -> list[Any]:
        return []

    def addInPlace(self, posts: Any, more: Sequence[Any]) -> Any:  # noqa: N802 - Spark's name
        posts.extend(more)
        return posts


def probe(driver: Runtime | None, _: Iterator[int]) -> Iterator[int]:
    """A task that only checks its executor."""
    check_here(driver)
    return iter(())


def check_here(driver: Runtime | None) -> None:
    """Raise unless this process matches the driver. Checked once per driver and process."""
    if driver is not None and driver not in _checked:
        _check_modules(driver)
        _check_marks(driver)
        _checked.append(driver)


_checked: Final[list[Runtime]] = []


def _check_modules(driver: Runtime) -> None:
    where = f"{sys.executable} on {socket.gethostname()}"
    _same("Python", driver.python, platform.python_version(), 2, where)
    for name in (*_NEEDED, *driver.adapters):
        what = "the package of this adapter" if name in driver.adapters else "trucker's dependencies"
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise EngineError(
                f"the Python of an executor, {where}, cannot import {name}: {type(error).__name__}",
                remedy=f"install {what} there, or ship an environment (docs/howto/spark_cluster.md)",
                code=MISSING,
            ) from error
    for name, numbers in _ALIKE.items():
        _same(name, driver.modules[name], _version(name), numbers, where)
    if _digest_here() != driver.trucker:
        raise EngineError(
            f"an executor, {where}, runs another trucker ({trucker.__version__}, {Path(trucker.__file__).parent}) than"
            " the driver",
            remedy="remove trucker from spark.submit.pyFiles and from the workers' PYTHONPATH: trucker ships itself",
            code=DIFFERENT,
        )


def _same(what: str, driver_version: str, executor_version: str, numbers: int, where: str) -> None:
    if driver_version.split(".")[:numbers] != executor_version.split(".")[:numbers]:
        required = ".".join(driver_version.split(".")[:numbers])
        raise EngineError(
            f"an executor, {where}, has {what} {executor_version}; the driver has {driver_version}",
            remedy=f"install {what} {required} on both, or ship an environment (docs/howto/spark_cluster.md)",
            code=DIFFERENT,
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # as pyspark from Spark's own folder
        return str(getattr(importlib.import_module(name), "__version__", "0"))


def _check_marks(driver: Runtime) -> None:
    for mark in map(Path, driver.marks):
        if not mark.exists():
            raise EngineError(
                f"an executor on {socket.gethostname()} cannot read the driver's folder {mark.parent}",
                remedy="set `state` and `log.location` in trucker.yml to folders that all machines share at "
                "the same path",
                code=NOT_SHARED,
            )


@cache
def _digest_here() -> str:
    """The digest of the trucker that this process runs: from the name of its zip, else computed."""
    package = Path(trucker.__file__).parent
    if package.is_dir():
        return digest_of(package)
    _, _, rest = package.parent.name.partition("trucker-")
    return rest.partition("-")[0]


@cache
def digest_of(package: Path) -> str:
    """A digest of the sources, which differs between any two versions of trucker."""
    digest = sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
