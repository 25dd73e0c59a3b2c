"""The entry point of a task on an executor: checks first that driver and executor run the same versions.

What the driver pickles an executor must understand. So a task brings along what the driver is made of, and an executor
that is made of something else says so, with what to do about it. Imports nothing but the standard library: what is
missing on a worker is missed here, by name.
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

# What travels is pickled, or Arrow's: modules, and how many numbers of their versions have to be the same.
_ALIKE: Final = {"pyspark": 2, "pyarrow": 1, "numpy": 1, "pydantic": 1}
_NEEDED: Final = ("pyarrow", "numpy", "pydantic", "psycopg", "jinja2", "yaml")


class Value(Protocol):
    """Bytes that every task has: a broadcast of Spark's, or `Held`."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that travel with the function, as a broadcast's `value` travels beside it."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a driver is made of. `marks` are files that it has put into folders that executors must see, too; `adapters`
    are the modules of those adapters that it uses and that are not trucker's own."""

    python: str
    trucker: str
    modules: Mapping[str, str]
    marks: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


def made(*marks: Path, adapters: Sequence[str] = ()) -> Runtime:
    """What this process is made of."""
    modules = {name: version(name) for name in _ALIKE}
    return Runtime(platform.python_version(), _own_digest(), modules, tuple(map(str, marks)), tuple(adapters))


def run_task(
    driver: Runtime | None, held: Value, secrets: Sequence[str], _: int, sealed: Iterator[bytes]
) -> Iterator[Any]:
    """A Spark partition's worth of parts (`parts.run_parts`), once this executor has been found to fit.

    `driver` is None where the executor is the driver itself.
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
    """As `run_task`, and what came of the partition's one part is posted (`outcome_stream`) instead of given."""
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
    """How posts add up: a task has a list of them, the driver a board that takes them."""

    def zero(self, _: object) -> list[Any]:
        return []

    def addInPlace(self, there: Any, more: Sequence[Any]) -> Any:  # noqa: N802 - Spark's name
        there.extend(more)
        return there


def probe(driver: Runtime | None, _: Iterator[int]) -> Iterator[int]:
    """A task that does nothing but look."""
    check_here(driver)
    return iter(())


def check_here(driver: Runtime | None) -> None:
    """Raise unless this process can do the driver's work. What it found right it does not look at again."""
    if driver is not None and driver not in _right:
        _check_modules(driver)
        _check_marks(driver)
        _right.append(driver)


_right: Final[list[Runtime]] = []


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
    if _own_digest() != driver.trucker:
        raise EngineError(
            f"an executor, {where}, runs another trucker ({trucker.__version__}, {Path(trucker.__file__).parent}) than"
            " the driver",
            remedy="remove trucker from spark.submit.pyFiles and from the workers' PYTHONPATH: trucker ships itself",
            code=DIFFERENT,
        )


def _same(what: str, drivers: str, own: str, numbers: int, where: str) -> None:
    if drivers.split(".")[:numbers] != own.split(".")[:numbers]:
        wanted = ".".join(drivers.split(".")[:numbers])
        raise EngineError(
            f"an executor, {where}, has {what} {own}; the driver has {drivers}",
            remedy=f"install {what} {wanted} on both, or ship an environment (docs/howto/spark_cluster.md)",
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
def _own_digest() -> str:
    """The digest of the trucker that this process runs: told by the name of a zip that it came in, else made here."""
    package = Path(trucker.__file__).parent
    if package.is_dir():
        return digest_of(package)
    _, _, rest = package.parent.name.partition("trucker-")
    return rest.partition("-")[0]


@cache
def digest_of(package: Path) -> str:
    """What tells one trucker from another: its sources."""
    found = sha256()
    for file in sorted(package.rglob("*.py")):
        found.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]
