"""The source that a change log belongs to, and whether the log still matches its slot (I11)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trucker.changelog.format.durable import Durable, missing
from trucker.changelog.location import LogLocation, ObjectLocation
from trucker.errors import ChangeLogError
from trucker.file_errors import explaining, file_error
from trucker.lsn import Lsn

if TYPE_CHECKING:
    from trucker.changelog.bucket import Bucket

FILE: Final = "source.json"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The one source a log is fed from."""

    system_identifier: str
    database: str
    slot: str
    publication: str


def check_source(location: LogLocation, source: SourceIdentity) -> None:
    """Refuse a location that holds no log, or another source's."""
    recorded = read_source(location)
    wrong = [
        f"{field.name.replace('_', ' ')} {getattr(recorded, field.name)!r} instead of {getattr(source, field.name)!r}"
        for field in fields(SourceIdentity)
        if getattr(recorded, field.name) != getattr(source, field.name)
    ]
    if wrong:
        raise ChangeLogError(
            f"the change log in {location} belongs to another source: {', '.join(wrong)}",
            code="TRK302",
            remedy="point the connection back to that source; or run `trucker reset`, then `trucker run`, "
            "which copies the tables of this one",
        )


def read_source(location: LogLocation) -> SourceIdentity:
    """Whose log it is; `ChangeLogError` where the location holds none."""
    raw = read_document(location)
    try:
        return SourceIdentity(**{field.name: raw[field.name] for field in fields(SourceIdentity)})
    except (KeyError, TypeError):
        raise damaged_identity(location) from None


def read_document(location: LogLocation, bucket: Bucket | None = None) -> dict[str, Any]:
    """The file or object that says whose log it is, as it stands there."""
    try:
        if isinstance(location, ObjectLocation):
            from trucker.changelog.bucket import Bucket

            text = (bucket or Bucket(location)).get(FILE)
        else:
            text = (location / FILE).read_bytes()
        document: dict[str, Any] = json.loads(text)
        return document
    except FileNotFoundError:
        raise missing(location) from None
    except ValueError:
        raise damaged_identity(location) from None
    except OSError as error:
        raise file_error(error, "reading", Path(str(location)), ChangeLogError, code="TRK306") from error


def damaged_identity(location: LogLocation) -> ChangeLogError:
    return ChangeLogError(
        f"{location}/{FILE} is damaged",
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


def log_exists(location: LogLocation) -> bool:
    """Whether there is a log, sound or not."""
    if isinstance(location, ObjectLocation):
        from trucker.changelog.bucket import Bucket

        try:
            Bucket(location).get(FILE)
        except FileNotFoundError:
            return False
        return True
    with explaining("reading", location / FILE, ChangeLogError, code="TRK306"):
        return (location / FILE).exists()
