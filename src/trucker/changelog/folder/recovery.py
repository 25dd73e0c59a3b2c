"""Repairs the end of a log in a folder after a crash, before anything is written again.

Sealed segments are never touched. In the segments still open every block is checked. What lies after the last
complete block (torn, or of a transaction that never finished) was never acknowledged and is cut off: the source sends
it again. A block that is damaged before the end the durable file names is another matter, and an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trucker.changelog.format.durable import Durable, unreadable
from trucker.changelog.format.scan import DamagedBlockError, damaged, heads
from trucker.changelog.format.segment import Folder, Segment, SegmentId, check_chain, check_reaches
from trucker.errors import ChangeLogError
from trucker.lsn import ZERO, Lsn


@dataclass(frozen=True, slots=True)
class _Complete:
    """The end of the last complete block, and the commit it ends with or follows."""

    segment: SegmentId
    offset: int
    end: int
    commit_time: int


def recover(folder: Folder, recorded: Durable | None) -> Durable:
    """Cut off what is unfinished, seal what is left, and say how far the log goes."""
    segments, unsealed, complete = survey(folder, recorded)
    _cut(folder, unsealed, complete)
    sealed = segments[: len(segments) - len(unsealed)]
    return _durable_end(folder, recorded, complete or _sealed_end(folder, sealed))


def survey(folder: Folder, recorded: Durable | None) -> tuple[list[Segment], list[Segment], _Complete | None]:
    """All segments, those still open, and where the last complete block ends. Raises for damage; changes nothing."""
    segments = folder.segments()
    check_chain(folder.path, segments)
    check_reaches(folder.path, segments, recorded.segment if recorded else None)
    unsealed = [segment for segment in segments if segment.last is None]
    if unsealed != segments[len(segments) - len(unsealed) :]:
        raise ChangeLogError(
            f"the segments in {folder.path} are out of order: {unsealed[0].name} is open, a later one is sealed",
            code="TRK303",
            remedy="restore the files; or run `trucker reset`, then `trucker run`, which copies the tables again",
        )
    return segments, unsealed, _last_complete(folder, unsealed, recorded)


def _last_complete(folder: Folder, unsealed: list[Segment], recorded: Durable | None) -> _Complete | None:
    """Walk the open segments, every checksum checked, up to the first block that is not whole."""
    complete = None
    promised = (recorded.segment, recorded.offset) if recorded else (SegmentId(0, 0), 0)
    for segment in unsealed:
        content = folder.open(segment.id)
        try:
            for offset, head in heads(content, 0, folder.size(segment), bodies=True):
                if not head.ends_open:
                    complete = _Complete(segment.id, offset + head.bytes, head.end, head.commit_time)
        except DamagedBlockError as damage:
            if (segment.id, damage.offset) < promised:
                raise damaged(folder.path / segment.name, damage.offset, str(damage)) from None
            break
        finally:
            content.close()
        if segment.id == promised[0] and (complete is None or (complete.segment, complete.offset) < promised):
            raise damaged(
                folder.path / segment.name,
                folder.size(segment),
                f"the file ends here, but was durable up to {promised[1]}",
            )
    return complete


def _cut(folder: Folder, unsealed: list[Segment], complete: _Complete | None) -> None:
    """Delete from the end backwards, so that a crash in the middle leaves a chain without gaps; then seal."""
    for segment in reversed(unsealed):
        if complete is None or segment.id > complete.segment:
            folder.delete(segment)
        else:
            if segment.id == complete.segment and folder.size(segment) > complete.offset:
                folder.truncate(segment, complete.offset)
    if complete is not None:
        for segment in unsealed:
            if segment.id <= complete.segment:
                folder.seal(segment, complete.end)
    folder.sync()


def _sealed_end(folder: Folder, sealed: list[Segment]) -> _Complete | None:
    if not sealed:
        return None
    segment = sealed[-1]
    return _Complete(segment.id, folder.size(segment), segment.last or 0, 0)


def _durable_end(folder: Folder, recorded: Durable | None, complete: _Complete | None) -> Durable:
    """The further of what the durable file says and what the segments show; after a crash of the machine it may lag."""
    if complete is None:
        if recorded is None:
            raise unreadable(folder.path)
        return recorded
    if recorded is not None and (recorded.segment, recorded.offset) >= (complete.segment, complete.offset):
        return recorded
    end = Lsn(max(complete.end, recorded.commit_lsn if recorded else ZERO))
    durable = Durable(end, end, complete.commit_time, complete.segment, complete.offset)
    return replace(durable, seen_lsn=max(end, recorded.seen_lsn)) if recorded else durable
