"""A sink that fails as scripted, around any other.

    sink = FaultySink(MemorySink("shop"))
    sink.script("publish", Pass(), unavailable(), Fail(SinkError("full"), after=True))

The first call passes, the second fails before anything is written, the third takes effect and then fails, as when a
connection is lost under COMMIT; every further one passes. Each method has a separate script, used up in order. Scripts
live in one process: a pickled copy has what remained of them when it was pickled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from trucker.change import Changes, CopiedRows
from trucker.errors import SinkUnavailable
from trucker.sinks.base import Discards, FinishesCopies, ForeseesCopies, RecognizesTables, Sink
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.delivery import Delivery
from trucker.sinks.ledger import Ledger
from trucker.sinks.table_identity import TableChange
from trucker.sinks.target import Target, TruckTable

Method = Literal[
    "open",
    "prepare",
    "stage",
    "publish",
    "close",
    "discard",
    "changed_tables",
    "accept_tables",
    "expect_copies",
    "unfinished",
    "finish_copy",
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pass:
    """No fault: for the calls before one."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise `error`, before the call or, with `after`, once it has taken effect."""

    error: BaseException
    after: bool = False


class Hang:
    """Stay in the call, before it takes effect, until `release`. Does not pickle."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_reached(self, timeout: float = 20.0) -> None:
        """Return once a call hangs here."""
        if not self._reached.wait(timeout):
            raise TimeoutError("no call has reached the fault")

    def release(self) -> None:
        self._released.set()

    def hold(self) -> None:
        self._reached.set()
        self._released.wait()


Fault = Pass | Fail | Hang


def unavailable(*, after: bool = False) -> Fail:
    """The destination is away for this call; with `after` the call took effect before it went."""
    return Fail(
        SinkUnavailable("scripted: the destination is away", remedy="none needed: trucker retries"),
        after,
    )


class FaultySink(Sink):
    """Guarantee: the wrapped sink's."""

    name = "faulty"

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.calls: list[Method] = []
        self._scripts: dict[Method, deque[Fault]] = {}
        self.abilities = inner.abilities  # type: ignore[misc]

    def script(self, method: Method, *faults: Fault) -> None:
        """Add to what the next calls of `method` meet."""
        self._scripts.setdefault(method, deque()).extend(faults)

    @property
    def done(self) -> bool:
        """Whether every scripted fault has been met."""
        return not any(self._scripts.values())

    def open(self) -> Ledger:
        return self._call("open", self.inner.open)

    def prepare(self, target: Target) -> frozenset[str]:
        return self._call("prepare", lambda: self.inner.prepare(target))

    def stage(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return self._call("stage", lambda: self.inner.stage(work, changes))

    def publish(self, delivery: Delivery) -> None:
        self._call("publish", lambda: self.inner.publish(delivery))

    def discard(self, batch: Batch) -> None:
        if isinstance(inner := self.inner, Discards):
            self._call("discard", lambda: inner.discard(batch))

    def changed_tables(self) -> Sequence[TableChange]:
        inner = self.inner
        return self._call("changed_tables", inner.changed_tables) if isinstance(inner, RecognizesTables) else ()

    def accept_tables(self, truck_tables: Collection[TruckTable]) -> None:
        if isinstance(inner := self.inner, RecognizesTables):
            self._call("accept_tables", lambda: inner.accept_tables(truck_tables))

    def expect_copies(self, sizes: Mapping[TruckTable, int]) -> None:
        if isinstance(inner := self.inner, ForeseesCopies):
            self._call("expect_copies", lambda: inner.expect_copies(sizes))

    def unfinished(self, receipt: Receipt) -> bool:
        inner = self.inner
        return isinstance(inner, FinishesCopies) and self._call("unfinished", lambda: inner.unfinished(receipt))

    def finish_copy(self, target: Target) -> None:
        if isinstance(inner := self.inner, FinishesCopies):
            self._call("finish_copy", lambda: inner.finish_copy(target))

    def close(self) -> None:
        self._call("close", self.inner.close)

    def _call(self, method: Method, function: Callable[[], T]) -> T:
        self.calls.append(method)
        script = self._scripts.get(method)
        fault = script.popleft() if script else Pass()
        if isinstance(fault, Hang):
            fault.hold()
        if isinstance(fault, Fail) and not fault.after:
            raise fault.error
        result = function()
        if isinstance(fault, Fail):
            raise fault.error
        return result
