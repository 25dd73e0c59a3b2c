"""Logs slow SQL: truck, file, number of rows and time; never data (I10)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

log = logging.getLogger("trucker.slow")


@dataclass(slots=True)
class Timing:
    """One statement: `rows` is the number of its input rows, `given` that of its result where it has one."""

    rows: int
    given: int | None = None
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """A statement that took long. Pickled: executors send them to the driver, which logs them."""

    truck: str
    file: str
    rows: int
    given: int | None
    milliseconds: int

    def log(self) -> None:
        facts: dict[str, object] = {"truck": self.truck, "file": self.file, "rows": self.rows}
        facts |= {} if self.given is None else {"rows_out": self.given}
        log.warning("slow query", extra={**facts, "milliseconds": self.milliseconds})


_collector: ContextVar[list[SlowStatement] | None] = ContextVar("collector", default=None)


@contextmanager
def collected() -> Iterator[list[SlowStatement]]:
    """Slow statements inside are collected instead of logged."""
    statements: list[SlowStatement] = []
    token = _collector.set(statements)
    try:
        yield statements
    finally:
        _collector.reset(token)


@dataclass(frozen=True, slots=True)
class SlowQueries:
    """The truck of the statements, and from how many milliseconds on they are slow; 0 logs all. Pickled."""

    truck: str
    threshold_ms: int

    @contextmanager
    def watch(self, file: str, rows: int) -> Iterator[Timing]:
        """Run a statement of a file inside; a failed one is logged like any other."""
        timing = Timing(rows)
        began = time.perf_counter()
        try:
            yield timing
        finally:
            timing.milliseconds = (time.perf_counter() - began) * 1000
            if timing.milliseconds >= self.threshold_ms:
                self._report(file, timing)

    def _report(self, file: str, timing: Timing) -> None:
        statement = SlowStatement(self.truck, file, timing.rows, timing.given, round(timing.milliseconds))
        collector = _collector.get()
        if collector is None:
            statement.log()
        else:
            collector.append(statement)
