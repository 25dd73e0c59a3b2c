"""How a batch is cut into parts for tasks, and how much the receipt of a part may carry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Final

from trucker.changelog.format.reference import BlockRef
from trucker.engine.task.payload import CopyPart, CopyShare, StreamPart
from trucker.sinks.batch import CARRIED

LEAST_PART: Final = 4 << 20
"""Changes of fewer bytes are not worth a task of their own."""


RECEIPTS: Final = 32 << 20
"""The most bytes that the receipts of a batch bring to the driver, through Spark's JVM."""


FOLDS: Final = 0.5
"""Where more of a part's changes are left than this share, it is not worth while to look for more that fold."""


PIECES: Final = 8
"""The most pieces that one task works off: a large transaction is for several tasks however much it folds."""


CHUNK_WEIGHT: Final = 128 << 10
"""As many bytes could be copied in the time that a chunk takes beside its bytes."""


def consecutive(blocks: Sequence[BlockRef], part_bytes: int, cores: int = 1) -> list[StreamPart]:
    """The blocks cut into parts of one piece and about equal bytes, none larger than `part_bytes` and half a block.

    That bounds a task's memory (I9), inside a large transaction as well: parts are applied in their order. Where there
    is enough for it, every one of the `cores` has a part.
    """
    total = sum(block.bytes for block in blocks)
    share = total / max(1, -(-total // part_bytes), min(cores, total // LEAST_PART))
    cuts, done = [0], 0
    for position, block in enumerate(blocks):
        if done and done + block.bytes / 2 > share:
            cuts.append(position)
            done = 0
        done += block.bytes
    bounds = pairwise([*cuts, len(blocks)])
    return [StreamPart(index, (blocks[first:last],)) for index, (first, last) in enumerate(bounds)]


def joined(parts: Sequence[StreamPart], left: float) -> list[StreamPart]:
    """Fewer parts, of more pieces, where of the changes of a part only the share `left` is left when they are folded:
    changes of the same keys then meet in one part more often, and the destination gets fewer rows.

    Memory stays that of a piece and little more (`fold_accumulator`).
    """
    if left > FOLDS or len(parts) < 2:
        return list(parts)
    tasks = max(1, ceil(len(parts) * left), ceil(len(parts) / PIECES))
    groups = [parts[len(parts) * task // tasks : len(parts) * (task + 1) // tasks] for task in range(tasks)]
    return [StreamPart(own[0].index, tuple(piece for part in own for piece in part.pieces)) for own in groups]


def copy_shares(parts: Sequence[CopyPart], tasks: int) -> list[CopyShare]:
    """Consecutive chunks for so many tasks at the most, alike in what they cost: their bytes, and something for each
    chunk whatever its size."""
    weights = [part.chunk.bytes + CHUNK_WEIGHT for part in parts]
    whole, done = sum(weights), 0
    found: dict[int, list[CopyPart]] = {}
    for part, weight in zip(parts, weights, strict=True):
        found.setdefault((2 * done + weight) * tasks // (2 * whole), []).append(part)
        done += weight
    return [tuple(own) for own in found.values()]


def room(parts: int, targets: int) -> int:
    """How much one receipt may carry, so that all of a batch's together stay within `RECEIPTS` (I9)."""
    return min(CARRIED, RECEIPTS // max(1, parts * targets))
