"""Cuts a batch into parts for tasks, and limits the size of the receipts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Final

from trucker.changelog.format.reference import BlockRef
from trucker.engine.task.payload import CopyPart, CopyShare, StreamPart
from trucker.sinks.batch import CARRIED

LEAST_PART: Final = 4 << 20
"""Fewer bytes of changes are not worth a separate task."""


RECEIPTS: Final = 32 << 20
"""The most bytes that the receipts of a batch bring to the driver, through Spark's JVM."""


FOLDS: Final = 0.5
"""Parts are joined only where folding leaves at most this share of their changes."""


PIECES: Final = 8
"""The most pieces of one task: a large transaction is spread over several tasks, however much it folds."""


CHUNK_WEIGHT: Final = 128 << 10
"""The fixed cost of a chunk, as the number of bytes that could be copied in its time."""


def consecutive(blocks: Sequence[BlockRef], part_bytes: int, cores: int = 1) -> list[StreamPart]:
    """The blocks cut into parts of one piece and about equal bytes, none larger than `part_bytes` and half a block.

    That bounds a task's memory (I9), inside a large transaction as well: parts are applied in their order. Where there
    is enough for it, every one of the `cores` has a part.
    """
    if len(blocks) == 1:
        return [StreamPart(0, (blocks,))]
    total = sum(block.bytes for block in blocks)
    share = total / max(1, -(-total // part_bytes), min(cores, total // LEAST_PART))
    cuts, size = [0], 0
    for position, block in enumerate(blocks):
        if size and size + block.bytes / 2 > share:
            cuts.append(position)
            size = 0
        size += block.bytes
    bounds = pairwise([*cuts, len(blocks)])
    return [StreamPart(index, (blocks[first:last],)) for index, (first, last) in enumerate(bounds)]


def joined(parts: Sequence[StreamPart], share: float) -> list[StreamPart]:
    """Fewer parts, of more pieces, where folding leaves only this share of a part's changes: changes of the same
    keys are then more often in one part, and the destination gets fewer rows.

    Memory stays that of a piece and little more (`fold_accumulator`).
    """
    if share > FOLDS or len(parts) < 2:
        return list(parts)
    tasks = max(1, ceil(len(parts) * share), ceil(len(parts) / PIECES))
    groups = [parts[len(parts) * task // tasks : len(parts) * (task + 1) // tasks] for task in range(tasks)]
    return [StreamPart(group[0].index, tuple(piece for part in group for piece in part.pieces)) for group in groups]


def copy_shares(parts: Sequence[CopyPart], tasks: int) -> list[CopyShare]:
    """Consecutive chunks for at most `tasks` tasks of about equal cost: their bytes, and a fixed cost per chunk."""
    weights = [part.chunk.bytes + CHUNK_WEIGHT for part in parts]
    whole, assigned = sum(weights), 0
    shares: dict[int, list[CopyPart]] = {}
    for part, weight in zip(parts, weights, strict=True):
        shares.setdefault((2 * assigned + weight) * tasks // (2 * whole), []).append(part)
        assigned += weight
    return [tuple(share) for share in shares.values()]


def room(parts: int, targets: int) -> int:
    """How much one receipt may carry, so that all of a batch's together stay within `RECEIPTS` (I9)."""
    return min(CARRIED, RECEIPTS // max(1, parts * targets))
