"""The main lane's loop: waits for commits in the change log, and has them applied a batch at a time.

A wait is a long poll on the log's durable end: a commit is seen within a millisecond, and an idle source costs next to
nothing. A batch is limited by its bytes, but has at least one whole transaction (I1); while much is coming, it waits a
little for more of it.

A thread of the driver, and no Structured Streaming query: decision 0026 has the figures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from trucker.changelog.durable_end import EndWatch
from trucker.changelog.format.durable import Durable
from trucker.changelog.format.log_range import LogRange
from trucker.changelog.reader import LogReader
from trucker.errors import TruckerError
from trucker.lsn import Lsn

log = logging.getLogger("trucker.query")

POLL_SECONDS: Final = 0.2
"""How long a stop may have to wait for an idle loop."""

# After a batch of BUSY bytes the next one waits for GATHERED bytes, as long as more keeps coming: what a batch costs is
# then shared by more rows, and more changes of one key become one.
BUSY: Final = 2 << 20
GATHERED: Final = 32 << 20
GATHER_SECONDS: Final = 0.4
QUIET_SECONDS: Final = 0.04


class BatchLoop:
    """Calls `apply` with each range that begins at `position`, until `stopping` is set; with `until` it ends there by
    itself. `each` is called before each batch, and every POLL_SECONDS while there is none. What the log
    or one of them raises ends it, too, and is its `error`.
    """

    def __init__(
        self,
        name: str,
        reader: Callable[[], LogReader],
        position: Callable[[], Lsn],
        apply: Callable[[LogRange], None],
        each: Callable[[], None],
        *,
        max_bytes: int,
        until: Lsn | None,
        stopping: threading.Event,
    ) -> None:
        self.error: Exception | None = None
        self._reader = reader
        self._position = position
        self._apply = apply
        self._each = each
        self._max_bytes = max_bytes
        self._until = until
        self._stopping = stopping
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=f"batches {name}", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end, after `stopping` was set."""
        self._thread.join()

    def _run(self) -> None:
        try:
            reader = self._reader()
            with reader.watch() as watch:
                while not self._stopping.is_set():
                    self._each()
                    if not self._take(reader, watch) and self._until is not None:
                        return
        except TruckerError as error:
            self.error = error
        except Exception as error:
            self.error = error
            log.exception("batch failed unexpectedly")

    def _take(self, reader: LogReader, watch: EndWatch) -> bool:
        """Wait for the next range, and have it applied; whether there was one."""
        position = self._position()
        durable = reader.wait(position, POLL_SECONDS, watch) if self._until is None else None
        if durable is not None and self._busy:
            durable = self._gather(reader, watch, position, durable)
        batch = reader.next_range(position, self._max_bytes, self._until, durable)
        self._busy = batch.bytes >= BUSY
        if batch.end <= position:
            return False
        self._apply(batch)
        return True

    def _gather(self, reader: LogReader, watch: EndWatch, position: Lsn, durable: Durable) -> Durable:
        """Let more come after a large batch, until there is another."""
        wanted = min(GATHERED, self._max_bytes)
        deadline = time.monotonic() + GATHER_SECONDS
        while time.monotonic() < deadline:
            available = reader.next_range(position, wanted, durable=durable)
            if available.end < durable.commit_lsn or available.bytes >= wanted:
                break
            before, durable = durable, reader.wait(durable.commit_lsn, QUIET_SECONDS, watch)
            if durable.commit_lsn == before.commit_lsn:
                break
        return durable
