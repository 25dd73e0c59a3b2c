"""A snapshot of a source, and the chunks in which tables are read inside it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from trucker.lsn import Lsn
from trucker.table import TableId, TableSchema


class Closeable(Protocol):
    """What keeps a snapshot alive until it is closed."""

    def close(self) -> None: ...


class ExportedSnapshot:
    """A slot just created and the snapshot of its consistent point, which shows exactly what committed before `lsn`.

    Holds the connection open that exported it, which the snapshot needs until everybody who reads from it has imported
    it, and which a temporary slot needs to live. On a `standby` recovery ends this session before it removes a row
    that the snapshot shows, and it may not end those that have imported it: what they have read is whole if the
    snapshot can still be imported afterwards.
    """

    def __init__(self, connection: Closeable, slot: str, lsn: Lsn, snapshot: str, *, standby: bool = False) -> None:
        self.slot = slot
        self.lsn = lsn
        self.snapshot = snapshot
        self.standby = standby
        self._connection = connection

    def close(self) -> None:
        """End the snapshot, and the slot if it is temporary."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A range of pages of one leaf; `schema` is the root table with the columns to copy. `last` None is open. `file` is
    the leaf's file; 0 where the snapshot says which."""

    schema: TableSchema
    leaf: TableId
    oid: int
    first: int
    last: int | None
    where: str | None = None
    bytes: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class LeafExtent:
    """A leaf at one moment: its file, its pages, and its bytes with everything that belongs to them. Where it is not
    `paged`, it can only be read as a whole."""

    leaf: TableId
    oid: int
    file: int
    pages: int
    bytes: int
    paged: bool = True
