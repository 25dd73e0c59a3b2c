"""Staged COPY text in files, where driver and executors share a disk.

An executor writes a file once, the driver reads it once: the destination is given each row once too, instead of
first into a table that waits and then out of it. Names are those of staging tables, with a token that no other
attempt shares. Nothing is fsynced: what a crash takes is staged again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from trucker import private
from trucker.sinks.spool import cannot_stage, not_staged
from trucker.table import TableId

_SUFFIX: Final = ".copy"
# Large enough for few calls, small enough that the server has work while the next piece is sent.
_PIECE: Final = 1 << 18


class TextFiles:
    """A folder of staged texts. Cheap to make, holds nothing open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, name: str, table: TableId, text: Iterable[pa.Buffer | bytes]) -> None:
        """Write more of a text; the first time makes the file."""
        try:
            private.make_folder(self._folder)
            with open(self._path(name), "ab", buffering=0, opener=private.open_file) as file:
                for piece in text:
                    view = memoryview(piece)
                    while len(view):
                        view = view[file.write(view) :]
        except OSError as error:
            raise cannot_stage(table, self._folder, error) from error

    def read(self, name: str) -> Iterator[memoryview]:
        """The text again, piece by piece; it is mapped, so what was read can leave memory."""
        try:
            with self._path(name).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise not_staged(name, self._folder, error) from error
        with mapped, memoryview(mapped) as whole:
            for start in range(0, len(whole), _PIECE):
                with whole[start : start + _PIECE] as piece:
                    yield piece

    def remove(self, prefix: str) -> None:
        """Every text whose name begins so."""
        for file in self._folder.glob(f"{prefix}*{_SUFFIX}"):
            file.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"
