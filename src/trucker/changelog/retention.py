"""Deletes segments that no truck needs any more."""

from __future__ import annotations

import time

from trucker.changelog.format.segment import Storage
from trucker.lsn import Lsn


def prune(storage: Storage, before: Lsn, *, keep_seconds: float | None = None, max_bytes: int | None = None) -> int:
    """Delete sealed segments from the oldest on; how many went.

    `before` is the position of the slowest truck: a segment goes only when every transaction with a part in it ends
    at or below that (I2), whatever else is asked for. Of such applied history

    - all goes where neither `keep_seconds` nor `max_bytes` is given;
    - a segment stays while it was last written less than `keep_seconds` ago,
    - but not more than the newest `max_bytes` of it stay, however young.

    With `max_bytes` alone that much applied history stays, however old. The segment being written always stays.
    """
    applied = []
    for segment in storage.segments():
        if segment.last is None or segment.last > before:
            break
        applied.append((segment, storage.modified(segment)))
    now = time.time()
    room = sum(segment.bytes for segment, _ in applied)
    gone = []
    for segment, modified in applied:
        over = max_bytes is not None and room > max_bytes
        wanted = (keep_seconds is not None and now - modified < keep_seconds) or (
            keep_seconds is None and max_bytes is not None
        )
        if wanted and not over:
            break
        room -= segment.bytes
        gone.append(segment)
    if gone:
        storage.delete_all(gone, before)
    return len(gone)
