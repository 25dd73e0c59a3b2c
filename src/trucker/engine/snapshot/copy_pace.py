"""How much of a table an incremental copy reads at once."""

from __future__ import annotations

import threading
from typing import Final

from trucker.config.models import CopyConfig

FIRST_BYTES: Final = 2 << 20
LEAST_BYTES: Final = 64 << 10
LEAST_ROUND: Final = 1 << 20
"""Less at once would not be waited for less: a commit has a cost of its own."""

ROUND_BYTES: Final = 64 << 20
"""About the most that one commit of a copy brings."""

WAIT_SECONDS: Final = 0.03
"""About the longest that commits of other tables shall wait for one of a copy."""


class CopyPace:
    """How much is read at once: as much as takes a reader `chunk_seconds`, as much as other tables of the destination
    can wait for, and no faster than the limit of rows."""

    def __init__(self, limits: CopyConfig, cores: int) -> None:
        self._limits = limits
        self.readers = limits.parallel or cores
        self._round_bytes = FIRST_BYTES
        self.chunk_bytes = min(
            limits.chunk_bytes, LEAST_BYTES if limits.max_rows_per_second else FIRST_BYTES // self.readers
        )

    @property
    def chunks(self) -> int:
        """How many chunks a round has: one for each reader at most, which is all that a crash costs."""
        return max(1, min(self.readers, self._round_bytes // self.chunk_bytes))

    def learn(self, longest: float, rows: int, read: int, waited: float) -> None:
        """The chunks of a round have been read, the slowest in so many seconds; another commit `waited` for theirs."""
        patience = min(2.0, max(0.25, WAIT_SECONDS / waited)) if waited > 0 else 2.0
        self._round_bytes = int(min(ROUND_BYTES, max(LEAST_ROUND, self._round_bytes * patience)))
        factor = min(4.0, max(0.25, self._limits.chunk_seconds / longest)) if longest > 0 else 4.0
        most, least = self._limits.chunk_bytes, min(LEAST_BYTES, self._limits.chunk_bytes)
        size = min(float(most), self.chunk_bytes * factor, self._round_bytes / self.readers)
        if (limit := self._limits.max_rows_per_second) and rows:
            # A round of about a second: more at once would be a burst.
            size = min(size, limit * read / rows / self.readers)
        self.chunk_bytes = int(max(least, size))

    def rest(self, rows: int, took: float, stop: threading.Event) -> None:
        """Wait until so many rows may have been read."""
        if limit := self._limits.max_rows_per_second:
            stop.wait(max(0.0, rows / limit - took))
