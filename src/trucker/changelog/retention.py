"""Deletes segments that no truck needs any more."""

from __future__ import annotations

import time

from trucker.changelog.format.segment import Storage
from trucker.lsn import Lsn


def prune(storage: Storage, before: Lsn, *, keep_seconds: float | None = None, max_bytes: int | None = None) -> int:
    """Delete sealed segments from the oldest on. Returns how many.

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
    kept_bytes = sum(segment.bytes for segment, _ in applied)
    expired = []
    for segment, modified in applied:
        over = max_bytes is not None and kept_bytes > max_bytes
        retained = (keep_seconds is not None and now - modified < keep_seconds) or (
            keep_seconds is None and max_bytes is not None
        )
        if retained and not over:
            break
        kept_bytes -= segment.bytes
        expired.append(segment)
    if expired:
        storage.delete_all(expired, before)
    return len(expired)
