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
    """One statement's doings: `rows` in, and `given` out where it gives any."""

    rows: int
    given: int | None = None
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """A statement that took long. Pickles: executors hand them to the driver, which has the log that people read."""

    truck: str
    file: str
    rows: int
    given: int | None
    milliseconds: int

    def log(self) -> None:
        facts: dict[str, object] = {"truck": self.truck, "file": self.file, "rows": self.rows}
        facts |= {} if self.given is None else {"rows_out": self.given}
        log.warning("slow query", extra={**facts, "milliseconds": self.milliseconds})


_kept: ContextVar[list[SlowStatement] | None] = ContextVar("kept", default=None)


@contextmanager
def kept() -> Iterator[list[SlowStatement]]:
    """What is slow inside is kept instead of logged."""
    told: list[SlowStatement] = []
    token = _kept.set(told)
    try:
        yield told
    finally:
        _kept.reset(token)


@dataclass(frozen=True, slots=True)
class SlowQueries:
    """Whose statements they are, and from how many milliseconds on they are slow; 0 tells all. Pickles."""

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
                self._tell(file, timing)

    def _tell(self, file: str, timing: Timing) -> None:
        told = SlowStatement(self.truck, file, timing.rows, timing.given, round(timing.milliseconds))
        keeping = _kept.get()
        if keeping is None:
            told.log()
        else:
            keeping.append(told)
