"""What a batch is made of: trucks resolved to tables, and the parts that Spark's tasks work off.

Everything here pickles: the driver plans, executors work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Final

from trucker.adapters.postgres import PostgresConnection
from trucker.change import Changes, Column, Lsn, Partitions, SchemaChanges, TableId, TableSchema
from trucker.changelog.location import LogPlace
from trucker.changelog.reader import BlockRef
from trucker.config.adapter import Component, Connection
from trucker.config.models import TruckConfig
from trucker.config.sql_files import OUTPUT
from trucker.engine.transform.fold import Fold
from trucker.engine.transform.rules import RuleSet
from trucker.engine.transform.spark_sql.spark_plan import SparkPlan, Spooled
from trucker.errors import TruckerError
from trucker.postgres.catalog import Connection as SourceConnection
from trucker.postgres.snapshot import Chunk
from trucker.postgres.source_query import SourceQuery, run_query
from trucker.rows import Rows
from trucker.sinks.base import CARRIED, Batch, Receipt, Target, Workspace
from trucker.slow_sql import SlowQueries, Told
from trucker.types import Unfit

LEAST_PART: Final = 4 << 20
"""Changes of fewer bytes are not worth a task of their own."""

RECEIPTS: Final = 32 << 20
"""The most bytes that the receipts of a batch bring to the driver, through Spark's JVM."""

FOLDS: Final = 0.5
"""Where more of a part's changes are left than this share, it is not worth while to look for more that fold."""

PIECES: Final = 8
"""The most pieces that one task works off: a large transaction is for several tasks however much it folds."""

CHUNK_WEIGHT: Final = 128 << 10
"""As many bytes could be copied in the time that a chunk takes beside its bytes."""

Renames = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""The columns' names in a shape of the stream, and the names to read them by."""

OwnShapes = Mapping[tuple[Column, ...], TableSchema]
"""A shape's columns as the stream tells them, and the same with what the catalogue knows of them."""


@dataclass(frozen=True, slots=True)
class Table:
    """One input table of a truck: what is taken of it and where it goes.

    `only` empty means all columns but `excepted`; the key's columns are always taken. `named` says that the truck names
    the table; otherwise a pattern chose it. `key` has the names of when the run began,
    `key_numbers` hold for life.
    """

    source: TableId
    output: TableId
    key: tuple[str, ...]
    only: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()
    where: str | None = None
    unfit: tuple[tuple[str, Unfit], ...] = ()
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    partitions: Partitions = Partitions.FOLLOW
    named: bool = True
    key_numbers: tuple[int, ...] = ()

    def takes(self, column: str) -> bool:
        return column in self.key or self.chooses(column)

    def chooses(self, column: str) -> bool:
        """Whether the truck takes a column of this name that is not of the key."""
        return column in self.only if self.only else column not in self.excepted

    def key_by(self, names: Mapping[int, str]) -> tuple[str, ...]:
        """The key under the names that its columns have by number; the name of old for one that is not there."""
        return tuple(names.get(number, name) for number, name in zip(self.key_numbers, self.key, strict=True))

    def target(self, truck: str, schema: TableSchema) -> Target:
        """The target for the table as `schema` describes it now."""
        key = frozenset(schema.key)
        columns = tuple(c for c in schema.columns if c.name in key or self.chooses(c.name))
        names = {column.name for column in columns}
        unfit = tuple(each for each in self.unfit if each[0] in names)
        source = TableSchema(schema.table, columns, schema.key)
        return Target(truck, source, self.output, unfit, self.schema_changes)


