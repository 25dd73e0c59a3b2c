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


def create_log(location: LogLocation, source: SourceIdentity, start: Lsn) -> None:
    """Make an empty log that begins at `start`, the slot's confirmed position; a log of the same source stays as it is.

    Called once, when the slot is made (or adopted): capture never makes a log by itself, because a log that
    is missing while the slot has moved on is lost data.
    """
    if isinstance(location, ObjectLocation):
        _create_objects(location, source, start)
        return
    with explaining("making the change log", location, ChangeLogError, code="TRK306", full=ChangeLogFull):
        _create_files(location, source, start)


def _create_files(location: Path, source: SourceIdentity, start: Lsn) -> None:
    if (location / FILE).exists():
        check_source(location, source)
        return
    if any(Folder(location).segments() if location.exists() else ()):
        raise ChangeLogError(
            f"{location} contains segments but no {FILE}",
            code="TRK302",
            remedy=f"restore {FILE}, or move the folder away if it is no longer used",
        )
    private.make_folder(location)
    with DurableFile(location, write=True) as file:
        file.write(Durable(start, start), sync=True)
    # Last, by rename: a folder with this file is a whole log.
    draft = location / f"{FILE}.new"
    with open(draft, "w", encoding="utf-8", opener=private.open_file) as text:
        json.dump(asdict(source), text, indent=2)
        text.flush()
        os.fsync(text.fileno())
    draft.replace(location / FILE)
    Folder(location).sync()


def _create_objects(location: ObjectLocation, source: SourceIdentity, start: Lsn) -> None:
    from trucker.changelog.bucket import Bucket, TakenError
    from trucker.changelog.objects.object_recovery import end_of, leftover, read_start

    bucket = Bucket(location)
    if not log_exists(location):
        check_conditional(location, bucket)
        # By the clock: above every number that an earlier log here, or a late writer of it, can reach.
        first = max(time.time_ns() // 1_000_000, leftover(bucket.list()))
        content = json.dumps({**asdict(source), "start": str(start), "first": first}, indent=2).encode()
        with suppress(TakenError):
            bucket.put_new(FILE, content)
    check_source(location, source)
    if location.folder is not None:
        # The folder of an earlier run may belong to another log.
        shutil.rmtree(location.folder, ignore_errors=True)
        private.make_folder(location.folder)
        with DurableFile(location.folder, write=True, wide=True) as file:
            file.write(end_of(location, bucket, read_start(location, bucket)).durable, sync=False)


def check_conditional(location: ObjectLocation, bucket: Bucket) -> None:
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
        f"the object storage of {location} overwrites an object despite If-None-Match",
        code="TRK311",
        remedy="use storage with conditional writes, or a shared folder",
    )


def delete_log(location: LogLocation) -> None:
    """Delete a log with all that is in it.

    Of objects, what says that they are a log goes first: those that a crash leaves are no part of the next one.
    """
    if isinstance(location, ObjectLocation):
        from trucker.changelog.bucket import Bucket

        bucket = Bucket(location)
        bucket.delete([FILE])
        bucket.delete([entry.name for entry in bucket.list()])
        if location.folder is not None:
            shutil.rmtree(location.folder, ignore_errors=True)
        return
    shutil.rmtree(location, ignore_errors=True)
