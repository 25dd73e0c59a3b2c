"""What is looked at before a run, and in which order tables are written: the same for every SQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from trucker.errors import SinkError, TruckerError, TruckFailed
from trucker.sinks.ledger import Ledger, foreign_rows
from trucker.sinks.target import Target
from trucker.table import TableId


def examine_targets(
    targets: Sequence[Target],
    due: Collection[TableId],
    ledger: Callable[[], Ledger],
    exists: Callable[[Target], bool],
    is_empty: Callable[[TableId], bool],
) -> Iterator[tuple[Target, TruckerError]]:
    """See `Examinable.examine`. `exists` says whether a target's table is there, and raises what `prepare` would.

    output.sql has its own check.
    """
    existing: set[TableId] = set()
    for target in targets:
        if target.statement is not None:
            continue
        try:
            if exists(target):
                existing.add(target.source.table)
        except SinkError as error:
            yield target, error
    copied = [target for target in targets if target.source.table in due]
    try:
        copies = ledger().copies(copied) if copied else ()
    except TruckFailed as error:
        yield copied[0], error.reason
        return
    for copy in copies:
        if copy.target.source.table in existing and not copy.ours and not is_empty(copy.target.table):
            yield copy.target, foreign_rows(copy.target).reason


def parents_first(tables: Sequence[TableId], parents: Mapping[TableId, Collection[TableId]]) -> list[TableId]:
    """The tables, each after those that it refers to by a foreign key; circles are cut somewhere."""
    waiting, ordered = list(dict.fromkeys(tables)), list[TableId]()
    while waiting:
        free = [table for table in waiting if not any(other in waiting for other in parents.get(table, ()))]
        ordered += free or waiting[:1]
        waiting = [table for table in waiting if table not in ordered]
    return ordered
