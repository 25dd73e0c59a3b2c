"""What driver and tasks of a batch exchange: their work and its outcome. All of it is pickled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trucker.changelog.format.reference import BlockRef
from trucker.changelog.reader import LogReader
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.spark_sql.spark_plan import SpooledRows
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.sinks.batch import CARRIED, Batch, Receipt
from trucker.slow_sql import SlowStatement
from trucker.source.base import Source
from trucker.source.snapshot import SnapshotChunk
from trucker.table import TableId


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What all parts of a batch of streamed changes share; sent once, not with each part.

    `log` is the driver's reader of the change log; a task in another process gets one of its own. `room` is how many
    bytes the receipt of one part for one target may carry. `source` is where SQL of trucks reads, `folder` where rows
    wait for Spark.
    """

    log: LogReader
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    assignments: Sequence[Assignment]
    room: int = CARRIED
    source: Source | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What one task does of a batch: consecutive pieces of consecutive blocks, one piece after the other.

    Pieces are numbered through the batch, in order; `index` is the number of the part's first one.
    """

    index: int
    pieces: Sequence[Sequence[BlockRef]]


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """What all chunks of a snapshot share; `room` and `folder` as above. Chunks with snapshots of their own are read
    for a lane at `lsn`; `log` has what the stream brings of them."""

    source: Source
    snapshot: str
    lsn: Lsn
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    room: int = CARRIED
    folder: Path | None = None
    log: LogReader | None = None


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One chunk of a table's snapshot, and everything it goes to."""

    index: int
    chunk: SnapshotChunk
    assignments: Sequence[Assignment]


CopyShare = tuple[CopyPart, ...]
"""Chunks that one task copies one after the other, each by itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A truck's share of a part that could not be done, and why; of a copy, the table too."""

    truck: str
    error: TruckerError
    table: TableId | None = None


@dataclass(frozen=True, slots=True)
class Copied:
    """A chunk that a task has copied: the part's number, and the rows written for each truck that has it.

    When it began and ended is given in seconds before the task's end: clocks of several machines may differ.
    """

    part: int
    rows: Mapping[str, int]
    began_ago: float
    ended_ago: float


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows of one part of an assignment that wait for Spark SQL; it writes them as `part`."""

    assignment: Assignment
    part: int
    rows: SpooledRows


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task: receipts by destination, rows that wait for Spark SQL, failures, slow statements.

    `read` counts the changes that were folded, `left` the rows of their net change. `copied` are the chunks of a copy,
    `truncated` the tables with a truncate among the changes. `reselected`: unsent values were read at the source.
    """

    receipts: Mapping[str, Sequence[Receipt]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    waiting: Sequence[WaitingRows] = ()
    slow: Sequence[SlowStatement] = ()
    read: int = 0
    left: int = 0
    copied: Sequence[Copied] = ()
    truncated: frozenset[TableId] = frozenset()
    reselected: bool = False


def collect(outcomes: Iterable[Outcome]) -> tuple[dict[str, list[Receipt]], dict[str, TruckerError]]:
    """All receipts by destination, and the error of each truck that failed: a permanent one rather than a transient."""
    receipts: dict[str, list[Receipt]] = defaultdict(list)
    failures: dict[str, TruckerError] = {}
    for outcome in outcomes:
        for destination, part_receipts in outcome.receipts.items():
            receipts[destination] += part_receipts
        for failure in outcome.failures:
            if failure.truck not in failures or failures[failure.truck].transient:
                failures[failure.truck] = failure.error
    return receipts, failures
