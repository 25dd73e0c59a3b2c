"""The work of a source's run that goes on beside it: lanes, copies, the loop over batches, what watches catalogues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trucker.engine.snapshot.copier import Need
from trucker.engine.stream.lane import LaneRunner
from trucker.engine.stream.source_stream import SourceStream
from trucker.engine.truck.lane import Lane

log = logging.getLogger("trucker.source")


class Watching(Protocol):
    """Looks at something now and then, until it is to stop."""

    def run(self, stop: threading.Event) -> None: ...


class SourceWork(Protocol):
    """Has the work done that a source's run decides on. None of the methods waits for it."""

    @property
    def fatal(self) -> Exception | None:
        """An error of the program in some of the work, which ends the project."""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Have something done once."""

    def run_lane(self, lane: Lane, runner: LaneRunner, ended: Callable[[], None]) -> None:
        """Have a lane catch up; `ended` is called when it has joined, or is over."""

    def copy(self, needs: Sequence[Need], work: Callable[[], None]) -> None:
        """Have tables copied by `work`."""

    def follow(self, stream: SourceStream, watches: Mapping[str, Watching]) -> None:
        """Start the loop over batches, and what watches beside it, each by its name."""

    def alive(self) -> list[threading.Thread]:
        """The threads that are at work, but for those that only watch."""


class SourceThreads:
    """A thread for each piece of the work of a source; `stop` ends them."""

    def __init__(self, source: str, stop: threading.Event) -> None:
        self.fatal: Exception | None = None
        self._source = source
        self._stop = stop
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.fatal = error
                log.exception("thread failed", extra={"source": self._source, "task": name})

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        with self._starting:
            self._threads = [*self.alive(), thread]
            thread.start()

    def run_lane(self, lane: Lane, runner: LaneRunner, ended: Callable[[], None]) -> None:
        def work() -> None:
            try:
                # One that did not join still needs the log from where it is, as its tables do at the next start.
                if runner.run(self._stop) or lane.over:
                    ended()
            finally:
                lane.working.clear()

        lane.working.set()
        self.start(f"lane {lane.name}", work)

    def copy(self, needs: Sequence[Need], work: Callable[[], None]) -> None:
        self.start(f"copy {self._source}", work)

    def follow(self, stream: SourceStream, watches: Mapping[str, Watching]) -> None:
        stream.start(once=False)
        for name, watch in watches.items():
            thread = threading.Thread(target=watch.run, args=[self._stop], name=f"{name} {self._source}", daemon=True)
            thread.start()

    def alive(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]
