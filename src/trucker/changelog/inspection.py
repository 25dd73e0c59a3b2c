"""Checks that a log is complete before anything depends on it. Changes nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from trucker.changelog.durable_end import end_reader
from trucker.changelog.folder.recovery import survey
from trucker.changelog.format.scan import DamagedBlockError, damaged, heads
from trucker.changelog.format.segment import Folder, Segment, check_chain
from trucker.changelog.location import LogLocation, ObjectLocation, truth_of
from trucker.changelog.reader import LogReader
from trucker.lsn import Lsn

READ_BYTES: Final = 256 << 20
"""Of what is read next, so many bytes are verified by their checksums; of the rest only the sizes. A log may hold days
of changes, and each read of a block verifies it anyway."""


def refuse_damaged(location: LogLocation, start: Lsn | None, *, writing: bool) -> None:
    """Raise where the log is incomplete or damaged after `start`; `start` is None where no truck needs the log.

    `writing`: capture is running. Open segments, and segments pruned meanwhile, are not checked then.
    """
    if isinstance(location, ObjectLocation):
        LogReader(truth_of(location)).oldest()
        return
    folder = Folder(location)
    recorded = end_reader(location).read()
    if writing:
        check_chain(location, folder.segments())
    else:
        survey(folder, recorded)
    room = READ_BYTES
    for segment in folder.segments():
        if segment.last is None or start is None or segment.last <= start:
            continue
        try:
            _refuse_short(location, folder, segment)
            if room > 0:
                _refuse_damaged(location, folder, segment)
        except FileNotFoundError:
            if not writing:
                raise
        room -= segment.bytes


def _refuse_short(location: Path, folder: Folder, segment: Segment) -> None:
    size = folder.size(segment)
    if size != segment.bytes:
        raise damaged(location / segment.name, size, f"the file ends here, but had {segment.bytes} bytes")


def _refuse_damaged(location: Path, folder: Folder, segment: Segment) -> None:
    with closing(folder.open(segment.id)) as content:
        try:
            for _ in heads(content, 0, segment.bytes, bodies=True):
                pass
        except DamagedBlockError as damage:
            raise damaged(location / segment.name, damage.offset, str(damage)) from None
