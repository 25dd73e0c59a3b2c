"""Opens the storage of a location."""

from __future__ import annotations

from collections.abc import Sequence

from trucker.changelog.format.durable import Durable
from trucker.changelog.format.segment import Folder, Segment, Storage, check_chain, check_reaches
from trucker.changelog.location import LogLocation, ObjectLocation


def open_storage(location: LogLocation) -> Storage:
    """The storage of a log. Reads nothing and connects to nothing yet."""
    if isinstance(location, ObjectLocation):
        from trucker.changelog.objects.object_chain import Objects

        return Objects(location)
    return Folder(location)


def check_whole(location: LogLocation, segments: Sequence[Segment], durable: Durable) -> None:
    """Refuse a log with a segment missing in the middle, or at its end.

    Objects before a missing one do not belong to the log (`object_chain`), so there only the end is checked.
    """
    if not isinstance(location, ObjectLocation):
        check_chain(location, segments)
    check_reaches(location, segments, durable.segment if durable.offset else None)
