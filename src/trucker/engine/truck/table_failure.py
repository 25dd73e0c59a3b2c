"""The failure of one table while the other tables of its truck go on.

It is set aside in one of two ways. Most failures are settled by copying the table again: the destination says "copying"
of it, and the change log is not kept for it. Where the user must decide how to go on (`TruckerError.needs_decision`)
it keeps its own position at the destination, and the change log is kept from there. Both are tried again by
themselves, with growing waits: nothing else tells that the cause is gone.
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
"""What fails so may be due to a change that the stream does not tell: NOT NULL dropped, a value added to an enum, rows
written anew that are not found as they were."""

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
    """When something that failed is due again. `began` is when the present try began, None between tries. Once `ended`
    nothing is tried again before the project is started anew."""

    waits: RetryWaits
    failures: int = 0
    began: float | None = None
    ended: bool = False
    _due: float = field(default=float("-inf"))

    def failed(self) -> None:
        """The present try has failed, or the first failure has happened."""
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
