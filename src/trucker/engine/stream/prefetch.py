"""Stages the next range of the log while the current one is committed.

What tasks make of a range depends on the range and on its targets, and on nothing that a commit changes. So while a
destination is at work on a batch, the executors can be at work on the next one. What the next one will be is a guess:
the same targets as before. When its turn comes it is planned as usual, and what was made ahead counts only where the
plan is what was guessed; otherwise it is made anew, and what is left of the guess goes.

Who calls: the main lane, one range at a time. What may fail: a task, as ever, and then the range's commit finds it so;
the guess itself, and then there is none. After a crash nothing of this is left but staged rows, which go at the start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.batch_runner import Staging
from trucker.engine.task.payload import Outcome
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch

log = logging.getLogger("trucker.ahead")

Guess = Callable[[], Staging | None]


@dataclass(slots=True, eq=False)
class _Prefetched:
    staging: Staging
    arriving: OutcomeStream[Outcome]


class Prefetch:
    """At most one range, made ahead of its turn."""

    def __init__(
        self, stage: Callable[[Staging], OutcomeStream[Outcome]], drop: Callable[[Mapping[str, Batch]], None]
    ) -> None:
        """`stage` starts the tasks; `drop` takes away what they staged of batches that will not be committed."""
        self._stage = stage
        self._drop = drop
        self._lock = threading.Lock()
        self._turn = 0
        self._begun = False
        self._prefetched: _Prefetched | None = None
        self._unused: list[_Prefetched] = []
        self._requests: SimpleQueue[tuple[int, OutcomeStream[Outcome], Guess] | None] = SimpleQueue()
        # One for all, which keeps what it knows of the log; a daemon, since a process that ends waits for no guess.
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    @property
    def end(self) -> Lsn | None:
        """Where the range ends that has been made, or is being made."""
        if not self._begun:
            return None
        with self._lock:
            return self._prefetched.staging.end if self._prefetched else None

    def begin(self, before: OutcomeStream[Outcome], guess: Guess) -> None:
        """Make what `guess` gives as soon as all outcomes of `before` are there, unless its turn comes earlier."""
        with self._lock:
            self._turn += 1
            self._begun = True
            self._requests.put((self._turn, before, guess))

    def _run(self) -> None:
        while request := self._requests.get():
            self._make(*request)

    def _make(self, turn: int, before: OutcomeStream[Outcome], guess: Guess) -> None:
        try:
            if not before.complete():
                return
            with self._lock:
                if turn != self._turn:
                    return
                staging = guess()
                if staging is not None:
                    self._prefetched = _Prefetched(staging, self._stage(staging))
        except Exception as error:  # the range meets the error again, and reports it, in its turn
            log.debug("next range cannot be staged ahead", extra={"reason": type(error).__name__})

    def take(self, staging: Staging | None) -> OutcomeStream[Outcome] | None:
        """The outcomes of what was made, if that is it; None if it is not, or nothing was. Nothing is made ahead then,
        before it is begun anew."""
        if not self._begun:
            return None
        with self._lock:
            self._turn += 1
            self._begun = False
            prefetched, self._prefetched = self._prefetched, None
        if prefetched is None:
            return None
        if staging is not None and prefetched.staging.same(staging):
            return prefetched.arriving
        self._unused.append(prefetched)
        return None

    def passed(self, end: Lsn) -> None:
        """All up to `end` is committed: what was staged before it and not used can go."""
        if not self._unused:
            return
        dropped = [
            prefetched for prefetched in self._unused if prefetched.staging.end <= end and prefetched.arriving.over
        ]
        self._unused = [prefetched for prefetched in self._unused if prefetched not in dropped]
        for prefetched in dropped:
            self._drop(prefetched.staging.batch.batches)

    def close(self) -> None:
        """Begin nothing more."""
        self.take(None)
        self._requests.put(None)
