"""Commits at several destinations in parallel, so that a slow one does not delay the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trucker.engine.destination.destination import Destination
from trucker.errors import SinkUnavailable, TruckerError
from trucker.sinks.batch import Batch, Receipt


@dataclass(slots=True)
class DestinationCommit:
    """What one destination is to commit, and the result: `failures` is None while the commit runs."""

    destination: Destination
    batch: Batch
    receipts: Sequence[Receipt]
    failures: dict[str, TruckerError] | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def commit(self) -> None:
        try:
            self.failures = dict(self.destination.commit(self.batch, self.receipts))
        finally:
            self.done.set()

    def late(self, patience: float) -> dict[str, TruckerError]:
        reason = SinkUnavailable(
            f"{self.destination.name} has not committed {patience:g} s after the other destinations, which "
            "continue without it",
            remedy="none needed if it is only slow: its trucks catch up; otherwise check for locks there",
            code="TRK419",
        )
        return dict.fromkeys(self.batch.trucks, reason)


def commit_all(shares: Sequence[DestinationCommit], patience: float) -> dict[str, TruckerError]:
    """Commit every share; the errors by truck.

    Once one is done the others have `patience` seconds left. What takes longer goes on by itself, and its trucks fail
    in a way that passes: before they go on they ask the destination for its state, which waits for it (I4). With
    a single destination there is no deadline.
    """
    if len(shares) == 1:
        shares[0].commit()
    else:
        _side_by_side(shares, patience)
    failures: dict[str, TruckerError] = {}
    for share in shares:
        failures |= share.late(patience) if share.failures is None else share.failures
    return failures


def _side_by_side(shares: Sequence[DestinationCommit], patience: float) -> None:
    first = threading.Semaphore(0)

    def work(share: DestinationCommit) -> None:
        try:
            share.commit()
        finally:
            first.release()

    threads = [
        threading.Thread(target=work, args=[share], name=f"commit {share.destination.name}", daemon=True)
        for share in shares
    ]
    for thread in threads:
        thread.start()
    first.acquire()
    deadline = time.monotonic() + patience
    for share in shares:
        share.done.wait(max(0.0, deadline - time.monotonic()))
