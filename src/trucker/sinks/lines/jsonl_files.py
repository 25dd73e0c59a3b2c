"""A series of files of lines, each begun when the last one is full. Only lines up to a recorded end count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa

from trucker.errors import SinkError
from trucker.sinks import ledger_file
from trucker.sinks.envelope.json_text import block

FILE: Final = re.compile(r"changes-(\d{6,})\.jsonl")


@dataclass(frozen=True, slots=True)
class End:
    """Where the lines end: the number of the last file and that file's length."""

    file: int = 1
    bytes: int = 0


class LineFiles:
    """The series in one folder."""

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
            name = FILE.fullmatch(path.name)
            if name and (end is None or int(name[1]) > end.file):
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
