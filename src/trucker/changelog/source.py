"""Whose log a folder is, and whether it still fits the slot it is fed from (I11)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from trucker.changelog.durable import Durable, DurableFile, missing
from trucker.changelog.segment import Folder
from trucker.errors import ChangeLogError
from trucker.lsn import Lsn

FILE: Final = "source.json"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The one source a log is fed from."""

    system_identifier: str
    database: str
    slot: str
    publication: str


def create_log(folder: Path, source: SourceIdentity, start: Lsn) -> None:
    """Make an empty log that begins at `start`, the slot's confirmed position; a log of the same source stays as it is.

    Called once, when the slot is made (or adopted): capture never makes a log by itself, because a log that
    is missing while the slot has moved on is lost data.
    """
    if (folder / FILE).exists():
        check_source(folder, source)
        return
    if any(Folder(folder).segments() if folder.exists() else ()):
        raise ChangeLogError(
            f"{folder} holds segments but no {FILE}",
            code="TRK302",
            remedy=f"put {FILE} back, or move the folder away if it belongs to nothing any more",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with DurableFile(folder, write=True) as file:
        file.write(Durable(start, start), sync=True)
    # Last, by rename: a folder with this file is a whole log.
    draft = folder / f"{FILE}.new"
    with draft.open("w") as text:
        json.dump(asdict(source), text, indent=2)
        text.flush()
        os.fsync(text.fileno())
    draft.replace(folder / FILE)
    Folder(folder).sync()


def check_source(folder: Path, source: SourceIdentity) -> None:
    """Refuse a folder that is no log, or another source's."""
    found = read_source(folder)
    wrong = [
        f"{field.name.replace('_', ' ')} {getattr(found, field.name)!r} instead of {getattr(source, field.name)!r}"
        for field in fields(SourceIdentity)
        if getattr(found, field.name) != getattr(source, field.name)
    ]
    if wrong:
        raise ChangeLogError(
            f"the change log in {folder} belongs to another source: {', '.join(wrong)}",
            code="TRK302",
            remedy="point the connection back to that source, or `trucker reset` to begin anew with this one",
        )


def read_source(folder: Path) -> SourceIdentity:
    """Whose log it is; `ChangeLogError` where the folder is none."""
    try:
        raw = json.loads((folder / FILE).read_text())
        return SourceIdentity(**raw)
    except FileNotFoundError:
        raise missing(folder) from None
    except (ValueError, TypeError):
        raise ChangeLogError(
            f"{folder / FILE} is damaged",
            code="TRK303",
            remedy="put it back from a backup, or `trucker reset` and copy the tables anew",
        ) from None


def check_against_slot(durable: Durable, confirmed_flush: Lsn) -> None:
    """Refuse to go on from a log that ends before the slot does: what lies between is gone from both."""
    if durable.seen_lsn < confirmed_flush:
        raise ChangeLogError(
            f"the change log ends at {durable.seen_lsn}, but the slot has moved on to {confirmed_flush}; "
            "the changes between are lost",
            code="TRK304",
            remedy="put the log back if an older copy of it was restored; "
            "otherwise `trucker reset` and copy the tables anew",
        )


def check_against_server(durable: Durable, flushed: Lsn) -> None:
    """Refuse a server that has less WAL than the log: a restored backup, or a standby that was promoted too early."""
    if durable.seen_lsn > flushed:
        raise ChangeLogError(
            f"the change log is ahead of the server: it ends at {durable.seen_lsn}, the server's WAL at {flushed}; "
            "the server was restored or failed over to a standby that lagged",
            code="TRK304",
            remedy="`trucker reset` and copy the tables anew",
        )


def log_exists(folder: Path) -> bool:
    """Whether there is a log in `folder`, sound or not."""
    return (folder / FILE).exists()
