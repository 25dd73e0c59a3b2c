"""When the transactions of the change log were committed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trucker.change import Frames
from trucker.changelog.format.block import EPOCH
from trucker.pg.messages import COMMIT

# Kind, flags, the commit's LSN, its end LSN, its time.
_END_AT, _TIME_AT, _BYTES = 10, 18, 26


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """Commits in log order: the LSN at which each ends, and when it was made, in microseconds since 1970."""

    ends: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)


def commit_times(frames: Frames) -> CommitTimes:
    """The transactions that end in a run of messages. The clock of the source may have been set back: times are not
    always in order."""
    starts = frames.starts[:-1]
    commits = starts[frames.payload[starts] == COMMIT[0]]
    cells = frames.payload[commits[:, None] + np.arange(_END_AT, _BYTES)]
    numbers = np.ascontiguousarray(cells).view(">u8").reshape(-1, 2)
    return CommitTimes(numbers[:, 0].astype(np.uint64), numbers[:, 1].astype(np.int64) + EPOCH)
