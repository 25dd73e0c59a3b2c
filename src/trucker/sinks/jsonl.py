"""A folder of JSON-lines files.

    <path>/manifest.json                     positions, tables, and how far each truck's files count
    <path>/<truck>/changes-000001.jsonl      the truck's lines in commit order, then -000002 and so on

A commit writes its lines behind what the manifest says is there, fsyncs them, and then replaces the manifest.
That replacement is the commit: lines behind it are cut away at the next `open` or `commit`, so a crash between the
two leaves no line twice and none half (I4). For the format of a line see `json_lines`.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from trucker.adapters.jsonl import JsonLinesConnection
from trucker.change import Changes, CopiedRows, TableId
from trucker.errors import SinkError, SinkUnavailable, TruckerError
from trucker.file_errors import file_error, folder_trouble
from trucker.finding import Finding, Level
from trucker.sinks import ledger_file
from trucker.sinks.base import Batch, Capabilities, Receipt, Sink, Target, TruckState, Work, Workspace
from trucker.sinks.json_lines import block
from trucker.sinks.ledger import Ledger, Plan
from trucker.sinks.spool import Spool
from trucker.sinks.staged_lines import stage_lines, staged_lines

_FILE: Final = re.compile(r"changes-(\d{6,})\.jsonl")
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT})


@dataclass(frozen=True, slots=True)
class End:
    """Where a truck's lines end: the number of its last file and that file's length."""

    file: int = 1
    bytes: int = 0


class JsonLinesSink(Sink):
    """Guarantee: exactly once, every change in commit order; a batch counts when the manifest names it."""

    name: ClassVar[str] = "jsonl"
    capabilities: ClassVar[Capabilities] = Capabilities(
        keeps_changes=True,
        guarantee="exactly once: after a crash, lines beyond those in the manifest are removed",
    )

    def __init__(self, connection: JsonLinesConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._project = workspace.project
        self._folder = connection.path
        self._spool = Spool(workspace.folder, near=workspace.near)
        self._ledger: Ledger | None = None
        self._ends: dict[str, End] = {}

    @property
    def _manifest(self) -> Path:
        return self._folder / "manifest.json"

    def check(self) -> list[Finding]:
        """Whether the folder can be written and its manifest is this project's. Creates nothing."""
        subject = f"connection {self._connection.name}"
        try:
            if (trouble := folder_trouble(self._folder)) is not None:
                raise self._unusable(trouble, "writing to")
            with self._failing_as("opening"):
                self._load()
        except TruckerError as error:
            return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
        return [Finding(Level.OK, subject, f"{self._folder} can be written")]

    def stored(self) -> Mapping[str, TruckState]:
        if (trouble := folder_trouble(self._folder)) is not None:
            raise self._unusable(trouble, "writing to")
        with self._failing_as("opening"):
            return self._load()[0].states()

    def examine(self, targets: Sequence[Target], due: Collection[TableId]) -> Iterator[tuple[Target, TruckerError]]:
        """There are no tables to refuse."""
        yield from ()

    def open(self) -> Mapping[str, TruckState]:
        with self._failing_as("opening"):
            if self._ledger is None:
                self._spool.clear()
            self._ledger, self._ends = self._load()
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._manifest.exists():
                self._save(self._ledger, self._ends)
            known = {self._folder / _folder_name(truck): end for truck, end in self._ends.items()}
            for folder in {path for path in self._folder.iterdir() if path.is_dir()} | known.keys():
                _Files(folder, 0).cut(known.get(folder))
        return self._ledger.states()

    def write(self, work: Work, changes: Iterator[Changes | CopiedRows]) -> Receipt:
        return stage_lines(self._spool, work, changes)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        if self._ledger is None:
            raise SinkError(f"connection {self._connection.name} was not opened")
        self._spool.keep_only(batch, [receipt.staged for receipt in receipts])
        plan = self._ledger.plan(batch)
        if not plan.empty:
            with self._failing_as("writing"):
                ends = {**self._ends, **self._append(batch, plan, receipts)}
                ledger = self._ledger.after(plan)
                self._save(ledger, ends)
            self._ledger, self._ends = ledger, ends
        self._spool.discard(batch)

    def _append(self, batch: Batch, plan: Plan, receipts: Sequence[Receipt]) -> dict[str, End]:
        """Write the lines of every truck behind its last; the new ends."""
        shares: dict[str, list[Receipt]] = defaultdict(list)
        for receipt in receipts:
            if receipt.staged is not None and (receipt.truck, receipt.table) in plan.apply:
                shares[receipt.truck].append(receipt)
        ends = {}
        for truck, share in sorted(shares.items()):
            files = _Files(self._folder / _folder_name(truck), self._connection.rotate_bytes)
            ends[truck] = files.append(self._ends.get(truck, End()), staged_lines(self._spool, batch, share))
        return ends

    def _load(self) -> tuple[Ledger, dict[str, End]]:
        content = ledger_file.load(self._manifest, self._project)
        if content is not None:
            return ledger_file.ledger_from_json(content), {truck: End(**end) for truck, end in content["files"].items()}
        if self._folder.is_dir() and any(_FILE.fullmatch(path.name) for path in self._folder.glob("*/*.jsonl")):
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


class _Files:
    """One truck's series of files."""

    def __init__(self, folder: Path, rotate_bytes: int) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes

    def append(self, end: End, pieces: Iterator[pa.LargeStringArray]) -> End:
        """Write whole lines from `end` on, overwriting what an attempt that did not count left there; the new end."""
        self._folder.mkdir(exist_ok=True)
        self.cut(end)
        number, position = end.file, end.bytes
        file = self._path(number).open("ab")
        try:
            for text in pieces:
                begin = 0
                while begin < len(text):
                    if position >= self._rotate_bytes:
                        _close_durably(file)
                        number, position = number + 1, 0
                        file = self._path(number).open("ab")
                    count = _lines_until(text, begin, self._rotate_bytes - position)
                    data = block(text.slice(begin, count))
                    file.write(data)
                    position += len(data)
                    begin += count
        finally:
            _close_durably(file)
        ledger_file.sync_folder(self._folder)
        return End(number, position)

    def cut(self, end: End | None) -> None:
        """Remove what is behind `end` (everything where there is none). Raises where what should be there is not."""
        for path in self._folder.glob("*.jsonl"):
            found = _FILE.fullmatch(path.name)
            if found and (end is None or int(found[1]) > end.file):
                path.unlink()
        if end is None:
            return
        path = self._path(end.file)
        length = path.stat().st_size if path.exists() else 0
        if length < end.bytes:
            raise SinkError(
                f"{path} has {length} bytes where manifest.json says {end.bytes}: lines are missing",
                remedy="restore the file from a backup, or move the folder away and run `trucker reset`",
                code="TRK457",
            )
        if length > end.bytes:
            os.truncate(path, end.bytes)

    def _path(self, number: int) -> Path:
        return self._folder / f"changes-{number:06d}.jsonl"


def _lines_until(text: pa.LargeStringArray, begin: int, room: int) -> int:
    """How many lines from `begin` on it takes to fill `room` bytes, at least one."""
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset + begin : text.offset + len(text) + 1]
    return int(min(max(np.searchsorted(offsets, offsets[0] + room, "left"), 1), len(offsets) - 1))


def _close_durably(file: IO[bytes]) -> None:
    if file.closed:
        return
    with file:
        file.flush()
        os.fsync(file.fileno())


def _folder_name(truck: str) -> str:
    """The truck's name as a folder's; only what a folder cannot be called is changed."""
    name = quote(truck, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name
