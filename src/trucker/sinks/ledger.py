"""What a destination stores of trucks and tables, and what a batch still has to do there.

Every sink stores these two things, in whatever form suits it (tables, a file):

    positions   truck                  → the end LSN of the last commit applied
    entries     (truck, source table)  → phase, LSN, destination table, name of the snapshot attempt

`Ledger.plan` is the one place that decides whether a batch, or a truck's or a table's share of it, has been applied
already (I4), so that it is the same for every sink. It is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch, Phase, TableState, TruckState
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId

_ORDER: Final = {Phase.COPYING: 0, Phase.CATCHING_UP: 1, Phase.STREAMING: 2}


FIRST_COPY: Final = "first-"
"""The names of attempts at first copies begin with it: there are no rows of an earlier copy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One table of one truck. `target` is where its rows are; `snapshot` names the attempt that copied or copies it,
    and says after a `#` how far an incremental one has got."""

    phase: Phase
    lsn: Lsn
    target: TableId | None = None
    snapshot: str = ""

    @property
    def attempt(self) -> str:
        """The name of the attempt alone."""
        return self.snapshot.partition("#")[0]

    @property
    def state(self) -> TableState:
        unfinished = self.phase is Phase.COPYING and self.snapshot.startswith(FIRST_COPY)
        return TableState(self.phase, self.lsn, self.snapshot.partition("#")[2], unfinished)


@dataclass(frozen=True, slots=True)
class Copy:
    """A table whose copy begins. `ours` says that what it holds was put there by this truck; otherwise a table that is
    not empty must be refused (`foreign_rows`). `whole` says that it is an earlier copy, complete at its time, which
    readers keep until the new one counts; otherwise it may be the half of one that was never finished. `adds` says that
    the rows of other tables are there and stay, whether the copy succeeds or not (`Target.shared`)."""

    target: Target
    ours: bool
    whole: bool = False
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch has to do. `apply` names the targets whose receipts are to be applied, in no order; `adds` those of
    a copy that counts now whose table keeps the rows it has, being shared."""

    copies: tuple[Copy, ...]
    apply: frozenset[TruckTable]
    positions: Mapping[str, Lsn]
    entries: Mapping[TruckTable, Entry]
    forgotten: frozenset[str]
    adds: frozenset[TruckTable] = frozenset()

    @property
    def empty(self) -> bool:
        """Nothing to do: all of it was committed before."""
        return not (self.copies or self.apply or self.positions or self.entries or self.forgotten)

    @property
    def trucks(self) -> tuple[str, ...]:
        """The trucks that have something to do, in order of name."""
        trucks = {*self.positions, *self.forgotten}
        for truck, _ in (*self.apply, *self.entries):
            trucks.add(truck)
        return tuple(sorted(trucks))


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that is stored of one project, or of the trucks of one batch."""

    positions: Mapping[str, Lsn] = field(default_factory=dict)
    entries: Mapping[TruckTable, Entry] = field(default_factory=dict)

    def states(self) -> dict[str, TruckState]:
        """What `Sink.open` returns. A truck with tables and no position is at 0/0."""
        trucks = sorted({*self.positions, *(truck for truck, _ in self.entries)})
        return {
            name: TruckState(
                self.positions.get(name, Lsn(0)),
                {table: entry.state for (truck, table), entry in self.entries.items() if truck == name},
            )
            for name in trucks
        }

    @property
    def copying(self) -> list[TruckTable]:
        """The tables that are being copied, or are to be."""
        return [truck_table for truck_table, entry in self.entries.items() if entry.phase is Phase.COPYING]

    def plan(self, batch: Batch) -> Plan:
        """What of `batch` is not stored yet.

        Raises `TruckFailed` for a copy that another attempt has replaced, and `SinkUnavailable` for a batch that
        was made in ignorance of where its truck is now: part of it would be applied a second time (I4).
        """
        self._check_start(batch)
        forgotten = self._forgotten(batch)
        entries = {**self.entries, **forgotten}
        positions = {truck: lsn for truck, lsn in self.positions.items() if truck not in batch.forget}
        now = Ledger(positions, entries) if batch.forget else self
        targets = {(target.truck, target.source.table): target for target in batch.targets}
        now._check_targets(batch, targets)
        copies = {
            truck_table: copy
            for truck_table, target in targets.items()
            if (copy := now._copy(batch, truck_table, target))
        }
        entries_due: dict[TruckTable, Entry] = {}
        for truck_table, state in batch.tables.items():
            if truck_table in copies or now._state_due(batch, truck_table, state):
                target = targets.get(truck_table)
                entry = entries.get(truck_table)
                entries_due[truck_table] = Entry(
                    state.phase,
                    state.lsn,
                    target.place if target else entry.target if entry else None,
                    _snapshot(batch, state, entry),
                )
        return Plan(
            tuple(copies.values()),
            frozenset(truck_table for truck_table in targets if now._rows_due(batch, truck_table)),
            {truck: lsn for truck, lsn in batch.positions.items() if now._moves(truck, lsn)},
            {**forgotten, **entries_due},
            frozenset(batch.forget),
            now._added(batch, targets),
        )

    def _added(self, batch: Batch, targets: Mapping[TruckTable, Target]) -> frozenset[TruckTable]:
        if not batch.snapshot:
            return frozenset()
        return frozenset(each for each, target in targets.items() if self._adds(batch, each, target))

    def copies(self, targets: Sequence[Target]) -> tuple[Copy, ...]:
        """How the copies of these tables of one truck would begin, if they began now. Raises as `plan` does."""
        tables = {(each.truck, each.source.table): TableState(Phase.COPYING, Lsn(0)) for each in targets}
        return self.plan(Batch(Lsn(0), Lsn(0), tables=tables, targets=tuple(targets), snapshot="examined")).copies

    def after(self, plan: Plan) -> Ledger:
        """The ledger once `plan` has been stored."""
        positions = {truck: lsn for truck, lsn in self.positions.items() if truck not in plan.forgotten}
        entries = {**self.entries, **plan.entries} if plan.entries else self.entries
        return Ledger({**positions, **plan.positions}, entries)

    def _check_start(self, batch: Batch) -> None:
        for (truck, table), believed in batch.builds_on.items():
            if table is None:
                moved = truck in batch.positions and self.positions.get(truck, Lsn(0)) != believed
            else:
                entry = self.entries.get((truck, table))
                moved = entry is not None and (entry.lsn != believed or entry.phase is Phase.STREAMING)
            if moved:
                raise SinkUnavailable(
                    f"the position of truck {truck} is not the expected one, as after a commit whose answer was lost",
                    remedy="none needed: trucker reads the position again and retries from there",
                    code="TRK416",
                )

    def _check_targets(self, batch: Batch, targets: Mapping[TruckTable, Target]) -> None:
        """Changes of rows that are in another table would be the whole content of this one (I8)."""
        for truck_table, target in targets.items():
            entry = self.entries.get(truck_table)
            if batch.snapshot or entry is None or entry.phase is Phase.COPYING:  # its rows do not count
                continue
            if entry.target not in (None, target.place):
                before, now = (str(place).removeprefix(".") for place in (entry.target, target.place))
                raise TruckFailed(
                    truck_table[0],
                    SinkError(
                        f"truck {truck_table[0]} has copied {truck_table[1]} to {before}, but its output is now {now}",
                        remedy=f"run `trucker reset --truck {truck_table[0]}`, then `trucker run`, which copies the "
                        f"table to {now}",
                        code="TRK418",
                    ),
                )

    def _forgotten(self, batch: Batch) -> dict[TruckTable, Entry]:
        if not batch.forget:
            return {}
        return {
            truck_table: replace(entry, phase=Phase.COPYING, lsn=Lsn(0), snapshot="")
            for truck_table, entry in self.entries.items()
            if truck_table[0] in batch.forget
        }

    def _moves(self, truck: str, lsn: Lsn) -> bool:
        stored = self.positions.get(truck)
        return stored is None or stored < lsn

    def _copy(self, batch: Batch, truck_table: TruckTable, target: Target) -> Copy | None:
        state, entry = batch.tables.get(truck_table), self.entries.get(truck_table)
        if state is None or state.phase is not Phase.COPYING:
            return None
        if entry is not None and entry.attempt == batch.snapshot != "":
            return None
        if target.shared and target.statement is None:
            return self._shared_copy(batch, truck_table, target)
        if entry is None or entry.target != target.place:
            return Copy(target, ours=False)
        if target.statement is not None and _whole(entry) and truck_table[0] in self.positions:
            raise _written_already(target)
        return Copy(target, ours=True, whole=_whole(entry))

    def _shared_copy(self, batch: Batch, truck_table: TruckTable, target: Target) -> Copy:
        """Of a table whose rows are among those of others only the first copy can be taken alone: what an earlier one
        brought cannot be told from the rest. All of a truck's together are copied anew as any table is."""
        adds, entry = self._adds(batch, truck_table, target), self.entries.get(truck_table)
        if adds and entry is not None and entry.target == target.table and _whole(entry):
            raise _mixed(target)
        ours = any(
            truck == truck_table[0] and entry.target == target.table for (truck, _), entry in self.entries.items()
        )
        return Copy(target, ours, whole=True, adds=adds)

    def _adds(self, batch: Batch, truck_table: TruckTable, target: Target) -> bool:
        """Whether other tables of the truck, which the batch does not copy, have their rows in the same table."""
        return target.shared and any(
            other[0] == truck_table[0]
            and other not in batch.tables
            and entry.target == target.place
            and entry.phase is not Phase.COPYING
            for other, entry in self.entries.items()
        )

    def _state_due(self, batch: Batch, truck_table: TruckTable, state: TableState) -> bool:
        entry = self.entries.get(truck_table)
        if entry is None:
            return True
        if state.phase is Phase.COPYING:
            return entry.attempt != batch.snapshot or not batch.snapshot
        if batch.snapshot:
            return self._copied_now(batch, truck_table)
        if truck_table in batch.leaving:
            # A truck that has moved on since has taken the table with it.
            return entry.phase is Phase.STREAMING and state.lsn >= self.positions.get(truck_table[0], Lsn(0))
        now, stored = (_ORDER[state.phase], state.lsn), (_ORDER[entry.phase], entry.lsn)
        # An incremental copy of a table goes on while nothing is committed at the source.
        return now > stored or (now == stored and state.cursor != entry.state.cursor)

    def _copied_now(self, batch: Batch, truck_table: TruckTable) -> bool:
        entry = self.entries.get(truck_table)
        if entry is None or entry.attempt != batch.snapshot:
            raise TruckFailed(
                truck_table[0],
                SinkError(
                    f"the copy {batch.snapshot} of table {truck_table[1]} was replaced by another attempt",
                    remedy="check that only one instance runs the project, then restart it",
                ),
                truck_table[1],
            )
        return entry.phase is Phase.COPYING

    def _rows_due(self, batch: Batch, truck_table: TruckTable) -> bool:
        """A table with a position of its own goes by that, any other by its truck's."""
        truck, table = truck_table
        state, entry = batch.tables.get(truck_table), self.entries.get(truck_table)
        if state is not None and state.phase is Phase.COPYING:
            return False
        if batch.snapshot:
            return self._copied_now(batch, truck_table)
        if state is not None and entry is not None and entry.phase is not Phase.STREAMING:
            return self._state_due(batch, truck_table, state)
        if truck in batch.positions:
            return self._moves(truck, batch.positions[truck])
        if state is None:
            raise SinkError(f"batch {batch.name} has rows for {table} of truck {truck} but no position to store")
        return self._state_due(batch, truck_table, state)


