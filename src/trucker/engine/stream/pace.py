"""How the main lane and the others keep step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pace:
    """What is near, what is worth while, and how long nothing is written."""

    quiet_commit_seconds: float = 10.0
    """A range without a change for any truck is committed when the last commit is so long ago."""
    worth_share: int = 4
    """A range is staged ahead of its turn if it has this share of the largest batch: small ones are quick, and what a
    batch costs whatever its size is shared by more rows when it is given the time to grow."""
    near_bytes: int = 4 << 20
    """A lane that lacks no more than twice this takes the main lane's turn to join."""
    wait_seconds: float = 0.1
    """A table that has caught up before its truck looks again after so long."""
    workers_after_seconds: float = 10.0
    """Spark's workers are started so long after the stream, if nothing has needed them before: the driver does small
    batches alone. They take two seconds of CPU to start: a run that ends sooner does without."""


PACE: Final = Pace()
