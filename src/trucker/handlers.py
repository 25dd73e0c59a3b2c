"""What the class of a `handler.py` is: a `Handler` takes every change, a `Batcher` the net change of each row.

A class need not inherit from these; it may define the methods alone. Each method may be a coroutine (`async def`).
Besides the methods below a class may have:

    open()                         once, before the first call: connect
    close()                        at the end: release what is held
    load_position() -> str | None  what `save_position` was given last; None where it never was
    save_position(position: str)   make durable, in one transaction, this text and all that came since the last call

With the last two, which come together, changes arrive exactly once; without them trucker stores the position in the
state folder, and after a failure or a crash some changes arrive again. `docs/reference/sinks/python.md` has the whole
contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trucker.lsn import Lsn
    from trucker.row_changes import RowChange
    from trucker.table import TableId

HandlerRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """The transaction at the source whose changes come next. For rows of a copy, which come in pieces, `snapshot` is
    true: they have no transaction, and `commit_lsn` is the position of the copy."""

    commit_lsn: Lsn
    commit_time: datetime | None
    xid: int
    snapshot: bool = False


class RowRefused(Exception):
    """Raised by a handler to say that a row can never be taken: it is not tried again, and the truck's `on_error`
    decides. The text is shown in logs and by `trucker status`, so that no data of the row belongs in it."""


class Handler:
    """Takes every change, in commit order. All methods are optional, and one of them is needed."""

    def on_begin(self, transaction: SourceTransaction) -> Awaitable[None] | None:
        """The changes of a transaction follow."""

    def on_insert(self, change: RowChange) -> Awaitable[None] | None:
        """A row was inserted, or read by a copy of its table (`change.snapshot`)."""

    def on_update(self, change: RowChange) -> Awaitable[None] | None:
        """A row was updated. `change.unsent` names the columns that are not in `change.new`, having not changed."""

    def on_delete(self, change: RowChange) -> Awaitable[None] | None:
        """A row was deleted; `change.old` has at least its key."""

    def on_truncate(self, change: RowChange) -> Awaitable[None] | None:
        """A table was truncated."""

    def on_commit(self, transaction: SourceTransaction) -> Awaitable[None] | None:
        """All changes of the transaction were given."""

    def on_refresh(self, table: TableId) -> Awaitable[None] | None:
        """All rows of the table follow as inserts: what is there of it is out of date."""


class Batcher:
    """Takes the net changes of rows, many at once: `upsert` and `delete` are needed, the others are not.

    Calls may come again with the same rows, and must leave the same behind (I4). No call has two rows of one key.
    """

    def upsert(self, table: TableId, rows: Sequence[HandlerRow]) -> Awaitable[None] | None:
        """These rows, all of them whole, are new or have changed."""

    def delete(self, table: TableId, keys: Sequence[HandlerRow]) -> Awaitable[None] | None:
        """The rows with these keys are gone; a key has the key's columns."""

    def truncate(self, table: TableId) -> Awaitable[None] | None:
        """All rows of the table are gone. Without this method the truck stops at a truncate and at a second copy."""

    def is_empty(self, table: TableId) -> Awaitable[bool] | bool:
        """Whether there are no rows of the table. With this method a first copy is refused where there are some: they
        are not trucker's, and `truncate` would remove them."""
        return True


EVENTS = ("on_begin", "on_insert", "on_update", "on_delete", "on_truncate", "on_commit", "on_refresh")
BATCHES = ("upsert", "delete", "truncate", "is_empty")
HOOKS = ("open", "close")
POSITION = ("load_position", "save_position")
ARGUMENTS: Mapping[str, int] = {
    **dict.fromkeys(EVENTS, 1),
    "upsert": 2,
    "delete": 2,
    "truncate": 1,
    "is_empty": 1,
    "open": 0,
    "close": 0,
    "load_position": 0,
    "save_position": 1,
}
"""How many arguments each method is called with."""


def defines(kind: type, method: str) -> bool:
    """Whether a class has the method, and not just that of the base."""
    attribute = getattr(kind, method, None)
    return attribute is not None and attribute not in (getattr(Handler, method, None), getattr(Batcher, method, None))
