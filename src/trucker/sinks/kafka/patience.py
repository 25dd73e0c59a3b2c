"""How long to wait for a broker, in slices in which callbacks run."""

from __future__ import annotations

import time
from typing import Final

_SLICE: Final = 0.5


class Patience:
    """A wait that began now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    @property
    def left(self) -> float:
        return max(0.05, self._end - time.monotonic())

    @property
    def slice(self) -> float:
        """How long to wait at once."""
        return min(_SLICE, self.left)
