"""The contract of a source: what trucker asks of the store that changes are read from.

A source sends its changes as messages of the change log's wire format (`trucker.pgoutput`), and an LSN is the position
of a commit. Everything else that trucker asks of a source is here, grouped by who asks:

| protocol | who asks | for what |
|---|---|---|
| `SourceTables` | start, schema changes, watches | identity, positions, tables and their shapes |
| `SourcePublication` | start, publication watch | what is published, and how |
| `SourceSession` | start, conditions | both of these, and the slot, over one connection |
| `SnapshotSource`, `SnapshotView` | the copier | a snapshot, and the tables as it shows them |
| `CopySession` | the incremental copier | tables by pages, watermarks, which transactions are visible |
| `ChunkReader` | tasks of a copy | the rows of a chunk |
| `QuerySession` | trucks with SQL | queries over changed and copied rows, values that were not sent |
| `CapturedSource` | capture | how the stream is reached |
| `Source` | the engine | all of these, and the checks before a start |

An adapter names its source's class (`Adapter.source`), which is made with the connection and the `unique_id` of the
project (`trucker.source.factory`). A source holds settings and no connection: it pickles, since tasks read from it. Two
that are equal lead to the same place by the same settings. Each session is used by one thread at a time.

What fails is a `SourceError`; a `SourceUnavailable` passes, and is tried again. A table that cannot be published
without harm is refused before anything is changed (I11).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trucker.change import Changes, CopiedRows, RawCopy
from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import SqlFile
from trucker.errors import SourceError
from trucker.finding import Finding
from trucker.lsn import Lsn
from trucker.row_digest import DigestedColumns, DigestedRow, GroupSums
from trucker.rows import Rows
from trucker.slow_sql import SlowQueries
from trucker.source.look import Look, Sighting
from trucker.source.publication import Membership, PublishedTable
from trucker.source.slot import SlotInfo, SystemIdentity
from trucker.source.snapshot import ExportedSnapshot, LeafExtent, SnapshotChunk
from trucker.source.source_table import SourceTable, SourceType
from trucker.table import Column, Key, TableId, TableSchema

TypeKey = tuple[int, int]
"""A type in the stream: its oid and its modifier."""


class SourceTables(Protocol):
    """Which database it is, how far it has got, and its tables as they are at the moment of each call."""

    def identify(self) -> SystemIdentity:
        """Which database this is, wherever it is reached."""

    def current_lsn(self) -> Lsn:
        """The end of what is durable there."""

    def list_tables(self) -> list[TableId]:
        """Every table that could be published."""

    def load_table(self, table: TableId) -> SourceTable:
        """One table, with the columns that are sent. Raises where there is none, or its changes cannot be sent."""

    def types(self, types: Iterable[TypeKey]) -> Mapping[TypeKey, SourceType]:
        """What there is to know of types. One that is gone is absent."""

    def look(self, table: TableId) -> Look | None:
        """The shape of a table; None where there is none."""

    def sightings(self, tables: Iterable[TableId]) -> list[Sighting]:
        """The shapes of tables, each at one moment, with the columns that are sent."""

    def digests(self, tables: Iterable[TableId]) -> Mapping[TableId, tuple[int, str]]:
        """For each table that exists its oid, and a text that is another one after any DDL of the table."""

    def horizon(self) -> int:
        """All transactions below this have ended."""

    def has_rows(self, leaf: TableId) -> bool:
        """Whether a leaf has rows; False where it is gone."""

    def has_older_rows(self, leaf: TableId, horizon: int) -> bool:
        """Whether a leaf surely has rows that were there when transactions below `horizon` had ended."""

    def altered_by(self, leaf: TableId) -> int:
        """The transaction that last altered a leaf; 0 where it is gone."""


class SourcePublication(Protocol):
    """What is published. A publication that was made beforehand is never changed."""

    def memberships(self, tables: Iterable[TableId]) -> dict[TableId, Membership]:
        """How each of the tables that exist is published."""

    def ensure_publication(self, tables: Sequence[PublishedTable], *, dry: bool = False) -> frozenset[TableId]:
        """Publish exactly these tables, or make sure that the publication made beforehand serves them.

        Returns the tables that were not published so before: what was written to them until now is not in the stream as
        it is wanted. With `dry` nothing is changed. Raises, and changes nothing, where a table cannot be published
        without harm.
        """

    def publish_again(self, table: PublishedTable) -> None:
        """Publish a table that was created again under its name; nothing is done where it is published already."""

    def shortfalls(self, tables: Iterable[PublishedTable]) -> dict[TableId, SourceError]:
        """In what a publication that was made beforehand does not serve these tables."""

    def identity_problem(self, table: TableId) -> tuple[SourceError | None, bool]:
        """Why updates and deletes of a table cannot be followed; and whether the source refuses them by itself."""


class SourceSession(SourceTables, SourcePublication, Protocol):
    """An open session."""

    def find_slot(self) -> SlotInfo | None:
        """The project's slot; None where there is none."""

    def await_slot(self, stop: threading.Event) -> SlotInfo | None:
        """The slot, once nothing reads from it. Raises `Stopped` when `stop` is set, and after a while a `SourceError`
        that names who uses it."""