@dataclass(frozen=True, slots=True)
class Truck:
    """A truck with its names and patterns resolved against the source.

    `dead_letters` is how many failing rows it may set aside; None where the first one stops it. `config` is there where
    the truck does more than replicate: it has rules or SQL. `by_table` says that a table which fails is to be set aside
    while the others go on.
    """

    name: str
    source: str
    destination: str
    tables: Mapping[TableId, Table]
    dead_letters: int | None = None
    config: TruckConfig | None = None
    by_table: bool = False

    @property
    def fails_by_table(self) -> bool:
        """Whether a table that fails is set aside alone: no SQL, and no order across tables, needs it."""
        return self.by_table and len(self.tables) > 1 and not self.in_order

    @property
    def repeatable(self) -> bool:
        """Whether a table can be copied again without more ado: what is there of it is known to be its rows."""
        return self.config is None or not (self.config.file(OUTPUT) or self.shares)

    @property
    def in_order(self) -> bool:
        """Whether the order of changes across its tables, or which of them one transaction made, is seen in what it
        writes: all of them must then come in one stream."""
        config = self.config
        if config is None:
            return False
        return self.shares or bool(config.file(OUTPUT)) or config.compact == "none" or config.batch == "transaction"

    @property
    def shares(self) -> bool:
        """Whether several of its tables go into one."""
        return len({table.output for table in self.tables.values()}) < len(self.tables)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """How to build a destination's sink in any process. `component` is where its class is, for executors."""

    connection: Connection
    workspace: Workspace
    component: Component | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a table's changes become the rows of a target, for a truck that does more than replicate.

    `reads` is the table as it is read. Where there is SQL, `relation` has the columns of the rows that the first of it
    gets; with `past` deletes do not go through it. `by_transaction` ends runs with each transaction. `every` says that
    the destination keeps every change.
    """

    reads: TableSchema
    fold: Fold = Fold.NET
    rules: RuleSet | None = None
    relation: tuple[Column, ...] = ()
    query: SourceQuery | None = None
    spark: SparkPlan | None = None
    past: bool = False
    every: bool = False
    by_transaction: bool = False
    ignores_truncate: bool = False
    rows_max: int = 1_000_000
    slow: SlowQueries | None = None

    def ruled(self, changes: Changes) -> Changes:
        """The changes as the rules leave them."""
        return self.rules.apply(changes) if self.rules else changes

    def ask(self, session: SourceConnection, rows: Rows) -> Rows:
        """What input.sql gives for the rows."""
        assert self.query is not None
        return run_query(session, self.query, rows, rows_max=self.rows_max, slow=self.slow)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One target's share of a batch: its changes whose commit is not below `after`.

    `renames` has the names to read a shape's columns by, where the target's are not the stream's. `own` are the shapes
    as the stream tells them, and what to make of each, where every change is to stay in its own; otherwise all are
    brought into the target's. With a `recipe` the target's rows are made by it.
    """

    destination: str
    target: Target
    after: Lsn
    renames: Renames = ()
    own: OwnShapes = field(default_factory=dict)
    recipe: Recipe | None = None

    @property
    def reads(self) -> TableSchema:
        """The table as its changes are read."""
        return self.recipe.reads if self.recipe else self.target.source


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What all parts of a batch of streamed changes share; it travels once, however many they are.

    `room` is how many bytes the receipt of one part for one target may carry. `source` is where SQL of trucks reads,
    `folder` where rows wait for Spark.
    """

    log: LogPlace
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    assignments: Sequence[Assignment]
    room: int = CARRIED
    source: PostgresConnection | None = None
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
    """What all chunks of a snapshot share; `room` and `folder` as above."""

    connection: PostgresConnection
    snapshot: str
    lsn: Lsn
    batches: Mapping[str, Batch]
    sinks: Mapping[str, SinkSpec]
    room: int = CARRIED
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One chunk of a table's snapshot, and everything it goes to."""

    index: int
    chunk: Chunk
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

    When it began and ended is told in seconds before the task's end: clocks of several machines may differ.
    """

    part: int
    rows: Mapping[str, int]
    began_ago: float
    ended_ago: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one part of an assignment that wait for Spark SQL; it writes them as `part`."""

    assignment: Assignment
    part: int
    rows: Spooled


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task hands back: receipts by destination, what is left for Spark SQL, what failed, what was slow.

    `read` and `left` are the changes of which only the net counts, and how many that was. `copied` are a copy's chunks,
    `truncated` the tables with a truncate among the changes.
    """

    receipts: Mapping[str, Sequence[Receipt]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    waiting: Sequence[Waiting] = ()
    slow: Sequence[Told] = ()
    read: int = 0
    left: int = 0
    copied: Sequence[Copied] = ()
    truncated: frozenset[TableId] = frozenset()


def tell_slow(outcomes: Iterable[Outcome]) -> None:
    """Into the log that people read, with what took long."""
    for told in (told for outcome in outcomes for told in outcome.slow):
        told.log()


def collect(outcomes: Iterable[Outcome]) -> tuple[dict[str, list[Receipt]], dict[str, TruckerError]]:
    """All receipts by destination, and why trucks have failed: a permanent reason says more than a passing one."""
    receipts: dict[str, list[Receipt]] = defaultdict(list)
    failures: dict[str, TruckerError] = {}
    for outcome in outcomes:
        for destination, kept in outcome.receipts.items():
            receipts[destination] += kept
        for failure in outcome.failures:
            if failure.truck not in failures or failures[failure.truck].transient:
                failures[failure.truck] = failure.error
    return receipts, failures


def consecutive(blocks: Sequence[BlockRef], part_bytes: int, cores: int = 1) -> list[StreamPart]:
    """The blocks cut into parts of one piece and about equal bytes, none larger than `part_bytes` and half a block.

    That bounds a task's memory (I9), inside a large transaction as well: parts are applied in their order. Where there
    is enough for it, every one of the `cores` has a part.
    """
    total = sum(block.bytes for block in blocks)
    share = total / max(1, -(-total // part_bytes), min(cores, total // LEAST_PART))
    cuts, done = [0], 0
    for position, block in enumerate(blocks):
        if done and done + block.bytes / 2 > share:
            cuts.append(position)
            done = 0
        done += block.bytes
    bounds = pairwise([*cuts, len(blocks)])
    return [StreamPart(index, (blocks[first:last],)) for index, (first, last) in enumerate(bounds)]


def joined(parts: Sequence[StreamPart], left: float) -> list[StreamPart]:
    """Fewer parts, of more pieces, where of the changes of a part only the share `left` is left when they are folded:
    changes of the same keys then meet in one part more often, and the destination gets fewer rows.

    Memory stays that of a piece and little more (`net`).
    """
    if left > FOLDS or len(parts) < 2:
        return list(parts)
    tasks = max(1, ceil(len(parts) * left), ceil(len(parts) / PIECES))
    groups = [parts[len(parts) * task // tasks : len(parts) * (task + 1) // tasks] for task in range(tasks)]
    return [StreamPart(own[0].index, tuple(piece for part in own for piece in part.pieces)) for own in groups]


def copy_shares(parts: Sequence[CopyPart], tasks: int) -> list[CopyShare]:
    """Consecutive chunks for so many tasks at the most, alike in what they cost: their bytes, and something for each
    chunk whatever its size."""
    weights = [part.chunk.bytes + CHUNK_WEIGHT for part in parts]
    whole, done = sum(weights), 0
    found: dict[int, list[CopyPart]] = {}
    for part, weight in zip(parts, weights, strict=True):
        found.setdefault((2 * done + weight) * tasks // (2 * whole), []).append(part)
        done += weight
    return [tuple(own) for own in found.values()]


def room(parts: int, targets: int) -> int:
    """How much one receipt may carry, so that all of a batch's together stay within `RECEIPTS` (I9)."""
    return min(CARRIED, RECEIPTS // max(1, parts * targets))
