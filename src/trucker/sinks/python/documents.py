"""What is stored of one truck: its share of the ledger, and the rows that its handler refused.

It is a text of JSON: a file of the state folder, or, where the handler stores it with its data, the text that
`save_position` gets. Letters are in it, so that they change together with the position (I3).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from trucker import private
from trucker.change import Changes
from trucker.errors import SinkError, SinkHeld, SinkUnavailable
from trucker.lsn import Lsn
from trucker.sinks import ledger_file
from trucker.sinks.batch import Batch
from trucker.sinks.ledger import Ledger
from trucker.sinks.letters import Letter, Reason
from trucker.table import TableId

UNREADABLE: Final = "TRK747"
UNWRITABLE: Final = "TRK748"
HELD: Final = "TRK749"
_SUFFIX: Final = ".json"
_PATIENCE: Final = 20.0
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A dead letter, and the change that is to be tried again. Of a batcher's row only the newest is here."""

    letter: Letter
    method: str
    changes: Changes
    snapshot: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """What a row that is refused again has in common with this one."""
        if self.method.startswith("on_"):
            return self.letter.identity, self.letter.lsn, self.letter.ordinal
        return (self.letter.identity,)

    def to_json(self) -> dict[str, Any]:
        letter = self.letter
        return {
            "number": letter.number,
            "method": self.method,
            "source": list(letter.source),
            "target": list(letter.target),
            "key": list(letter.key),
            "operation": letter.operation,
            "data": dict(letter.data),
            "lsn": str(letter.lsn),
            "ordinal": letter.ordinal,
            "tries": letter.tries,
            "sqlstate": letter.reason.sqlstate,
            "reason": letter.reason.message,
            "snapshot": self.snapshot,
            "changes": base64.b64encode(self.changes.to_ipc()).decode(),
        }

    @classmethod
    def from_json(cls, truck: str, entry: Mapping[str, Any]) -> RefusedRow:
        letter = Letter(
            truck,
            TableId(*entry["source"]),
            TableId(*entry["target"]),
            tuple(entry["key"]),
            entry["operation"],
            entry["data"],
            Lsn.parse(entry["lsn"]),
            entry["ordinal"],
            Reason(entry["sqlstate"], entry["reason"]),
            entry["tries"],
            entry["number"],
        )
        changes = Changes.from_ipc(base64.b64decode(entry["changes"]))
        return cls(letter, entry["method"], changes, entry["snapshot"])


@dataclass(frozen=True, slots=True)
class TruckDocument:
    """`copies` names, by table, the copy whose rows a batcher was given that cannot empty a table."""

    ledger: Ledger = field(default_factory=Ledger)
    letters: tuple[RefusedRow, ...] = ()
    copies: Mapping[TableId, str] = field(default_factory=dict)

    def with_letters(self, letters: Mapping[tuple[object, ...], RefusedRow]) -> TruckDocument:
        """With these letters, each with a number."""
        numbers = [each.letter.number for each in (*self.letters, *letters.values())]
        last, numbered = max(numbers, default=0), []
        for each in letters.values():
            if not each.letter.number:
                last += 1
                each = replace(each, letter=replace(each.letter, number=last))
            numbered.append(each)
        return replace(self, letters=tuple(numbered))

    def to_text(self, project: str) -> str:
        content = {
            "format": ledger_file.FORMAT,
            "project": project,
            **ledger_file.ledger_to_json(self.ledger),
            "letters": [each.to_json() for each in self.letters],
            "copies": [[*table, name] for table, name in sorted(self.copies.items())],
        }
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_text(cls, truck: str, project: str, text: str, place: str) -> TruckDocument:
        """Raises `SinkError` for a text that another version or project has written, or nobody."""
        try:
            content = json.loads(text)
            version, of = content["format"], content["project"]
        except (ValueError, KeyError, TypeError):
            raise _unreadable(f"{place} is no position of trucker's") from None
        if version != ledger_file.FORMAT:
            raise _unreadable(f"{place} was written by another version of trucker")
        if of != project:
            raise _unreadable(f"{place} belongs to project {of!r}, not to {project!r}")
        return cls(
            ledger_file.ledger_from_json(content),
            tuple(RefusedRow.from_json(truck, entry) for entry in content["letters"]),
            {TableId(schema, name): attempt for schema, name, attempt in content["copies"]},
        )


def share_of(ledger: Ledger, truck: str) -> Ledger:
    """What a ledger has of one truck."""
    return Ledger(
        {name: lsn for name, lsn in ledger.positions.items() if name == truck},
        {truck_table: entry for truck_table, entry in ledger.entries.items() if truck_table[0] == truck},
    )


def merged(documents: Mapping[str, TruckDocument]) -> Ledger:
    """The ledger of all trucks."""
    positions = {name: lsn for each in documents.values() for name, lsn in each.ledger.positions.items()}
    entries = {name: entry for each in documents.values() for name, entry in each.ledger.entries.items()}
    return Ledger(positions, entries)


def remaining_copies(document: TruckDocument, truck: str, batch: Batch) -> Mapping[TableId, str]:
    """A truck that was reset begins anew: the user was told to empty what is there."""
    return {} if truck in batch.forget else document.copies


class DocumentFolder:
    """The documents of those trucks whose handlers do not store them, a file each, and a lock on all."""

    def __init__(self, folder: Path, project: str) -> None:
        self._folder = folder
        self._project = project

    def load(self) -> dict[str, TruckDocument]:
        """All that are there, by truck."""
        documents = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            truck = unquote(path.name.removesuffix(_SUFFIX))
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise _unreadable(f"{path} cannot be read: {type(error).__name__}") from None
            documents[truck] = TruckDocument.from_text(truck, self._project, text, str(path))
        return documents

    def store(self, truck: str, document: TruckDocument) -> None:
        """Replace the truck's file; durable when this returns."""
        path = self._folder / f"{quote(truck, safe='')}{_SUFFIX}"
        temporary = path.with_name(f"{path.name}.new")
        try:
            private.make_folder(self._folder)
            with open(temporary, "w", encoding="utf-8", opener=private.open_file) as file:
                file.write(document.to_text(self._project))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            ledger_file.sync_folder(self._folder)
        except OSError as error:
            raise SinkUnavailable(
                f"writing the position to {path} failed: {error.strerror or type(error).__name__}",
                remedy="free disk space for, or give trucker access to, the project's state folder",
                code=UNWRITABLE,
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process calls these handlers or changes what is stored, as `trucker redrive` would."""
        private.make_folder(self._folder)
        handle = private.open_file(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            self._acquire(handle)
            yield
        finally:
            os.close(handle)

    def _acquire(self, handle: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SinkHeld(
                        f"another process is calling the handlers ({self._folder / 'lock'} is locked)",
                        remedy="none needed: trucker retries; a handler that hangs is ended with its process",
                        code=HELD,
                    ) from None
                time.sleep(_POLL_SECONDS)


def _unreadable(message: str) -> SinkError:
    return SinkError(
        message,
        remedy="restore it from a backup, use the version or the project that wrote it, or remove it and run "
        "`trucker reset`",
        code=UNREADABLE,
    )