def _snapshot(batch: Batch, state: TableState, entry: Entry | None) -> str:
    """What the entry says of the copy. A table that is to be copied again has no attempt until one begins."""
    attempt = batch.snapshot or (entry.attempt if entry and state.phase is not Phase.COPYING else "")
    return f"{attempt}#{state.cursor}" if state.cursor else attempt


def _whole(entry: Entry) -> bool:
    """Whether the rows of a complete copy are there; one under way brings none before it ends, or half of them."""
    return entry.phase is not Phase.COPYING or not entry.snapshot


def _mixed(target: Target) -> TruckFailed:
    return TruckFailed(
        target.truck,
        SinkError(
            f"table {target.source.table} must be copied again, but {target.table} also holds rows of other tables",
            remedy=f"run `trucker reset --truck {target.truck}`, then `trucker run`, which empties "
            f"{target.table} and copies all of its tables again",
            code="TRK483",
        ),
    )


def _written_already(target: Target) -> TruckFailed:
    """What a statement did with the rows of an earlier copy is not known, so that it cannot be taken back. Once the
    whole truck has been reset, the operator is expected to have removed them."""
    return TruckFailed(
        target.truck,
        SinkError(
            f"table {target.source.table} must be copied again, but output.sql has already written its rows",
            remedy=f"remove the rows that output.sql has written, run `trucker reset --truck {target.truck}`, "
            "then `trucker run`",
            code="TRK484",
        ),
    )


def foreign_rows(target: Target) -> TruckFailed:
    """A copy cannot begin: the table holds rows that trucker did not write."""
    return TruckFailed(
        target.truck,
        SinkError(
            f"table {target.table} contains rows that trucker did not write, so it would not be a copy of "
            f"{target.source.table}",
            remedy=f"run at the destination: TRUNCATE {target.table.quoted}"
            "  (or name another table in the truck's output)",
            code="TRK410",
        ),
        target.source.table,
    )
