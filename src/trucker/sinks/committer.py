"""The framework around a sink: what is due, what is repeated, where parts are cut. It is the same for all sinks.

`stage_part` runs on executors, `Committer` on the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from trucker.change import TRUNCATE, Changes, CopiedRows, UnreadRows
from trucker.errors import SinkError, SinkUnavailable, TruckFailed
from trucker.sinks.base import Discards, RecognizesTables, Sink
from trucker.sinks.batch import Batch, Receipt, Receipts, TruckState, Work
from trucker.sinks.delivery import Delivery, OutdatedLedger
from trucker.sinks.ledger import Ledger
from trucker.sinks.output_sql import refuse_truncate
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable


class Committer:
    """One sink and the ledger of its destination.

    No other process publishes for the same trucks: the project's lock prevents it. A delivery of an earlier process may
    still take effect, though; the sink compares the ledger that is stored with the one it was planned with.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._ledger: Ledger | None = None

    def open(self) -> Mapping[str, TruckState]:
        """Connect, or connect again after a failure whose outcome is not known; what is stored there now."""
        self._ledger = None
        self._ledger = self.sink.open()
        return self._ledger.states()

    def prepare(self, target: Target) -> frozenset[str]:
        """See `Sink.prepare`. Raises for a table that the sink is not able to keep."""
        if (unable := unable_to_keep(self.sink, target)) is not None:
            raise unable
        return self.sink.prepare(target)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Make the batch visible and move the positions; what has been published before is left out (I4).

        Raises `TruckFailed`, having written nothing, when it can tell whose fault it was.
        """
        for _ in range(2):
            if self._ledger is None:
                self.open()
            assert self._ledger is not None
            plan = self._ledger.plan(batch)
            if plan.empty:
                if isinstance(receipts, Receipts):
                    receipts.settled()  # what a task stages after `discard` would stay
                self.discard(batch)
                return
            with suppress(OutdatedLedger):
                self._publish(Delivery(batch, self._ledger, plan, receipts))
                return
            self._ledger = None
        raise SinkUnavailable(
            "the positions at the destination change while a batch is published",
            remedy="check that only one instance runs the project; trucker retries",
            code="TRK416",
        )

    def _publish(self, delivery: Delivery) -> None:
        ledger, self._ledger = self._ledger, None
        try:
            self.sink.publish(delivery)
        except TruckFailed:
            self._ledger = ledger  # nothing was written
            raise
        self._ledger = delivery.ledger

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        """Stage one part here: executors have sinks of their own (`stage_part`)."""
        return stage_part(self.sink, work, changes)

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that will not be committed."""
        if isinstance(self.sink, Discards):
            self.sink.discard(batch)

    def changed_tables(self) -> Sequence[TableChange]:
        """Tables that are no longer the ones that were filled, of all trucks of the project."""
        return self.sink.changed_tables() if isinstance(self.sink, RecognizesTables) else ()

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        """Take these tables as they are now."""
        if isinstance(self.sink, RecognizesTables):
            self.sink.accept_tables(truck_tables)

    def close(self) -> None:
        self.sink.close()


def unable_to_keep(sink: Sink, target: Target) -> SinkError | None:
    """Why the sink's abilities do not allow for the table."""
    if sink.abilities.keyless or sink.abilities.every_change or target.source.key or target.statement:
        return None
    table = target.source.table
    return SinkError(
        f"table {table} has no key, and a {sink.name} destination keeps rows by key",
        remedy=f"run at the source: ALTER TABLE {table.quoted} ADD PRIMARY KEY (…), or leave the table out",
        code="TRK487",
    )


def stage_part(sink: Sink, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
    """Have the sink stage one part. A sink of net changes sees no truncate: what comes before one is staged for
    nothing, and the receipt says that the table is to be emptied."""
    if sink.abilities.every_change or isinstance(changes, UnreadRows):
        return sink.stage(work, changes)
    values = _BetweenTruncates(work.target, changes)
    rows = 0
    while True:
        receipt = sink.stage(work, values.run())
        rows += receipt.rows
        if not values.interrupted:
            return replace(receipt, rows=rows + values.truncates, truncates=values.truncates > 0)


class _BetweenTruncates:
    """The values of a part, cut where a truncate voids what came before it."""

    def __init__(self, target: Target, values: Iterator[Changes | CopiedRows]) -> None:
        self._target = target
        self._values = values
        self._rest: Changes | CopiedRows | None = None
        self.truncates = 0
        self.interrupted = False

    def run(self) -> Iterator[Changes | CopiedRows]:
        """The values up to the next truncate; `interrupted` says that there is one."""
        rest, self._rest, self.interrupted = self._rest, None, False
        if rest is not None:
            yield rest
        begun = rest is not None
        for value in self._values:
            before = self.truncates
            remainder = value if isinstance(value, CopiedRows) else self._cut(value)
            if self.truncates > before and begun:
                self._rest, self.interrupted = remainder, True
                return
            if remainder is not None:
                begun = True
                yield remainder

    def _cut(self, value: Changes) -> Changes | None:
        """What comes after the last truncate of a value."""
        truncates = np.flatnonzero(value.op == TRUNCATE)
        if not len(truncates):
            return value
        if self._target.shared or self._target.statement:
            refuse_truncate(self._target, value)
        self.truncates += len(truncates)
        rest = value.take(np.arange(int(truncates[-1]) + 1, len(value), dtype=np.int64))
        return rest if len(rest) else None
