"""The contract every sink keeps.

The framework owns batching, retries, reconnection, order and metrics. A sink has at most eight methods:

    open()                      driver    connect, reconcile what a crash left, return what is stored there
    prepare(target)             driver    create or widen the destination table; may be repeated
    write(work, changes)        executor  stage one part of a batch; may be repeated, for the same work or in vain
    commit(batch, receipts)     driver    make the batch visible and move the positions, as one; idempotent
    discard(batch)              driver    remove what was staged for a batch that will not be committed; optional
    changed_tables()            driver    name the tables that are no longer the ones it has filled; optional
    accept_tables(slots)        driver    take these tables as they are now; optional
    close()                     both      give back what is held; may be called on a sink never opened

Order and repetition. `open` comes first; it is called again on the same sink when the outcome of a commit is not
known, and then reports what is stored now. `write` runs in other processes, on other machines perhaps, on a sink built
from the same connection that was never opened. Of all the receipts of one `(batch, target, part)` exactly one reaches
`commit`, so what a repeated `write` staged twice must not show. Of the next range `write` may stage parts while this
one is committed: a commit leaves them alone. One thread at a time uses a sink.
After `commit` returns, the data is durable and every later `open`, in any process, reports the new positions (I3).
A `commit` of a batch whose positions are stored already changes nothing (I4); `sinks.ledger` decides that for all.

What a batch holds. A target's parts are sets of keys: no key is in two of them. The values of one part come in order,
and a later one may touch a key of an earlier one; each is a net change (`engine.compact`), applied as: truncate;
deletes; key-moving updates as a set, from the rows before the value; the rest. A truncate empties the table once,
before all parts, and voids what its own part held before it: every part that had anything before it has it, too.
An update's unchanged cells stay as they are at the destination (I7); a row that should have them and is not there is
an error, not a row with NULLs (but see `Target.awaits_rows`). In a table without key a delete removes exactly one of
equal rows. The changes' columns may be fewer than the target's (older than an ADD COLUMN: an insert takes
`missing_value`) or more (one dropped since).

Snapshots use the same methods. Committing a table's entry into COPYING refuses a table that holds rows trucker did
not put there. `write` then takes the copied rows, and the commit that moves the table on to STREAMING or CATCHING_UP
makes the copy count (I6): from then on the table holds them and no others. Until then readers see what an earlier copy
and the changes after it brought (`Copy.whole`); of one that was never finished nothing need stay. All of them carry the
same `Batch.snapshot`; once another attempt has begun, an older one can neither write nor commit.

SQL. A target's `statement` is run by `commit`, over the rows that `write` staged, part by part and run by run, in the
transaction that stores the position; `prepare` checks it and runs none of it. A copy's rows wait for the commit that
makes the copy count, and no table is looked at or emptied for them (`sinks.output_sql`). Of a `shared` target a copy
adds to what other tables of the truck brought, by key; where it begins is decided by `ledger`, and a truncate of one of
them is refused.

Other people's DDL. A table that was filled and has been dropped since, or made again, or has lost a column, is neither
made again nor widened: `prepare` and `commit` raise for it (`sinks.table_identity` has the rules and the error). One
that is in COPYING may be made: all of its rows come again.

Failures. `SinkUnavailable` means "the same again later": the framework backs off and repeats the batch. Any other
`SinkError` stops the truck (I8). `commit` raises `TruckFailed` when it can tell whose fault it was, having
written nothing; the framework stops that truck and commits the others. A row that is refused for what is in it
is a `DataError` that names the row's key; of a truck in `Batch.dead_letters` it becomes a letter instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from trucker.change import Changes, CopiedRows, Lsn, SchemaChanges, TableId, TableSchema
from trucker.config.sql_files import SqlFile
from trucker.errors import SinkError, TruckerError
from trucker.sinks.table_identity import TableChange
from trucker.types import Unfit

CARRIED: Final = 1 << 20
"""The most bytes that a receipt ever carries."""


class Phase(StrEnum):
    """Where a table of a truck is. COPYING and CATCHING_UP tables have a position of their own."""

    COPYING = "copying"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's phase, and the LSN it was copied at or has caught up to (its truck's counts once STREAMING)."""

    phase: Phase
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class TruckState:
    """What a destination stores of one truck. `lsn` is the end of the last commit applied."""

    lsn: Lsn
    tables: Mapping[TableId, TableState]


