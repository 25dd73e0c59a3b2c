"""The change log as a Spark streaming source.

An offset is `{"lsn": n}`, the end of a commit (I1). Spark runs the reader in a process of its own beside the
driver, one call at a time. `latestOffset` is a long poll on the log's durable end, so that a commit is seen within
a millisecond and an idle stream costs next to nothing. Admission control is by bytes, at least one whole
transaction; while much is coming, a batch waits a little for more of it.

The source gives no rows to speak of (how far the batch goes, once): no change travels through the JVM. The batch's
tasks are planned by `query` from the offsets and read the log themselves, which costs one Python hop less per batch
(46 ms against 64 ms from event to done) and lets trucks that catch up or copy run the same way.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from trucker.changelog.location import LogPlace
from trucker.changelog.reader import LogReader
from trucker.failpoint import reach
from trucker.lsn import Lsn

FORMAT = "trucker_log"
POLL_SECONDS = 1.0

# After a batch of BUSY bytes the next one waits for GATHERED bytes, as long as more keeps coming: what a batch costs is
# then shared by more rows, and more changes of one key become one.
BUSY = 2 << 20
GATHERED = 32 << 20
GATHER_SECONDS = 0.4
QUIET_SECONDS = 0.04

Offset = dict[str, int]


class ChangeLogSource(DataSource):
    """Options: `start` (an LSN as a number; the first batch begins after it), `max_bytes` of a batch.

    Which log it reads is part of the class (`log_source`): options are shown on Spark's pages, and the way to a log may
    need a secret (I10).
    """

    log: LogPlace
    called: str

    @classmethod
    def name(cls) -> str:
        return cls.called

    def schema(self) -> str:
        return "lsn bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        options = self.options
        return ChangeLogReader(self.log, int(options["start"]), int(options["max_bytes"]))


def log_source(log: LogPlace, source: str) -> type[ChangeLogSource]:
    """The data source of one log, under a name of its own.

    Projects may share a session, and call their sources alike: the name must be the log's, not the source's alone, or
    one project reads what the other has registered a moment ago.
    """
    own = hashlib.sha256(str(log).encode()).hexdigest()[:16]
    return type("ChangeLogSource", (ChangeLogSource,), {"log": log, "called": f"{FORMAT}_{source}_{own}"})


class ChangeLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Cheap to build and to pickle: the log is opened when it is first asked for."""

    def __init__(self, place: LogPlace, start: int, max_bytes: int) -> None:
        self._place = place
        self._start = start
        self._max_bytes = max_bytes
        self._until: Lsn | None = None
        self._busy = False
        self._reader: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"lsn": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._log.durable().commit_lsn

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        position = Lsn(start["lsn"])
        if self._until is None:
            self._log.wait(position, POLL_SECONDS)
            self._gather(position)
        end = self._log.next_end(position, self._max_bytes, self._until)
        if end > position:
            reach("batch.offset.before")
        return {"lsn": int(max(end, position))}

    def _gather(self, position: Lsn) -> None:
        """Let more come, if the last batch was a large one and this is not yet."""
        wanted = min(GATHERED, self._max_bytes)
        deadline = time.monotonic() + (GATHER_SECONDS if self._busy else 0.0)
        seen = self._log.durable().commit_lsn
        while (size := self._log.size(position, seen)) < wanted and time.monotonic() < deadline:
            before, seen = seen, self._log.wait(seen, QUIET_SECONDS).commit_lsn
            if seen == before:
                break
        self._busy = size >= BUSY

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {"lsn": int(self._log.durable().commit_lsn)}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [InputPartition(end["lsn"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)

    @property
    def _log(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self._place)
        return self._reader
