"""Which tables and columns of a destination trucker has filled, and what follows when they are others now.

`sinks.table_identity` says when tables are compared and why. What an identity is differs from store to store: a
subclass reads and writes what is stored, looks at tables as they are, and compares the two.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trucker.errors import SinkError
from trucker.sinks.batch import Phase
from trucker.sinks.sql.dialect import T
from trucker.sinks.table_identity import TableChange, replaced_while_copied
from trucker.sinks.target import Target, TruckTable
from trucker.table import Column, TableId

log = logging.getLogger("trucker.sink")

I = TypeVar("I")  # noqa: E741
"""What is stored of a table: its identity."""
N = TypeVar("N")
"""A table as it is now."""


@dataclass(frozen=True, slots=True)
class StoredTable(Generic[I]):
    """What is stored of a table of a truck."""

    phase: Phase
    target: TableId | None
    identity: I | None

    @property
    def filled(self) -> bool:
        """Whether rows are in a table that count, so that another table would lack them."""
        return self.phase is not Phase.COPYING and self.target is not None and self.target.schema != ""

    def compared_with(self, target: Target) -> bool:
        """Whether the rows of the target count and stay, so that its table must be the one that was filled."""
        return self.filled and self.target == target.table and not target.stale


class FilledTables(ABC, Generic[T, I, N]):
    """Reads and writes one project's identities; the caller owns the transaction."""

    @abstractmethod
    def load(self, transaction: T, truck_table: TruckTable | None = None) -> dict[TruckTable, StoredTable[I]]:
        """What is stored of the project's tables, or of one; nothing where trucker's own tables are not there."""

    @abstractmethod
    def write(self, transaction: T, truck_table: TruckTable, identity: I | None) -> None:
        """Store an identity; None stands for a table that is not there and may be created."""

    @abstractmethod
    def see(self, transaction: T, tables: Iterable[TableId]) -> dict[TableId, N]:
        """These tables as they are; none where there is none."""

    @abstractmethod
    def identify(self, transaction: T, table: TableId, now: N, written: Collection[str] | None) -> I:
        """The identity of a table of which trucker writes these columns, all of them for None."""

    @abstractmethod
    def written(self, identity: I) -> Collection[str] | None:
        """The columns that trucker writes of the table with this identity, None for all."""

    @abstractmethod
    def compare(
        self,
        truck_table: TruckTable,
        table: TableId,
        identity: I | None,
        now: N | None,
        columns: Sequence[Column] | None,
        *,
        shared: bool,
    ) -> TableChange | None:
        """What has changed since the identity was stored (`table_identity.compare`)."""

    # -- prepare ------------------------------------------------------------------------------------------------------

    def refuse_changed(self, transaction: T, target: Target, now: N | None) -> StoredTable[I] | None:
        """Raise for a table that has been filled and is another one now; what is stored of it."""
        state = self.load(transaction, target.truck_table).get(target.truck_table)
        if state is not None and state.compared_with(target):
            change = self._compare(target, state, now)
            if change is not None:
                raise change.error()
        return state

    def put(self, transaction: T, target: Target, now: N | None, state: StoredTable[I] | None) -> None:
        """Store what a prepared table is, inside the transaction that prepared it.

        Not while rows of the truck are in another table, or are going to be copied again: the stored identity is
        that of those rows.
        """
        if now is None or (state is not None and state.filled and not state.compared_with(target)):
            return
        identity = self.identify(transaction, target.table, now, target.source.names)
        if state is None or state.identity != identity:
            self.write(transaction, target.truck_table, identity)

    def _compare(self, target: Target, state: StoredTable[I], now: N | None) -> TableChange | None:
        return self.compare(
            target.truck_table, target.table, state.identity, now, target.source.columns, shared=target.shared
        )

    # -- commit -------------------------------------------------------------------------------------------------------

    def refuse_written(
        self, transaction: T, targets: Sequence[Target], *, copied: bool = False
    ) -> Iterator[tuple[Target, SinkError]]:
        """Of the targets that a commit writes, those whose table is another one, with the reason."""
        stored = self.load(transaction) if targets else {}
        for target in targets:
            state = stored.get(target.truck_table)
            if state is None or (not copied and not state.compared_with(target)):
                continue
            change = self._compare(target, state, self.see(transaction, [target.table]).get(target.table))
            if change is not None:
                yield target, replaced_while_copied(change.source, change.table) if copied else change.error()

    # -- open, check, accept ------------------------------------------------------------------------------------------

    def adopt(self, transaction: T) -> None:
        """Store the identity of tables that an older trucker, which stored no identities, has filled."""
        adopted: list[TableId] = []
        for truck_table, state, table in self._filled(transaction):
            # Looked at one by one: to identify a table may alter it, and tables may share one.
            now = self.see(transaction, [table]).get(table) if state.identity is None else None
            if now is not None:
                self.write(transaction, truck_table, self.identify(transaction, table, now, None))
                adopted.append(truck_table[1])
        if adopted:
            log.info(
                "tables written by an earlier version are accepted without a check",
                extra={"tables": sorted(map(str, adopted))},
            )

    def changed(self, transaction: T) -> list[TableChange]:
        """The tables that have been filled and are others now. Changes nothing."""
        filled = self._filled(transaction)
        tables = self.see(transaction, {table for _, _, table in filled})
        sharing = Counter((truck, table) for (truck, _), _, table in filled)
        changes = [
            self.compare(
                truck_table,
                table,
                state.identity,
                tables.get(table),
                None,
                shared=sharing[truck_table[0], table] > 1,
            )
            for truck_table, state, table in filled
        ]
        return [change for change in changes if change is not None]

    def accept(self, transaction: T, truck_tables: Collection[TruckTable]) -> None:
        """Store the identity of what is there now."""
        for truck_table, state, table in self._filled(transaction):
            if truck_table not in truck_tables:
                continue
            now = self.see(transaction, [table]).get(table)
            written = None if state.identity is None else self.written(state.identity)
            identity = None if now is None else self.identify(transaction, table, now, written)
            self.write(transaction, truck_table, identity)

    def _filled(self, transaction: T) -> list[tuple[TruckTable, StoredTable[I], TableId]]:
        """The tables that have been filled, in order, with what is stored of each and where its rows are."""
        stored = sorted(self.load(transaction).items(), key=lambda item: item[0])
        return [(each, state, state.target) for each, state in stored if state.filled and state.target]
