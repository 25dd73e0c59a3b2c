"""Staged text on its way to the driver: little is carried in the receipt, much goes into a file, where driver and
executors share a disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from trucker.change import INSERT, Changes
from trucker.sinks.batch import Work
from trucker.sinks.sql.staged_text import Chunk, Contents, sort_out
from trucker.sinks.text_files import TextFiles


@dataclass(slots=True)
class TextRun:
    """Values that are staged as one: a single one, or inserts in a row, which cannot meet the same key twice.

    `plain` and `table` are for stores that stage in tables of their own.
    """

    contents: Contents
    inserts: bool
    text: list[pa.Buffer]
    table: str = ""
    plain: bool = False
    file: str = ""

    @property
    def size(self) -> int:
        return sum([piece.size for piece in self.text])

    def takes(self, contents: Contents, inserts: bool) -> bool:
        return self.inserts and inserts and self.contents.columns == contents.columns

    def grow(self, contents: Contents, text: Iterable[pa.Buffer]) -> None:
        both = self.contents
        rows, upserts = both.rows + contents.rows, both.upserts + contents.upserts
        self.contents = replace(both, rows=rows, upserts=upserts)
        self.text.extend(text)


class TextPartWriter(ABC):
    """Stages the values of one part in order. A subclass names what it stages beside the receipt, and says where that
    goes if not into `files`."""

    def __init__(self, work: Work, files: TextFiles | None) -> None:
        self.work = work
        self.target = work.target
        self.rows = 0
        self._files = files
        self._letters = work.target.truck in work.batch.dead_letters
        self._chunks: list[Chunk] = []
        self._run: TextRun | None = None
        self._room = work.room

    def add(self, value: Changes) -> None:
        self.rows += len(value)
        contents, text = sort_out(value, self.target, placed=self._letters)
        if not contents.rows:
            return
        inserts = contents.rows == int((value.op == INSERT).sum())
        if self._run and self._run.takes(contents, inserts):
            self._run.grow(contents, text)
        else:
            self._finish()
            self._run = TextRun(contents, inserts, list(text), plain=self._letters)
        run = self._run
        if run.table or run.file or run.size > self._room:
            if self._files is not None:
                run.file = run.file or self.new_name()
                self._files.append(run.file, self.target.table, run.text)
            else:
                self.store(run)
            run.text.clear()

    def chunks(self) -> tuple[Chunk, ...]:
        """What the receipt carries."""
        self._finish()
        return tuple(self._chunks)

    @abstractmethod
    def new_name(self) -> str:
        """A name that no other attempt at this part has."""

    @abstractmethod
    def store(self, run: TextRun) -> None:
        """Put the text that the run has now where the driver can get it from: there are no files."""

    def _finish(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self._room -= run.size
        carried = b"".join(map(memoryview, run.text))
        self._chunks.append(Chunk(run.contents, carried, run.table, bool(run.table) and run.plain, run.file))
