"""What a batch is made of: trucks resolved to tables, and the parts that Spark's tasks work off.

Everything here pickles: the driver plans, executors work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from trucker.change import Lsn, TableId, TableSchema
from trucker.changelog.reader import BlockRef
from trucker.config.models import Connection, PostgresConnection
from trucker.errors import TruckerError
from trucker.postgres.snapshot import Chunk
from trucker.sinks.base import Batch, Receipt, Target, Workspace


@dataclass(frozen=True, slots=True)
class Table:
    """One input table of a truck: what is taken of it and where it goes.

    `only` empty means all columns but `excepted`; the key's columns are always taken.
    """

    source: TableId
    output: TableId
    key: tuple[str, ...]
    only: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()
    where: str | None = None

    def takes(self, column: str) -> bool:
        if column in self.key:
            return True
        return column in self.only if self.only else column not in self.excepted

    def target(self, truck: str, schema: TableSchema) -> Target:
        """The target for the table as `schema` describes it now."""
        columns = tuple(column for column in schema.columns if self.takes(column.name))
        return Target(truck, TableSchema(schema.table, columns, self.key), self.output)


@dataclass(frozen=True, slots=True)
class Truck:
    """A truck with its names and patterns resolved against the source."""

    name: str
    source: str
    destination: str
    tables: Mapping[TableId, Table]


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """How to build a destination's sink in any process."""

    connection: Connection
    workspace: Workspace


@dataclass(frozen=True, slots=True)
class Assignment:
    """One target's share of a batch: its changes whose commit is not below `after`."""

    destination: str
    target: Target
    after: Lsn


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What one task does of a batch of streamed changes.

    Every task reads all `blocks` and keeps the rows whose key falls to it (`index` of `count`); sinks that keep
    changes get the consecutive blocks `own` instead.
    """

    index: int
    count: int
    log: Path
    blocks: Sequence[BlockRef]
    own: range
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    assignments: Sequence[Assignment]


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One chunk of a table's snapshot, and everything it goes to."""

    index: int
    connection: PostgresConnection
    snapshot: str
    lsn: Lsn
    chunk: Chunk
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    assignments: Sequence[Assignment]


@dataclass(frozen=True, slots=True)
class Failure:
    """A truck's share of a part that could not be done, and why; of a copy, the table too."""

    truck: str
    error: TruckerError
    table: TableId | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task hands back: receipts by destination, and what failed."""

    receipts: Mapping[str, Sequence[Receipt]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()


def spread(blocks: Sequence[BlockRef], parallelism: int, part_bytes: int) -> int:
    """How many parts a batch is cut into: one when it is small, then one for every `part_bytes`.

    More parts than tasks run at a time are fine (they bound a task's memory, I9), a few more than the
    work needs are not: each one reads all blocks.
    """
    total = sum(block.bytes for block in blocks)
    if total <= part_bytes // 4:
        return 1
    return max(min(parallelism, -(-total // (part_bytes // 4))), -(-total // part_bytes))


def consecutive(blocks: Sequence[BlockRef], count: int) -> list[range]:
    """`count` consecutive ranges over the blocks, of about equal bytes."""
    total = sum(block.bytes for block in blocks) or 1
    bounds, done = [0], 0
    for position, block in enumerate(blocks):
        done += block.bytes
        while len(bounds) < count and done * count >= total * len(bounds):
            bounds.append(position + 1)
    bounds += [len(blocks)] * (count + 1 - len(bounds))
    return [range(first, last) for first, last in pairwise(bounds)]
