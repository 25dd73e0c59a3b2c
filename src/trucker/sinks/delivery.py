"""What a sink is to publish: a batch, without what has been published before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trucker.sinks.batch import Batch, Receipt, Receipts
from trucker.sinks.ledger import Copy, Ledger, Plan
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId


class OutdatedLedger(Exception):
    """The destination stores another ledger than the delivery was planned with. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be applied to the table of one target: empty it first if `truncates`, then the parts in order.

    `copied` says that the rows are those of a complete copy: they replace the table's rows, unless the copy `adds` to
    those of other source tables.
    """

    target: Target
    parts: tuple[Receipt, ...]
    truncates: bool = False
    copied: bool = False
    adds: bool = False

    @property
    def rows(self) -> int:
        return sum(receipt.rows for receipt in self.parts)

    @property
    def replaces(self) -> bool:
        """Whether what the table holds now goes."""
        return self.truncates or (self.copied and not self.adds)


@dataclass(frozen=True)
class Delivery:
    """One batch as far as it is due. `before` is the ledger that it was planned with, `plan` what changes in it."""

    batch: Batch
    before: Ledger
    plan: Plan
    receipts: Sequence[Receipt]

    @property
    def name(self) -> str:
        """Unique among all batches and attempts of a project that may differ in content."""
        return self.batch.name

    @property
    def snapshot(self) -> str:
        """The name of the copy whose beginning or end this is; empty for changes."""
        return self.batch.snapshot

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Copies that begin: `Copy` says what may be done to the rows that the table holds."""
        return self.plan.copies

    @property
    def ledger(self) -> Ledger:
        """The ledger to store."""
        return self.before.after(self.plan)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The targets that have something to apply, if only that their copy is complete."""
        return tuple([target for target in self.batch.targets if target.truck_table in self.plan.apply])

    def verify(self, stored: Ledger) -> Ledger:
        """The ledger to store instead of `stored`. Raises `OutdatedLedger` unless `stored` agrees with `before` in all
        that the delivery changes.

        In the rest it may be newer, as after a commit whose answer was lost: `ledger` would take that back.
        """
        trucks = {*self.plan.positions, *self.plan.forgotten}
        truck_tables = self.plan.entries
        if any(stored.positions.get(truck) != self.before.positions.get(truck) for truck in trucks) or any(
            stored.entries.get(truck_table) != self.before.entries.get(truck_table) for truck_table in truck_tables
        ):
            raise OutdatedLedger
        return stored.after(self.plan)

    def loads(self) -> list[Load]:
        """What to apply, in order. Of targets that share a table it is a load for each part, in the parts' order: a row
        may leave one source table and come to another."""
        whole = self.loads_of(self.receipts)
        alone = [load for load in whole if not load.target.shared or load.copied]
        shared = [(load, receipt) for load in whole if load.target.shared and not load.copied for receipt in load.parts]
        shared.sort(key=lambda each: each[1].part)
        return alone + [replace(load, parts=(receipt,), truncates=False) for load, receipt in shared]

    def loads_of(self, receipts: Sequence[Receipt]) -> list[Load]:
        """The loads of these receipts, one for each target that is due."""
        by_table: dict[TruckTable, list[Receipt]] = defaultdict(list)
        for receipt in receipts:
            by_table[receipt.truck_table].append(receipt)
        return [self._load(target, by_table[target.truck_table]) for target in self.targets]

    def loads_by_part(self) -> Iterator[list[Load]]:
        """Those of each part, as soon as it is staged; parts that come later may still be under way."""
        parts = self.receipts.by_part() if isinstance(self.receipts, Receipts) else [self.receipts]
        for receipts in parts:
            yield self.loads_of(receipts)

    def replaced(self) -> list[Target]:
        """A target of each table that is to be emptied before the loads are applied."""
        loads = self.loads_of(self.receipts)
        keep = {load.target.table for load in loads if load.adds}
        tables: dict[TableId, Target] = {}
        for load in loads:
            if load.replaces and load.target.table not in keep:
                tables.setdefault(load.target.table, load.target)
        return list(tables.values())

    def without(self, truck: str) -> Delivery:
        """The delivery of the other trucks. Waits for all receipts."""
        plan = self.plan
        entries: Mapping[TruckTable, object] = plan.entries
        return Delivery(
            self.batch.without([truck]),
            self.before,
            replace(
                plan,
                copies=tuple(copy for copy in plan.copies if copy.target.truck != truck),
                apply=frozenset(truck_table for truck_table in plan.apply if truck_table[0] != truck),
                positions={name: lsn for name, lsn in plan.positions.items() if name != truck},
                entries={truck_table: plan.entries[truck_table] for truck_table in entries if truck_table[0] != truck},
                forgotten=plan.forgotten - {truck},
                adds=frozenset(truck_table for truck_table in plan.adds if truck_table[0] != truck),
            ),
            [receipt for receipt in self.receipts if receipt.truck != truck],
        )

    def _load(self, target: Target, receipts: Sequence[Receipt]) -> Load:
        """Parts in order, from the last truncate on: what came before it is void."""
        parts = sorted(receipts, key=lambda receipt: receipt.part)
        last = max([number for number, receipt in enumerate(parts) if receipt.truncates], default=None)
        return Load(
            target,
            tuple(parts[last or 0 :]),
            truncates=last is not None,
            copied=bool(self.snapshot),
            adds=target.truck_table in self.plan.adds,
        )
