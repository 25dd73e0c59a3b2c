"""The results of a job while it runs, so that the first parts are applied before the last are computed.

Tasks post their outcomes with an accumulator: Spark passes a task's posts to the driver when the task has succeeded,
once for each partition even if a task is repeated. One accumulator serves all jobs; a post has its job's number.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trucker.engine.spark.executor_entry import Posts

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

ResultT = TypeVar("ResultT")


class OutcomeStream(Generic[ResultT]):
    """The outcomes of `parts` parts as they arrive. Several threads may wait for them."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._outcomes: dict[int, ResultT] = {}
        self._over: BaseException | None = None
        self._news = threading.Condition()

    @classmethod
    def done(cls, outcomes: Sequence[ResultT]) -> OutcomeStream[ResultT]:
        """A stream whose outcomes have all arrived."""
        stream = cls(len(outcomes))
        stream._outcomes = dict(enumerate(outcomes))
        return stream

    def __len__(self) -> int:
        return self._parts

    @property
    def is_done(self) -> bool:
        """Whether all outcomes have arrived."""
        with self._news:
            return len(self._outcomes) == self._parts

    @property
    def over(self) -> bool:
        """Whether no more outcomes will arrive."""
        with self._news:
            return len(self._outcomes) == self._parts or self._over is not None

    def complete(self) -> bool:
        """Wait until no more outcomes will arrive. Returns whether all have."""
        with self._news:
            self._news.wait_for(lambda: len(self._outcomes) == self._parts or self._over is not None)
            return len(self._outcomes) == self._parts

    def put(self, part: int, outcome: ResultT) -> None:
        with self._news:
            self._outcomes.setdefault(part, outcome)
            self._news.notify_all()

    def end(self, reason: BaseException) -> None:
        """No more outcomes will arrive: a wait for a missing part raises the reason."""
        with self._news:
            self._over = reason
            self._news.notify_all()

    def __iter__(self) -> Iterator[ResultT]:
        """The outcomes in the parts' order, each as soon as it arrives."""
        for part in range(self._parts):
            # Without the lock: what has arrived stays.
            yield self._outcomes[part] if part in self._outcomes else self._of(part)

    def _of(self, part: int) -> ResultT:
        with self._news:
            self._news.wait_for(lambda: part in self._outcomes or self._over is not None)
            if part not in self._outcomes:
                assert self._over is not None
                raise self._over
            return self._outcomes[part]

    def wait(self, timeout: float) -> bool:
        """Wait for at most `timeout` seconds. Returns whether all outcomes have arrived."""
        with self._news:
            return self._news.wait_for(lambda: len(self._outcomes) == self._parts, timeout)


class ReportListener:
    """Passes posts on, those of each part once."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self._take = take
        self._parts: set[int] = set()

    def put(self, part: int, post: Any) -> None:
        if part not in self._parts:
            self._parts.add(part)
            self._take(post)


class Board:
    """Where tasks post outcomes; made once for a Spark context."""

    def __init__(self, context: SparkContext) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, OutcomeStream[Any] | ReportListener] = {}
        self.accumulator: Accumulator[Any] = context.accumulator(self, Posts())

    def open(self, parts: int) -> tuple[int, OutcomeStream[Any]]:
        """A job's number and where its outcomes will arrive."""
        number = next(self._numbers)
        self._waiting[number] = arriving = OutcomeStream[Any](parts)
        return number, arriving

    def listen(self, take: Callable[[Any], None]) -> int:
        """A job's number; `take` gets what each of its tasks posts."""
        number = next(self._numbers)
        self._waiting[number] = ReportListener(take)
        return number

    def close(self, job: int) -> None:
        del self._waiting[job]

    def extend(self, posts: Sequence[tuple[int, int, Any]]) -> None:
        """Deliver posts of `executor_entry.post_task` and `report_task`: job, part and post. A post of a job that has
        ended is ignored."""
        for job, part, outcome in posts:
            arriving = self._waiting.get(job)
            if arriving is not None:
                arriving.put(part, outcome)


_boards: weakref.WeakKeyDictionary[SparkContext, Board] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def board_of(context: SparkContext) -> Board:
    with _lock:
        if context not in _boards:
            _boards[context] = Board(context)
        return _boards[context]
