"""A destination in the driver: one sink, used by one thread at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.truck.truck import Truck
from trucker.errors import SinkError, SinkUnavailable, TruckerError, TruckFailed
from trucker.sinks.base import FinishesCopies, ForeseesCopies, Sink
from trucker.sinks.batch import Batch, Receipt, Receipts, TruckState
from trucker.sinks.committer import Committer
from trucker.sinks.factory import make_sink
from trucker.sinks.letters import KeepsLetters
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable
from trucker.table import TableId

log = logging.getLogger("trucker.destination")


class Destination:
    """Owns the committing sink. Safe to call from the main lane and from lanes that catch up."""

    def __init__(self, spec: SinkSpec, sink: Sink | None = None) -> None:
        """`sink` is the one that commits, made by the spec if none is given; executors make theirs by the spec."""
        self.spec = spec
        self.name = spec.connection.name
        self.sink = sink or make_sink(spec.connection, spec.workspace)
        self._committer = Committer(self.sink)
        self.committed_at = -math.inf
        self._longest_wait = 0.0
        self._lost: tuple[float, TruckerError] | None = None
        self._lock = threading.RLock()
        self._prepared: dict[tuple[str, str], tuple[Target, frozenset[str]]] = {}

    def open(self) -> Mapping[str, TruckState]:
        """Connect, or connect again after a failure whose outcome is not known; what is stored there now."""
        with self._lock:
            self._prepared.clear()
            try:
                states = self._committer.open()
            except TruckerError as error:
                self._note(error)
                raise
            self._note(None)
            return states

    @property
    def keeps_changes(self) -> bool:
        """Whether it takes every change as it is, so that no row of it can be out of date."""
        return self.sink.abilities.every_change

    def fails_by_table(self, truck: Truck) -> bool:
        """Whether a table of the truck that fails is set aside alone. What keeps every change cannot copy again."""
        return truck.fails_by_table and not self.keeps_changes

    def prepare(self, target: Target) -> frozenset[str]:
        """Have the table ready for the target's shape, if it is not; the columns it has no place for.

        Does not wait where it is ready.
        """
        key = (target.truck, str(target.source.table))
        prepared = self._prepared.get(key)
        if prepared is not None and prepared[0] == target:
            return prepared[1]
        with self._lock:
            prepared = self._prepared.get(key)
            if prepared is None or prepared[0] != target:
                prepared = self._prepared[key] = (target, self.sink.prepare(target) or frozenset())
            return prepared[1]

    def forget_tables(self, truck: str, table: TableId | None = None) -> None:
        """Look at the truck's tables, or at one of them, anew when they are next prepared."""
        with self._lock:
            self._prepared = {
                truck_table: prepared
                for truck_table, prepared in self._prepared.items()
                if truck_table[0] != truck or (table is not None and truck_table[1] != str(table))
            }

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Mapping[str, TruckerError]:
        """Commit for as many trucks as it can; the errors of the others. Trucks without one are committed.

        A truck that fails for good is left out and the rest tried again, so that it does not stop them (I8).
        """
        failures: dict[str, TruckerError] = {}
        asked = time.monotonic()
        with self._lock:
            self._longest_wait = max(self._longest_wait, time.monotonic() - asked)
            while trucks := batch.trucks:
                try:
                    self._committer.commit(batch, receipts)
                    self.committed_at = time.monotonic()
                    self._note(None)
                    break
                except TruckFailed as error:
                    failures[error.truck] = error.reason
                    remaining = trucks - {error.truck}
                    try:
                        if isinstance(receipts, Receipts):
                            receipts, failed = receipts.settled()
                            failures = {**failed, **failures}
                    except TruckerError as missing:  # some receipt that was on its way will not come
                        return {**failures, **dict.fromkeys(remaining, missing)}
                    batch = batch.without(failures)
                    receipts = [receipt for receipt in receipts if receipt.truck not in failures]
                except TruckerError as error:
                    self._note(error)
                    return {**failures, **dict.fromkeys(trucks, error)}
                except Exception as error:
                    log.exception("sink failed unexpectedly", extra={"destination": self.name})
                    reason = SinkError(f"committing to {self.name} failed: {type(error).__name__}", code="TRK499")
                    return {**failures, **dict.fromkeys(trucks, reason)}
        return failures

    def longest_wait(self) -> float:
        """How many seconds a commit has waited for another one at most, since this was asked last."""
        with self._lock:
            longest, self._longest_wait = self._longest_wait, 0.0
        return longest

    def _note(self, error: TruckerError | None) -> None:
        """Log that the destination is lost, and when it is back."""
        if error is None and self._lost is not None:
            began, before = self._lost
            self._lost = None
            facts = {"interrupted_seconds": round(time.monotonic() - began, 1), "after": before.code}
            log.info("destination available again", extra={"destination": self.name, **facts})
        if isinstance(error, SinkUnavailable):
            if self._lost is None or (self._lost[1].code, self._lost[1].message) != (error.code, error.message):
                log.warning("destination unavailable", extra={"destination": self.name, **error.facts()})
            self._lost = (self._lost[0] if self._lost else time.monotonic(), error)

    @contextmanager
    def using(self) -> Iterator[Sink]:
        """The sink that commits, for a look at what is there; commits wait meanwhile."""
        with self._lock:
            yield self.sink

    def discard(self, batch: Batch) -> None:
        """Have what was staged for the batch taken away: it is not going to be committed."""
        with suppress(TruckerError), self._lock:
            self._committer.discard(batch)

    def changed_tables(self) -> Sequence[TableChange]:
        """Tables that are no longer the ones that were filled."""
        with self._lock:
            return self._committer.changed_tables()

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        """Take these tables as they are now."""
        with self._lock:
            self._committer.accept_tables(truck_tables)

    def expect_copies(self, sizes: Mapping[TruckTable, int]) -> None:
        """Say how many bytes the copies that begin with the next commit will bring, about."""
        if isinstance(self.sink, ForeseesCopies):
            with self._lock:
                self.sink.expect_copies(sizes)

    def unfinished(self, receipts: Sequence[Receipt]) -> set[TruckTable]:
        """The tables of these receipts for which the sink has work to do before their copies are committed."""
        sink = self.sink
        return (
            {each.truck_table for each in receipts if sink.unfinished(each)}
            if isinstance(sink, FinishesCopies)
            else set()
        )

    def letters(self, truck: str) -> int:
        """How many dead letters a truck has, as far as the sink has seen."""
        return self.sink.letters.get(truck, 0) if isinstance(self.sink, KeepsLetters) else 0

    def close(self) -> None:
        with self._lock:
            self.sink.close()