class SnapshotView(Protocol):
    """The tables of a source as one snapshot shows them."""

    def describe(self, table: TableId) -> SourceTable:
        """Raises where the table cannot be copied."""

    def look(self, table: TableId) -> Look:
        """The shape of a table that was described."""

    def sighting(self, table: TableId) -> Sighting:
        """The shape of a table, with the columns that are sent."""

    def chunks(
        self, table: SourceTable, chunk_bytes: int, *, columns: Sequence[str], where: str | None
    ) -> Sequence[SnapshotChunk]:
        """The table cut into chunks. Raises `SourceUnavailable` where it was rewritten after the snapshot."""

    def keyed_chunks(
        self,
        table: SourceTable,
        names: Sequence[str],
        keys: Sequence[Key],
        *,
        columns: Sequence[str],
        where: str | None,
    ) -> tuple[Sequence[SnapshotChunk], Sequence[Key]]:
        """Chunks that have the rows of these keys, which are values of the columns `names`, as far as they meet
        `where`; and the keys without such a row."""

    def fingerprint(self, table: SourceTable, names: Sequence[str]) -> str:
        """What the source's own digests of these columns depend on; empty for a source that has none."""

    def digest_sums(self, table: SourceTable, columns: DigestedColumns, where: str | None) -> GroupSums:
        """Of the table's rows, as far as they meet `where`."""

    def digested_rows(
        self, table: SourceTable, columns: DigestedColumns, where: str | None, groups: Collection[int]
    ) -> Sequence[DigestedRow]:
        """The table's rows in these groups, as far as they meet `where`."""

    def cancel(self) -> None:
        """Have what another thread is asking fail soon."""


