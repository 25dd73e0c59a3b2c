"""Finds partitions that were attached or detached: the stream does not mention it.

pgoutput sends the changes of rows under the name of the partitioned table. It sends nothing when a partition is
attached with the rows it has, detached, dropped, or truncated by itself. Two looks at the catalogue tell: the leaves of
the table, when each was attached, and the file that each has its rows in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from trucker.source.base import Source
from trucker.source.look import Look
from trucker.table import TableId


class Asked(Enum):
    """What there is to ask of a leaf beyond the catalogue."""

    ROWS = "rows"
    OLDER_ROWS = "older rows"
    ALTERED = "altered"


Probe = Callable[[Asked, TableId, int], int]
"""Asks it of a leaf: whether it has rows, whether it surely has rows of before a transaction, the transaction that last
altered its entry in pg_class."""


@dataclass(frozen=True, slots=True)
class TreeChange:
    """Leaves of a table that are `gone`, that were `attached` with rows, and that were `emptied`, by their names."""

    gone: tuple[TableId, ...] = ()
    attached: tuple[TableId, ...] = ()
    emptied: tuple[TableId, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.gone:
            yield f"{_named(self.gone)} detached or dropped"
        if self.attached:
            yield f"{_named(self.attached)} attached with rows"
        if self.emptied:
            yield f"{_named(self.emptied)} truncated"


def _named(leaves: tuple[TableId, ...]) -> str:
    return f"partition{'s' if len(leaves) > 1 else ''} {', '.join(map(str, leaves))} {'were' if leaves[1:] else 'was'}"


def probe_leaf(source: Source, asked: Asked, leaf: TableId, horizon: int) -> int:
    """A `Probe` of a source."""
    with source.reading_session("catalog") as session:
        if asked is Asked.ALTERED:
            return session.altered_by(leaf)
        return session.has_rows(leaf) if asked is Asked.ROWS else session.has_older_rows(leaf, horizon)


def tree_change(before: Look, now: Look, truncated_by: int, probe: Probe) -> TreeChange | None:
    """How the partitions changed between two looks; None where that concerns no row.

    `truncated_by` is the last transaction that truncated the whole table and was applied: leaves that it emptied are
    empty at the destination, too.
    """
    if not before.partitioned or before.oid != now.oid:
        return None
    gone = [before.leaves.get(leaf, before.table) for leaf in before.files if leaf not in now.files]
    attached, emptied = [], []
    for leaf, file in sorted(now.files.items()):
        name, since = now.leaves[leaf], (now.attached or {}).get(leaf)
        if leaf not in before.files:
            # One that was created as a partition has no row that the stream did not tell.
            attached += [name] if since and probe(Asked.ROWS, name, 0) else []
        elif before.attached is not None and before.attached.get(leaf) != since:
            attached.append(name)  # it was detached meanwhile
        elif before.files[leaf] != file and not probe(Asked.OLDER_ROWS, name, before.horizon):
            emptied += [name] if not truncated_by or probe(Asked.ALTERED, name, 0) != truncated_by else []
    change = TreeChange(tuple(gone), tuple(attached), tuple(emptied))
    return change if change != TreeChange() else None
