"""The contract of sinks: what a store must do. `docs/howto/write_a_sink.md` explains it.

    open()                driver    connect, remove what a crash left, return the ledger that is stored there
    prepare(target)       driver    create or widen the destination table; may be repeated
    stage(work, changes)  executor  take one part of a batch, out of readers' sight; may be repeated
    publish(delivery)  driver    make the staged parts visible and store the new positions
    close()               both      release what is held; may be called on a sink that was never opened

The framework decides what is due and what was published before, keeps the order of parts, cuts at truncates, retries,
and removes what is not committed (`sinks.committer`). Three bases do more: `sinks.transactional` (tables in a store
with transactions), `sinks.merging` (tables in a store without), `sinks.events` (ordered streams of changes).

- `stage` runs in other processes, perhaps on other machines, on a sink that was never opened. Of all the receipts of
  one `(batch, target, part)` exactly one reaches `publish`. Parts of the next batch may be staged during `publish`.
- A part is a sequence of values, each a set of net changes: at most one per key. Apply a value as: deletes; updates
  that move keys, as a set; the rest. With `Abilities.every_change` it has every change in commit order instead.
- `publish` gets the ledger to store from `delivery.verify(stored)`, applies `delivery.loads()` in order and stores that
  ledger: together where the store can, and otherwise the ledger last, with loads that may be repeated.
- The only key of a change that is stable over restarts is `(commit_lsn, ordinal)`; batches and parts are cut anew.
- `SinkUnavailable` means "the same again later". `TruckFailed` says whose data cannot be taken, nothing having been
  written; the others' is published without it. Any other `SinkError` stops the trucks of the batch (I8). A row that is
  refused for what is in it is a `DataError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from trucker.abilities import Abilities
from trucker.change import Changes, CopiedRows
from trucker.errors import SinkError, TruckerError
from trucker.sinks.batch import Batch, Receipt, TruckState, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable
from trucker.table import Key, TableId


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the framework lends a sink: the project's id, and a folder that driver and executors share.

    Where they are `near` they are processes of one machine: a file costs no network.
    """

    project: str
    folder: Path
    near: bool = False


class Sink(ABC):
    """See the module's docstring for the contract. Must pickle before `open`. One thread at a time uses it."""

    name: ClassVar[str]
    abilities: ClassVar[Abilities] = Abilities()
    reads_unsent: bool = False
    """Of a sink of every change: whether values that PostgreSQL did not send are to be read again at the source. Where
    the row is gone by then they are still marked as unchanged."""

    @abstractmethod
    def open(self) -> Ledger:
        """Connect, create trucker's own tables, undo what a crash left half done; the ledger that is stored there.

        Called again on the same sink when the outcome of `publish` is not known, or the ledger is out of date.
        """

    def prepare(self, target: Target) -> frozenset[str]:
        """Make the destination table able to hold the target's rows, as far as `target.schema_changes` lets it.

        APPLY adds columns and widens types, never removes; what else it would take raises `SinkError` with the
        statement to run there. STOP changes nothing and raises so for any difference. IGNORE changes nothing: gives
        the columns that the table has not, which are then left out of what is written. A new table is always made.
        A `statement` is checked instead, without running it; this sink runs none.
        """
        if target.statement is not None:
            raise SinkError(
                f"{target.statement.label}: a {self.name} destination cannot run SQL",
                remedy="remove the file, or name another connection in the truck's output",
                code="TRK118",
            )
        return frozenset()

    @abstractmethod
    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        """Take one part, holding no more than a few values in memory (I9); returns `work.receipt(rows, staged)`.

        The columns of a value may be fewer than the target's (older than an ADD COLUMN: an insert takes
        `missing_value`) or more (one was dropped since); `Changes.reshaped` gives it the target's.
        """

    @abstractmethod
    def publish(self, delivery: Delivery) -> None:
        """Make the delivery visible, and durable: a later `open`, in any process, returns the new ledger (I3)."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Release connections and files."""


# -- what a sink may offer besides; the framework asks with isinstance -------------------------------------------------


@runtime_checkable
class Examinable(Protocol):
    """A sink that can be looked at before it is opened, in any process and beside one that has it open.

    Both create and change nothing, and nothing waits for them.
    """

    def stored(self) -> Mapping[str, TruckState]:
        """The states of the ledger that `Sink.open` would return; none where nothing of trucker's is there yet."""

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """What `Sink.prepare` would refuse of one truck's targets, and what the beginning of a copy would, for those
        whose source tables are `due` to be copied; with the error that it would raise."""


@runtime_checkable
class Discards(Protocol):
    """A sink whose staged parts must be removed when their batch is given up."""

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that will not be published."""


@runtime_checkable
class RecognizesTables(Protocol):
    """A sink that notices when another program drops or alters a table that it has filled (`sinks.table_identity`)."""

    def changed_tables(self) -> Sequence[TableChange]:
        """Tables that are no longer the ones that were filled, of all trucks of the project. Changes nothing, and needs
        no `open`."""

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        """Take these tables as they are now: what is missing may be made again, empty. Needs `open`."""


@runtime_checkable
class FinishesCopies(Protocol):
    """A sink that has work to do, on an executor, between the last part of a copy and its delivery."""

    def unfinished(self, receipt: Receipt) -> bool:
        """Whether the copy of the receipt's table needs `finish_copy`."""

    def finish_copy(self, target: Target) -> None:
        """Do what takes long, such as an index. `publish` must do without, should it not have been called."""


@runtime_checkable
class KeepsCopiedParts(Protocol):
    """A sink that writes the parts of a first copy as they come: they are there when the copy is interrupted."""

    def copied_parts(self, truck_table: TruckTable) -> tuple[str, frozenset[int]]:
        """The name of the copy of this table that has begun last (`Batch.snapshot`), and the parts of it that are
        there. Should they be lost, the next `publish` fails. Needs `open`."""


@runtime_checkable
class ForeseesCopies(Protocol):
    """A sink that prepares for large copies."""

    def expect_copies(self, sizes: Mapping[TruckTable, int]) -> None:
        """Copies that begin with the next delivery, and about how many bytes each will bring."""


@runtime_checkable
class ForeseesCalls(Protocol):
    """A sink that gives changes to code of the user's (`trucker try`)."""

    def foreseen_calls(self, target: Target, changes: Sequence[Changes]) -> Iterator[tuple[str, str]]:
        """What would be called for these changes, and with what, in words. Calls nothing, and needs no `open`; raises
        `TruckerError` where the code cannot be used."""


@runtime_checkable
class SelectsKeys(Protocol):
    """A sink that finds rows by a condition (`trucker refresh --where`)."""

    def select_keys(self, target: Target, where: str) -> Iterator[Key]:
        """The keys of the rows of the target's table that meet a condition in the store's SQL, as PostgreSQL could read
        them. Raises `SinkError` where the store cannot evaluate it. Needs no `open`."""
