"""The failure of one table while the other tables of its truck go on.

It is set aside in one of two ways. Most failures are resolved by copying the table again: the destination records it as
"copying", and the change log is not kept for it. Where the user must decide how to go on
(`TruckerError.needs_decision`), or its rows are never copied (`copy: none`), it keeps a separate position at the
destination, and the change log is kept from there.
Both are retried with growing waits: there is no other way to learn that the cause is gone.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase, TableState

BEFORE_COPY = TableState(Phase.COPYING, Lsn(0))
"""The state of a table that is to be copied."""

UNTOLD = frozenset({"TRK405", "TRK406", "TRK411", "TRK440", "TRK441"})
"""Errors whose cause may be a change that the stream does not report: NOT NULL dropped, a value added to an enum, rows
that were rewritten and are not found with their old values."""

REST_FACTOR = 10
"""After a try comes a wait of at least this many times its duration: a large table is not copied without end."""


@dataclass(frozen=True, slots=True)
class RetryWaits:
    """The seconds to wait before what has failed is tried again: the first wait, doubled each time up to `longest`."""

    first: float = 60.0
    longest: float = 3600.0

    def before(self, failures: int, took: float = 0.0) -> float:
        """The wait after so many failures in a row, of which the last took `took` seconds."""
        scheduled = min(self.first * 2.0 ** min(failures - 1, 30), self.longest)
        return max(scheduled * random.uniform(0.8, 1.2), took * REST_FACTOR)


@dataclass(slots=True)
class Retry:
    """When something that failed is due again. `began` is when the current try began, None between tries. Once `ended`,
    there is no further try before the next start of the project."""

    waits: RetryWaits
    failures: int = 0
    began: float | None = None
    ended: bool = False
    _due: float = field(default=float("-inf"))

    def failed(self) -> None:
        """The current try has failed, or the first failure has happened."""
        now = time.monotonic()
        self.failures += 1
        self._due = now + self.waits.before(self.failures, now - self.began if self.began is not None else 0.0)
        self.began = None

    def begin(self) -> None:
        self.began = time.monotonic()

    def succeeded(self) -> None:
        self.failures, self.began = 0, None

    @property
    def due(self) -> bool:
        return not self.ended and self.began is None and time.monotonic() >= self._due


@dataclass(slots=True)
class TableFailure:
    """Why a table was set aside, since when, and the position up to which the destination has its changes.

    `held` says that it goes on from that position; otherwise it is copied again.
    """

    error: TruckerError
    since: float
    position: Lsn
    held: bool
    retry: Retry
