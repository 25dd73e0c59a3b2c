"""The receipts of a destination, while the tasks that make them are still running."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import overload

from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.task.payload import Outcome
from trucker.errors import TruckerError, TruckFailed
from trucker.sinks.batch import Receipt, Receipts


class ArrivingReceipts(Receipts):
    """A destination's share of what arrives. `trucks` are those whose failures concern it."""

    def __init__(self, destination: str, trucks: Collection[str], arriving: OutcomeStream[Outcome]) -> None:
        self._destination = destination
        self._trucks = trucks
        self._arriving = arriving

    def by_part(self) -> Iterator[Sequence[Receipt]]:
        for outcome in self._arriving:
            for failure in outcome.failures:
                if failure.truck in self._trucks:
                    raise TruckFailed(failure.truck, failure.error)
            yield outcome.receipts.get(self._destination, ())

    def settled(self) -> tuple[list[Receipt], dict[str, TruckerError]]:
        receipts: list[Receipt] = []
        failed: dict[str, TruckerError] = {}
        for outcome in self._arriving:
            receipts += outcome.receipts.get(self._destination, ())
            for failure in outcome.failures:
                # a permanent reason says more than a passing one
                if failure.truck in self._trucks and (failure.truck not in failed or failed[failure.truck].transient):
                    failed[failure.truck] = failure.error
        return receipts, failed

    @cached_property
    def _all(self) -> list[Receipt]:
        return [receipt for part in self.by_part() for receipt in part]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, place: int) -> Receipt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Receipt]: ...
    def __getitem__(self, place: int | slice) -> Receipt | Sequence[Receipt]:
        return self._all[place]
