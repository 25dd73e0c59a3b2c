"""A sink that fails as told, around any other.

    sink = FaultySink(MemorySink("shop"))
    sink.script("commit", Pass(), unavailable(), Fail(SinkError("full"), after=True))

The first commit passes, the second fails before anything is written, the third takes effect and then fails, as when a
connection is lost under COMMIT; every further one passes. Each method has a script of its own, worked off in
order. Scripts live in one process: a pickled copy has what was left of them when it was made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from trucker.change import Changes, CopiedRows, TableId
from trucker.errors import SinkUnavailable
from trucker.sinks.base import Batch, Receipt, Sink, Target, TruckState, Work
from trucker.sinks.table_identity import TableChange

Method = Literal["open", "prepare", "write", "commit", "discard", "changed_tables", "accept_tables", "close"]
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
        self.capabilities = inner.capabilities  # type: ignore[misc]

    def script(self, method: Method, *faults: Fault) -> None:
        """Add to what the next calls of `method` meet."""
        self._scripts.setdefault(method, deque()).extend(faults)

    @property
    def done(self) -> bool:
        """Whether every scripted fault has been met."""
        return not any(self._scripts.values())

    def open(self) -> Mapping[str, TruckState]:
        return self._call("open", self.inner.open)

    def prepare(self, target: Target) -> frozenset[str]:
        return self._call("prepare", lambda: self.inner.prepare(target))

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return self._call("write", lambda: self.inner.write(work, changes))

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._call("commit", lambda: self.inner.commit(batch, receipts))

    def discard(self, batch: Batch) -> None:
        self._call("discard", lambda: self.inner.discard(batch))

    def changed_tables(self) -> Sequence[TableChange]:
        return self._call("changed_tables", self.inner.changed_tables)

    def accept_tables(self, slots: Collection[tuple[str, TableId]]) -> None:
        self._call("accept_tables", lambda: self.inner.accept_tables(slots))

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
