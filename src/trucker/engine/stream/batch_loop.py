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
    """Calls `apply` with the end of each batch that begins at `position`, until `stopping` is set; with `until` it
    ends there by itself. `each` is called before each batch, and every POLL_SECONDS while there is none. What the log
    or one of them raises ends it, too, and is its `error`.
    """

    def __init__(
        self,
        name: str,
        reader: Callable[[], LogReader],
        position: Callable[[], Lsn],
        apply: Callable[[Lsn], None],
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
            while not self._stopping.is_set():
                self._each()
                position = self._position()
                if self._until is None:
                    reader.wait(position, POLL_SECONDS)
                    self._gather(reader, position)
                end = reader.next_end(position, self._max_bytes, self._until)
                if end > position:
                    self._apply(end)
                elif self._until is not None:
                    return
        except TruckerError as error:
            self.error = error
        except Exception as error:
            self.error = error
            log.exception("batch failed unexpectedly")

    def _gather(self, reader: LogReader, position: Lsn) -> None:
        """Let more come, if the last batch was a large one and this is not yet."""
        wanted = min(GATHERED, self._max_bytes)
        deadline = time.monotonic() + (GATHER_SECONDS if self._busy else 0.0)
        end = reader.durable().commit_lsn
        while (size := reader.size(position, end)) < wanted and time.monotonic() < deadline:
            before, end = end, reader.wait(end, QUIET_SECONDS).commit_lsn
            if end == before:
                break
        self._busy = size >= BUSY
