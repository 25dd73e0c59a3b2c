"""Creating and deleting a change log."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trucker import private
from trucker.changelog.format.durable import Durable, DurableFile
from trucker.changelog.format.segment import Folder
from trucker.changelog.identity import FILE, SourceIdentity, check_source, log_exists
from trucker.changelog.location import LogLocation, ObjectLocation
from trucker.errors import ChangeLogError, ChangeLogFull
from trucker.file_errors import explaining
from trucker.lsn import Lsn

if TYPE_CHECKING:
    from trucker.changelog.bucket import Bucket

PROBE: Final = "probe"


def create_log(place: LogLocation, source: SourceIdentity, start: Lsn) -> None:
    """Make an empty log that begins at `start`, the slot's confirmed position; a log of the same source stays as it is.

    Called once, when the slot is made (or adopted): capture never makes a log by itself, because a log that
    is missing while the slot has moved on is lost data.
    """
    if isinstance(place, ObjectLocation):
        _create_objects(place, source, start)
        return
    with explaining("making the change log", place, ChangeLogError, code="TRK306", full=ChangeLogFull):
        _create_files(place, source, start)


def _create_files(place: Path, source: SourceIdentity, start: Lsn) -> None:
    if (place / FILE).exists():
        check_source(place, source)
        return
    if any(Folder(place).segments() if place.exists() else ()):
        raise ChangeLogError(
            f"{place} contains segments but no {FILE}",
            code="TRK302",
            remedy=f"restore {FILE}, or move the folder away if it is no longer used",
        )
    private.make_folder(place)
    with DurableFile(place, write=True) as file:
        file.write(Durable(start, start), sync=True)
    # Last, by rename: a folder with this file is a whole log.
    draft = place / f"{FILE}.new"
    with open(draft, "w", encoding="utf-8", opener=private.open_file) as text:
        json.dump(asdict(source), text, indent=2)
        text.flush()
        os.fsync(text.fileno())
    draft.replace(place / FILE)
    Folder(place).sync()


def _create_objects(place: ObjectLocation, source: SourceIdentity, start: Lsn) -> None:
    from trucker.changelog.bucket import Bucket, TakenError
    from trucker.changelog.objects.object_recovery import end_of, leftover, read_start

    bucket = Bucket(place)
    if not log_exists(place):
        check_conditional(place, bucket)
        # By the clock: above every number that a log which was here before can have come to, or come to yet.
        first = max(time.time_ns() // 1_000_000, leftover(bucket.list()))
        content = json.dumps({**asdict(source), "start": str(start), "first": first}, indent=2).encode()
        with suppress(TakenError):
            bucket.put_new(FILE, content)
    check_source(place, source)
    if place.folder is not None:
        # What this machine was told of a log before, by a run that is over, may be of another log, and is forgotten.
        shutil.rmtree(place.folder, ignore_errors=True)
        private.make_folder(place.folder)
        with DurableFile(place.folder, write=True, wide=True) as file:
            file.write(end_of(place, bucket, read_start(place, bucket)).durable, sync=False)


def check_conditional(place: ObjectLocation, bucket: Bucket) -> None:
    """Refuse a storage that lets an object be made twice: it could not keep two writers apart."""
    from trucker.changelog.bucket import TakenError

    name = f"{PROBE}-{os.getpid()}-{time.time_ns():X}"
    bucket.put_new(name, b"one")
    try:
        bucket.put_new(name, b"two")
    except TakenError:
        return
    finally:
        bucket.delete([name])
    raise ChangeLogError(
        f"the object storage of {place} overwrites an object despite If-None-Match",
        code="TRK311",
        remedy="use storage with conditional writes, or a shared folder",
    )


def delete_log(place: LogLocation) -> None:
    """Delete a log with all that is in it.

    Of objects, what says that they are a log goes first: those that a crash leaves are no part of the next one.
    """
    if isinstance(place, ObjectLocation):
        from trucker.changelog.bucket import Bucket

        bucket = Bucket(place)
        bucket.delete([FILE])
        bucket.delete([entry.name for entry in bucket.list()])
        if place.folder is not None:
            shutil.rmtree(place.folder, ignore_errors=True)
        return
    shutil.rmtree(place, ignore_errors=True)