@dataclass(frozen=True, slots=True)
class Target:
    """One source table of one truck and the table it goes to. `source` is what the truck takes of it.

    `unfit` has the columns for which the truck says what becomes of a value that the destination cannot hold.
    `schema_changes` says what may be done to the table. `dropped` names columns that the source has dropped. `stale`
    says that the rows there are not the source's, and are copied again once the table fits.

    Of a truck with SQL or rules `source` has the columns that these give, and their key. `strict` says that a table
    which is there must have just these columns. `shared` says that other tables' rows go to the same table: a copy adds
    to what is there. `statement` is the truck's output.sql: it writes, and `table` is nobody's business then. Rows for
    it come in `Changes.new`, deletes too, and `Changes.ordinal` is the number of the run (`rows.Rows`) each belongs to.
    Of statements that take longer than `slow_ms` milliseconds there is a line in the log. `awaits_rows` says that rows
    of the source table, of a partition that was attached, are not at the destination yet and will be written there as
    whole rows: until then an update with unchanged cells is left out where its row is not there.
    """

    truck: str
    source: TableSchema
    table: TableId
    unfit: tuple[tuple[str, Unfit], ...] = ()
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    dropped: tuple[str, ...] = ()
    stale: bool = False
    strict: bool = False
    shared: bool = False
    statement: SqlFile | None = None
    slow_ms: int | None = None
    awaits_rows: bool = False

    @property
    def place(self) -> TableId:
        """Where its rows are, in the ledger's words: a table, or wherever output.sql puts them."""
        return TableId("", self.statement.name) if self.statement else self.table

    def unfit_of(self, column: str) -> Unfit | None:
        """The column's policy; None where the truck does not say (an error, unless a sink has a lossless form)."""
        return dict(self.unfit).get(column)

    def renames(self, present: Collection[str]) -> list[tuple[str, str]]:
        """The old and the new names of columns to rename where a table has these, in an order that works.

        A column whose new name is taken stays what it is: its rows come again.
        """
        there, found = set(present), []
        due = {c.name: c.was_name for c in self.source.columns if c.was_name}
        while moves := [(old, new) for new, old in due.items() if old in there and new not in there]:
            old, new = moves[0]
            there ^= {old, new}
            del due[new]
            found.append((old, new))
        return found


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit makes visible.

    `start` (exclusive) and `end` (inclusive) are commit ends; a snapshot has both at its consistent point, and
    a `snapshot` name that no other attempt shares. `positions` are the trucks' new positions and `tables` the
    tables' new states; both go into the destination with the data. `targets` are those the receipts speak of.
    `forget` names trucks that were reset: their position goes, their tables become COPYING at 0/0, their rows stay.
    `builds_on` says which LSN must be stored there now for a truck (`None`) or for a table that has one of its own.
    Where it is another, a commit whose answer was lost took effect after the destination was asked: `SinkUnavailable`,
    and nothing is written (`ledger.Ledger.plan` sees to it).
    `dead_letters` names the trucks that set failing rows aside (`sinks.letters`), and how many each may have.
    `sizes` says of copies that begin how many bytes they will bring, about.
    `moved` names tables that another part of their truck had until now, and that part: what is known there of the rows
    at the destination goes to the table's new part. Both are in `tables`, as COPYING.
    `stream` tells batches of the same range apart, where several slots bring the changes of one source.
    `leaving` names tables of `tables` that follow their truck until now, and go on from a position of their own.
    """

    start: Lsn
    end: Lsn
    positions: Mapping[str, Lsn] = field(default_factory=dict)
    tables: Mapping[tuple[str, TableId], TableState] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    snapshot: str = ""
    forget: tuple[str, ...] = ()
    builds_on: Mapping[tuple[str, TableId | None], Lsn] = field(default_factory=dict)
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[tuple[str, TableId], int] = field(default_factory=dict)
    moved: Mapping[tuple[str, TableId], str] = field(default_factory=dict)
    stream: str = ""
    leaving: frozenset[tuple[str, TableId]] = frozenset()

    @property
    def name(self) -> str:
        """Unique among all batches and attempts of a project that may differ in content."""
        stream = f"{self.stream}@" if self.stream else ""
        return self.snapshot or f"{stream}{int(self.start):016x}-{int(self.end):016x}"

    def for_parts(self) -> Batch:
        """What `write` needs to know of it: not the other tables, of which there may be thousands, for every task."""
        return replace(self, positions={}, tables={}, targets=(), builds_on={}, sizes={})


@dataclass(frozen=True, slots=True)
class Work:
    """One part of a batch for one target. `part` is stable when the same work is repeated. Of the `batch` it has what
    `Batch.for_parts` leaves.

    `room` is how many bytes its receipt may carry: less than `CARRIED` where a batch has many receipts (I9).
    `finishes` is work without rows, after all parts of a copy (`Receipt.unfinished`); its receipt goes nowhere.
    """

    batch: Batch
    target: Target
    part: int
    room: int = CARRIED
    finishes: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `write` did: enough for `commit`, in another process, to find or carry it. Must pickle.

    `staged` is the sink's own; keep it small (it travels through Spark): little more than `Work.room`. `unfinished`
    asks, for a table that is copied, for one more `write` when all of its parts are there, to do what takes long and
    need not keep a commit waiting. `commit` must do without, should it not have been done.
    """

    truck: str
    table: TableId
    part: int
    rows: int
    staged: Any = None
    unfinished: bool = False


