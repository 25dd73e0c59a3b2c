"""The identities of the tables that a sink writes, kept so that a commit reads only what the tables are now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from trucker.errors import SinkError
from trucker.sinks.sql.dialect import T
from trucker.sinks.sql.filled_tables import FilledTables, I, N
from trucker.sinks.table_identity import replaced_while_copied
from trucker.sinks.target import Target, TruckTable

R = TypeVar("R")
"""What a store answers about a table as it is."""


class WrittenTables(Generic[T, I, N]):
    """Of one project; `learn` comes before `compare`."""

    def __init__(self, identities: FilledTables[T, I, N]) -> None:
        self._identities = identities
        self._stored: dict[TruckTable, I | None] = {}
        self._same: dict[TruckTable, Any] = {}

    def clear(self) -> None:
        self._stored.clear()
        self._same.clear()

    def forget(self, target: Target) -> None:
        """What is stored of the target may be something else now."""
        self._stored.pop(target.truck_table, None)
        self._same.pop(target.truck_table, None)

    def learn(self, transaction: T, targets: Iterable[Target]) -> None:
        """Load the stored identities of these targets, before they are compared."""
        for target in targets:
            if target.truck_table not in self._stored:
                state = self._identities.load(transaction, target.truck_table).get(target.truck_table)
                self._stored[target.truck_table] = state.identity if state else None

    def compare(
        self, targets: Sequence[Target], seen: Sequence[R | None], table_of: Callable[[R], N], *, copied: bool
    ) -> Iterator[tuple[Target, SinkError]]:
        """Which of the targets' tables are others, with the reason. `seen` has each table as it is, None for one that
        is not there; `table_of` is called for those that have changed."""
        for target, now in zip(targets, seen, strict=True):
            truck_table = target.truck_table
            if now is not None and self._same.get(truck_table) == now:
                continue
            change = self._identities.compare(
                truck_table,
                target.table,
                self._stored[truck_table],
                None if now is None else table_of(now),
                target.source.columns,
                shared=target.shared,
            )
            if change is not None:
                yield target, replaced_while_copied(change.source, change.table) if copied else change.error()
            elif now is not None:
                self._same[truck_table] = now
