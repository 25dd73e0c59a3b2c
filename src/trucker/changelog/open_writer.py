"""Opens the writer of a location."""

from __future__ import annotations

from typing import TypeAlias

from trucker.changelog.folder.writer import SEGMENT_BYTES, LogWriter
from trucker.changelog.identity import SourceIdentity
from trucker.changelog.location import LogLocation, ObjectLocation
from trucker.changelog.objects.object_writer import PUT_EVERY, ObjectWriter

Writer: TypeAlias = LogWriter | ObjectWriter


def open_writer(
    location: LogLocation,
    source: SourceIdentity,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    put_every: float = PUT_EVERY,
    lock_seconds: float = 0.0,
) -> Writer:
    """Open the log of a source for writing; `segment_bytes` is for a folder, `put_every` for objects."""
    if isinstance(location, ObjectLocation):
        return ObjectWriter(location, source, put_every=put_every, lock_seconds=lock_seconds)
    return LogWriter(location, source, segment_bytes=segment_bytes, lock_seconds=lock_seconds)
