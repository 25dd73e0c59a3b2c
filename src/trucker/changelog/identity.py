"""Whose log a place holds, and whether it still fits the slot it is fed from (I11)."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trucker import private
from trucker.changelog.folder.durable import Durable, DurableFile, missing
from trucker.changelog.format.segment import Folder
from trucker.changelog.location import LogPlace, ObjectPlace
from trucker.errors import ChangeLogError, ChangeLogFull
from trucker.file_errors import explaining, file_error
from trucker.lsn import Lsn

if TYPE_CHECKING:
    from trucker.changelog.objects.bucket import Bucket
    from trucker.changelog.objects.object_recovery import Start

FILE: Final = "source.json"
PROBE: Final = "probe"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The one source a log is fed from."""

    system_identifier: str
    database: str
    slot: str
    publication: str


def create_log(place: LogPlace, source: SourceIdentity, start: Lsn) -> None:
    """Make an empty log that begins at `start`, the slot's confirmed position; a log of the same source stays as it is.

    Called once, when the slot is made (or adopted): capture never makes a log by itself, because a log that
    is missing while the slot has moved on is lost data.
    """
    if isinstance(place, ObjectPlace):
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


def _create_objects(place: ObjectPlace, source: SourceIdentity, start: Lsn) -> None:
    from trucker.changelog.objects.bucket import Bucket, TakenError
    from trucker.changelog.objects.object_recovery import end_of, leftover

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


def check_conditional(place: ObjectPlace, bucket: Bucket) -> None:
    """Refuse a storage that lets an object be made twice: it could not keep two writers apart."""
    from trucker.changelog.objects.bucket import TakenError

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


def check_source(place: LogPlace, source: SourceIdentity) -> None:
    """Refuse a place that is no log, or another source's."""
    found = read_source(place)
    wrong = [
        f"{field.name.replace('_', ' ')} {getattr(found, field.name)!r} instead of {getattr(source, field.name)!r}"
        for field in fields(SourceIdentity)
        if getattr(found, field.name) != getattr(source, field.name)
    ]
    if wrong:
        raise ChangeLogError(
            f"the change log in {place} belongs to another source: {', '.join(wrong)}",
            code="TRK302",
            remedy="point the connection back to that source; or run `trucker reset`, then `trucker run`, "
            "which copies the tables of this one",
        )


def read_source(place: LogPlace) -> SourceIdentity:
    """Whose log it is; `ChangeLogError` where the place holds none."""
    raw = _read(place)
    try:
        return SourceIdentity(**{field.name: raw[field.name] for field in fields(SourceIdentity)})
    except (KeyError, TypeError):
        raise _damaged(place) from None


def read_start(place: ObjectPlace, bucket: Bucket) -> Start:
    """Where a log of objects begins."""
    from trucker.changelog.objects.object_recovery import Start

    raw = _read(place, bucket)
    try:
        return Start(Lsn.parse(raw["start"]), int(raw["first"]))
    except (KeyError, TypeError, ValueError):
        raise _damaged(place) from None


def _read(place: LogPlace, bucket: Bucket | None = None) -> dict[str, Any]:
    try:
        if isinstance(place, ObjectPlace):
            from trucker.changelog.objects.bucket import Bucket

            text = (bucket or Bucket(place)).get(FILE)
        else:
            text = (place / FILE).read_bytes()
        found: dict[str, Any] = json.loads(text)
        return found
    except FileNotFoundError:
        raise missing(place) from None
    except ValueError:
        raise _damaged(place) from None
    except OSError as error:
        raise file_error(error, "reading", Path(str(place)), ChangeLogError, code="TRK306") from error


def _damaged(place: LogPlace) -> ChangeLogError:
    return ChangeLogError(
        f"{place}/{FILE} is damaged",
        code="TRK303",
        remedy="restore it from a backup; or run `trucker reset`, then `trucker run`, which copies the tables again",
    )


def check_against_slot(durable: Durable, confirmed_flush: Lsn) -> None:
    """Refuse to go on from a log that ends before the slot does: what lies between is gone from both."""
    if durable.seen_lsn < confirmed_flush:
        raise ChangeLogError(
            f"the change log ends at {durable.seen_lsn}, but the slot is at {confirmed_flush}: the changes in "
            "between are lost",
            code="TRK304",
            remedy="if an older copy of the log was restored, restore the latest one; or run `trucker reset`, "
            "then `trucker run`, which copies the tables again",
        )


def check_against_server(durable: Durable, flushed: Lsn) -> None:
    """Refuse a server that has less WAL than the log: a restored backup, or a standby that was promoted too early."""
    if durable.seen_lsn > flushed:
        raise ChangeLogError(
            f"the change log is ahead of the server: it ends at {durable.seen_lsn}, the server's WAL at {flushed}; "
            "the server was restored or failed over to a standby that lagged",
            code="TRK304",
            remedy="run `trucker reset`, then `trucker run`, which copies the tables again",
        )


def log_exists(place: LogPlace) -> bool:
    """Whether there is a log, sound or not."""
    if isinstance(place, ObjectPlace):
        from trucker.changelog.objects.bucket import Bucket

        try:
            Bucket(place).get(FILE)
        except FileNotFoundError:
            return False
        return True
    with explaining("reading", place / FILE, ChangeLogError, code="TRK306"):
        return (place / FILE).exists()


def delete_log(place: LogPlace) -> None:
    """Delete a log with all that is in it.

    Of objects, what says that they are a log goes first: those that a crash leaves are no part of the next one.
    """
    if isinstance(place, ObjectPlace):
        from trucker.changelog.objects.bucket import Bucket

        bucket = Bucket(place)
        bucket.delete([FILE])
        bucket.delete([entry.name for entry in bucket.list()])
        if place.folder is not None:
            shutil.rmtree(place.folder, ignore_errors=True)
        return
    shutil.rmtree(place, ignore_errors=True)
