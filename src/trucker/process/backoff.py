"""Waits longer after each failed attempt."""

from __future__ import annotations

import random
import threading


class Backoff:
    """Waits from `first` to `longest` seconds, doubling, with jitter so that many do not come back at once."""

    def __init__(self, first: float = 0.2, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self._next = first
        self.tries = 0

    def wait(self, stop: threading.Event) -> None:
        """Wait for the next try; returns at once when `stop` is set."""
        self.tries += 1
        stop.wait(self._next * random.uniform(0.8, 1.2))
        self._next = min(self._next * 2, self._longest)

    def reset(self) -> None:
        self._next = self._first
        self.tries = 0