class Receipts(Sequence[Receipt]):
    """A batch's receipts, some of which may be on their way: as a sequence it waits for all of them.

    A sink that can apply a part before it has the others takes them `by_part`. Either way `TruckFailed` is raised where
    a share of a truck could not be made: what there is of it must not be committed (I3).
    """

    @abstractmethod
    def by_part(self) -> Iterator[Sequence[Receipt]]:
        """Those of each part, in order, as soon as they are there. Raises what keeps one from coming."""

    @abstractmethod
    def settled(self) -> tuple[list[Receipt], dict[str, TruckerError]]:
        """All that came, and why shares of trucks did not."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of sink can do, for the framework and the documentation.

    `keeps_changes`: takes every change in commit order; otherwise it takes, of each part, the net change per key.
    Parts are consecutive: what part 1 does to a key comes after what part 0 did to it, and a truncate in part 1
    voids all of part 0. `exactly_once`: positions and data commit together. `many_writers`: several sinks may be open
    for one destination at once, in one process, and commit for different trucks at the same time.
    """

    keeps_changes: bool = False
    exactly_once: bool = True
    many_writers: bool = False
    guarantee: str = ""


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the framework lends a sink: the project's id, and a folder that driver and executors share.

    Where they are `near` they are processes of one machine: what is written there is at hand, and costs no network.
    """

    project: str
    folder: Path
    near: bool = False


@runtime_checkable
class Examinable(Protocol):
    """A sink that can be looked at before it is opened, in any process and beside one that has it open.

    Both create and change nothing, and nothing waits for them.
    """

    def stored(self) -> Mapping[str, TruckState]:
        """What `Sink.open` would return; none where nothing of trucker's is there yet."""

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """What `Sink.prepare` would refuse of one truck's targets, and what the beginning of a copy would, for those
        whose source tables are `due` to be copied; with the error that it would raise."""


class Sink(ABC):
    """See the module's docstring for the contract. Must pickle before `open`."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    @abstractmethod
    def open(self) -> Mapping[str, TruckState]:
        """Connect, create trucker's own tables, undo what a crash left half done; the stored states by truck."""

    def prepare(self, target: Target) -> frozenset[str]:
        """Make the destination table able to hold the target's rows, as far as `target.schema_changes` lets it.

        APPLY adds columns and widens types, never removes; what else it would take raises `SinkError` with the
        statement to run there. STOP changes nothing and raises so for any difference. IGNORE changes nothing: gives
        the columns that the table has not, which are then left out of what is written. A new table is always made.
        A `statement` is checked instead; this sink runs none.
        """
        if target.statement is not None:
            raise SinkError(
                f"{target.statement.label}: a {self.name} destination cannot run SQL",
                remedy="remove the file, or name another connection in the truck's output",
                code="TRK118",
            )
        return frozenset()

    @abstractmethod
    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        """Stage one part. Streams: hold no more than a few of `changes` at a time (I9)."""

    @abstractmethod
    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Apply the receipts in `part` order, table by table, and store positions and states, all or nothing."""

    def discard(self, batch: Batch) -> None:  # noqa: B027  (optional)
        """Remove what was staged for a batch that will not be committed, where later commits would not."""

    def changed_tables(self) -> Sequence[TableChange]:
        """Tables that are no longer the ones that were filled, of all trucks of the project. Changes nothing, and needs
        no `open`."""
        return ()

    def accept_tables(self, slots: Collection[tuple[str, TableId]]) -> None:  # noqa: B027  (optional)
        """Take the tables of these trucks and source tables as they are now: what is missing may be made again, empty.
        Needs `open`."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Give back connections and files."""
