"""A folder of JSON-lines files.

    <path>/manifest.json                     positions, tables, and how far each truck's files count
    <path>/<truck>/changes-000001.jsonl      the truck's lines in commit order, then -000002 and so on

A delivery writes its lines behind what the manifest says is there, fsyncs them, and then replaces the manifest.
That replacement is the commit: lines behind it are cut away at the next `open` or `publish`, so a crash between the
two leaves no line twice and none half (I4). For the format of a line see `envelope`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from trucker.abilities import Abilities
from trucker.adapters.jsonl import JSONL, JsonLinesConnection
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.file_errors import file_error, folder_trouble
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Workspace
from trucker.sinks.batch import TruckState
from trucker.sinks.event import Events
from trucker.sinks.events import EventSink
from trucker.sinks.ledger import Ledger
from trucker.sinks.lines.jsonl_files import FILE, End, LineFiles

_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT})


class JsonLinesSink(EventSink):
    """Guarantee: exactly once, every change in commit order; a batch counts when the manifest names it."""

    name: ClassVar[str] = "jsonl"
    abilities: ClassVar[Abilities] = JSONL.abilities
    line_feed: ClassVar[bool] = True

    def __init__(self, connection: JsonLinesConnection, workspace: Workspace) -> None:
        super().__init__(connection, workspace)
        self._connection = connection
        self._folder = connection.path
        self._ends: dict[str, End] = {}
        self._appended: dict[str, End] = {}

    @property
    def _manifest(self) -> Path:
        return self._folder / "manifest.json"

    def check(self) -> list[Finding]:
        """Whether the folder can be written and its manifest is this project's. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            self.stored()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{self._folder} can be written")]

    def stored(self) -> Mapping[str, TruckState]:
        if (trouble := folder_trouble(self._folder)) is not None:
            raise self._unusable(trouble, "writing to")
        with self._failing_as("opening"):
            return self._load()[0].states()

    def read_ledger(self) -> Ledger:
        with self._failing_as("opening"):
            ledger, self._ends = self._load()
            self._appended = {}
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._manifest.exists():
                self._save(ledger, self._ends)
            ends = {self._folder / _folder_name(truck): end for truck, end in self._ends.items()}
            for folder in {path for path in self._folder.iterdir() if path.is_dir()} | ends.keys():
                LineFiles(folder, 0).cut(ends.get(folder))
        return ledger

    def append(self, truck: str, events: Iterator[Events]) -> None:
        with self._failing_as("writing"):
            files = LineFiles(self._folder / _folder_name(truck), self._connection.rotate_bytes)
            self._appended[truck] = files.append(self._ends.get(truck, End()), (piece.value for piece in events))

    def store(self, ledger: Ledger) -> None:
        ends, self._appended = {**self._ends, **self._appended}, {}
        with self._failing_as("writing"):
            self._save(ledger, ends)
        self._ends = ends

    def _load(self) -> tuple[Ledger, dict[str, End]]:
        content = ledger_file.load(self._manifest, self._project)
        if content is not None:
            return ledger_file.ledger_from_json(content), {truck: End(**end) for truck, end in content["files"].items()}
        if self._folder.is_dir() and any(FILE.fullmatch(path.name) for path in self._folder.glob("*/*.jsonl")):
            raise SinkError(
                f"{self._folder} contains lines but no manifest.json",
                remedy="restore manifest.json, or name an empty folder",
                code="TRK455",
            )
        return Ledger(), {}

    def _save(self, ledger: Ledger, ends: Mapping[str, End]) -> None:
        files: dict[str, Any] = {truck: {"file": end.file, "bytes": end.bytes} for truck, end in sorted(ends.items())}
        ledger_file.save(self._manifest, self._project, ledger, files=files)

    @contextmanager
    def _failing_as(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unusable(error, doing) from error

    def _unusable(self, error: OSError, doing: str) -> TruckerError:
        kind = SinkUnavailable if error.errno in _PASSING else SinkError
        return file_error(error, doing, self._folder, kind, code="TRK456", setting="path")


def _folder_name(truck: str) -> str:
    """The truck's name as a folder's; only what a folder cannot be called is changed."""
    name = quote(truck, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name
