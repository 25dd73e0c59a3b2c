"""The progress of copies: chunks, rows and bytes of each table, counted as tasks finish."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

from trucker.engine.spark.job import Reporting
from trucker.engine.task.payload import Copied, CopyPart, Outcome
from trucker.engine.truck.truck_run import TruckRun
from trucker.observe.status import CopyProgress
from trucker.sinks.target import TruckTable
from trucker.table import TableId

SHOW_SECONDS = 0.5


@dataclass(slots=True)
class _CopyTally:
    """One table of one truck. Times are of the driver's monotonic clock."""

    chunks: int = 0
    bytes: int = 0
    done: int = 0
    rows: int = 0
    bytes_done: int = 0
    began: float | None = None
    ended: float = 0.0

    def seconds(self, now: float) -> float:
        if self.began is None:
            return 0.0
        return max(0.0, (self.ended if self.done >= self.chunks else now) - self.began)


class CopyWatch:
    """Keeps the progress that `runs` show up to date while the parts are copied. `clock` gives seconds."""

    def __init__(
        self, parts: Sequence[CopyPart], runs: Mapping[str, TruckRun], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._parts = {part.index: part for part in parts}
        self._runs = runs
        self._clock = clock
        self._tallies: dict[TruckTable, _CopyTally] = {}
        self._counted: set[int] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, name="copy watch", daemon=True)
        for part in parts:
            for assignment in part.assignments:
                truck_table = (assignment.target.truck, assignment.target.source.table)
                tally = self._tallies.setdefault(truck_table, _CopyTally())
                tally.chunks += 1
                tally.bytes += part.chunk.bytes

    def __enter__(self) -> Self:
        self._show(self._tallies)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def reporting(self) -> Reporting[Outcome, Sequence[Copied]]:
        """For a job: its tasks report the chunks that they have copied, which are counted here."""
        return attrgetter("copied"), self.count

    def count(self, copied: Iterable[Copied]) -> None:
        """Chunks that are done. May be called from any thread; a chunk that was counted before is not counted again."""
        now = self._clock()
        with self._lock:
            for each in copied:
                if each.part in self._counted:
                    continue
                self._counted.add(each.part)
                part = self._parts[each.part]
                for truck, rows in each.rows.items():
                    tally = self._tallies[truck, part.chunk.schema.table]
                    tally.done += 1
                    tally.rows += rows
                    tally.bytes_done += part.chunk.bytes
                    began = now - each.began_ago
                    tally.began = began if tally.began is None else min(tally.began, began)
                    tally.ended = max(tally.ended, now - each.ended_ago)
        self._show(self._tallies)

    def progress(self, truck_table: TruckTable) -> CopyProgress:
        """How far one table is; nothing of nothing where it has no chunks."""
        tally = self._tallies.get(truck_table, _CopyTally())
        seconds = round(tally.seconds(self._clock()), 3)
        return CopyProgress(
            str(truck_table[1]), tally.done, tally.chunks, tally.rows, tally.bytes_done, tally.bytes, seconds
        )

    def _keep_showing(self) -> None:
        """Time passes for those that are under way, whether a chunk is done or not."""
        while not self._over.wait(SHOW_SECONDS):
            self._show([truck_table for truck_table, tally in self._tallies.items() if 0 < tally.done < tally.chunks])

    def _show(self, truck_tables: Iterable[TruckTable]) -> None:
        with self._lock:
            shown: dict[str, dict[TableId, CopyProgress]] = defaultdict(dict)
            for truck, table in truck_tables:
                shown[truck][table] = self.progress((truck, table))
            for truck, progress in shown.items():
                if truck in self._runs:
                    self._runs[truck].show_progress(progress)