class CopySession(SourceTables, Protocol):
    """An open session where copies are read; outside of transactions between two calls."""

    def extents(self, table: SourceTable) -> Sequence[LeafExtent]:
        """The leaves of a table by their oids, as they are now. One that is gone is absent."""

    def watermark(self) -> Lsn:
        """A position that is not before the commit of any transaction visible until now. It comes in the stream, also
        while nothing else is written."""

    def await_ended(self, stop: threading.Event) -> None:
        """Wait until the transactions in progress, wherever tables are written, have ended and the session sees them.
        Raises `Stopped` when `stop` is set."""

    def running(self) -> frozenset[int]:
        """The transactions that are in progress; none on a standby, where nothing is in the stream before it is
        visible."""

    def has_synchronous_standbys(self) -> bool:
        """Whether a commit can be in the stream long before it is visible."""

    def await_visible(self, xids: Iterable[int]) -> None:
        """Wait until the session sees these transactions; `SourceUnavailable` where that takes too long."""

    def canonical_keys(self, schema: TableSchema, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        """Keys that a person has given, as the source writes them. `ControlError` names the first that is none."""

    def check_condition(self, schema: TableSchema, where: str) -> None:
        """`ControlError` where this is no condition on the table's columns. Runs nothing."""

    def selected_keys(self, table: SourceTable, names: Sequence[str], where: str) -> Iterator[Key]:
        """The keys of the rows that meet a condition. Must be iterated to the end."""


class ChunkReader(Protocol):
    """Reads one chunk after the other, each in a transaction of its own: inside a snapshot, or as the table is now."""

    def read(self, chunk: SnapshotChunk) -> Iterator[CopiedRows]:
        """The rows in pieces of a few MiB. Must be iterated to the end."""

    def raw(self, chunk: SnapshotChunk, names: Sequence[str], *, binary: bool) -> RawCopy:
        """The rows of some columns as the source writes them."""

    def watermark(self) -> Lsn:
        """As of a `CopySession`, after the chunks that were read. What was read must have been taken to its end."""

    def close(self) -> None:
        """Close the connection."""


class SnapshotSource(Protocol):
    """Where snapshots come from."""

    def export(self, stop: threading.Event) -> ExportedSnapshot:
        """A new snapshot at a consistent point. Raises `Stopped` when `stop` is set while it waits."""

    def view(self, exported: ExportedSnapshot) -> AbstractContextManager[SnapshotView]:
        """Enter the snapshot."""

    def verify(self, exported: ExportedSnapshot) -> None:
        """Raise where the snapshot no longer shows what it did (see `ExportedSnapshot`)."""

    def copy_session(self) -> AbstractContextManager[CopySession]:
        """A session for a copy without an exported snapshot."""

    def chunk_reader(self, snapshot: str, lsn: Lsn) -> ChunkReader:
        """A reader of chunks inside the snapshot, whose consistent point is `lsn`; with an empty name, in a snapshot of
        each chunk's own. Connects at the first chunk."""


class SourceQuery(Protocol):
    """An input.sql that is fit to run for one table. It pickles.

    `columns` are those of its result, without the operation; `used` are the names of the columns that it reads.
    """

    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def used(self) -> frozenset[str]: ...


class QuerySession(Protocol):
    """A session for the SQL of a truck: tables are found as in any session of the role, and nothing can be written."""

    @property
    def closed(self) -> bool: ...

    def prepare(self, file: SqlFile, table: TableSchema, *, positions: bool) -> SourceQuery:
        """The file for a table of this shape; with `positions` its rows have their positions. Runs nothing.

        Raises a `ConfigError` with file and line where it cannot run.
        """

    def run(self, query: SourceQuery, rows: Rows, *, rows_max: int, slow: SlowQueries | None = None) -> Rows:
        """The result for these rows. A statement that gives more than `rows_max` is an error."""

    def run_chunk(
        self, query: SourceQuery, chunk: SnapshotChunk, *, rows_max: int, lsn: Lsn, slow: SlowQueries | None = None
    ) -> Iterator[Rows]:
        """The result for a chunk, in pieces of a few MiB. The session must be inside the snapshot."""

    def reselect(self, changes: Changes, *, only: Collection[str] | None = None) -> Changes:
        """The changes with the values that were not sent, read again by key; of the columns in `only`, or of all."""

    def await_visible(self, xids: Iterable[int]) -> None:
        """Wait until the session sees these transactions; `SourceUnavailable` where that takes too long."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """How capture reaches the stream, as libpq's parameters, with the passwords as they are now.

    `primary` is where heartbeats are written, if that is another server. `timeout` is for connecting, in seconds.
    """

    conninfo: dict[str, str | int]
    primary: dict[str, str | int] | None
    timeout: float


class CapturedSource(Protocol):
    """What capture asks of a source. `slot` and `publication` are the names of the project's own."""

    @property
    def name(self) -> str:
        """The connection's name."""

    @property
    def publication(self) -> str: ...
    @property
    def slot(self) -> str: ...
    @property
    def silence(self) -> float:
        """After so many seconds without a word the server counts as away."""

    def stream_parameters(self) -> StreamParameters:
        """How the stream is reached."""

    def explain(self, reason: str) -> SourceError:
        """A failure to connect, in the driver's words, as an error with a remedy."""


class Source(CapturedSource, SnapshotSource, Protocol):
    """A source of a project."""

    @property
    def manages_publication(self) -> bool:
        """Whether the publication is trucker's own; otherwise it was made beforehand."""

    @property
    def resnapshots(self) -> bool:
        """Whether a lost slot leads to new copies by itself."""

    def session(self, purpose: str) -> AbstractContextManager[SourceSession]:
        """A session where tables are written and published; the server shows its `purpose`."""

    def reading_session(self, purpose: str) -> AbstractContextManager[SourceSession]:
        """A session where the slot is and copies are read, which may be another server."""

    def query_session(self, snapshot: str | None = None) -> QuerySession:
        """A session for the SQL of trucks; inside a snapshot, where one is named."""

    def create_slot(self, stop: threading.Event) -> ExportedSnapshot:
        """Create the slot. Raises `Stopped` when `stop` is set before the source is ready to."""

    def drop_slot(self) -> None:
        """Drop the slot, where there is one."""

    def drop_objects(self) -> None:
        """Drop all that trucker has created at the source: the slot and the publication, unless made beforehand."""

    def objects(self) -> list[str]:
        """What `drop_objects` drops, for people to read."""

    def check(self, tables: Sequence[PublishedTable], *, instance: str = "") -> list[Finding]:
        """Everything that a run needs of the source, to read these tables; changes nothing.

        `instance` describes the project's running instance, which is the one that reads from the slot then.
        """

    def check_input(self, truck: TruckConfig, tables: Sequence[TableSchema]) -> list[Finding]:
        """Whether the truck's input.sql, if it has one, can run for tables of these shapes."""

    def check_old_values(self, truck: TruckConfig, table: SourceTable, origin: Mapping[str, str]) -> Iterator[Finding]:
        """An error where the table does not send a value that the truck's SQL needs. `origin` has the columns of the
        rows, and what each is called in the table."""

    def whole_rows_remedy(self, table: SourceTable) -> str:
        """What has the source send whole old rows of a table."""
