"""How far an incremental copy of a table has got, and which chunks come next.

A table is read leaf by leaf in the order of their oids, each by ranges of pages up to the number of pages that it has
when its first chunk is planned. Rows that are written to later pages, or move to pages that were read before, are in
the stream, and so is every other change since the copy began. A leaf with another file than before was rewritten: its
rows may be anywhere, and it is read from its beginning.

A copy that began in one go, and was interrupted, has read pages in no order: these are named in the cursor until the
copy has passed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from trucker.lsn import Lsn
from trucker.source.snapshot import LeafExtent, SnapshotChunk
from trucker.table import TableSchema


@dataclass(frozen=True, slots=True)
class CopiedPages:
    """The pages of a leaf from `first` up to `last`, or to its end, while its file was `file`."""

    oid: int
    file: int
    first: int
    last: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        oid, file, first, last = text.split(".")
        return cls(int(oid), int(file), int(first), int(last) if last else None)

    def __str__(self) -> str:
        return f"{self.oid}.{self.file}.{self.first}.{'' if self.last is None else self.last}"


def joined(pages: Iterable[CopiedPages]) -> tuple[CopiedPages, ...]:
    """The same pages in order, those that follow one another as one."""
    runs: list[CopiedPages] = []
    for each in sorted(pages, key=lambda each: (each.oid, each.file, each.first)):
        if runs and (runs[-1].oid, runs[-1].file, runs[-1].last) == (each.oid, each.file, each.first):
            runs[-1] = CopiedPages(each.oid, each.file, runs[-1].first, each.last)
        else:
            runs.append(each)
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class CopyCursor:
    """Before page `page` of the first `pages` of the leaf `oid`, whose file was `file`. Of what comes then, the pages
    in `copied` have been read already.

    Once every chunk has been read, `goal` is a position: when it is reached, the destination has no row that is newer
    than the position.
    """

    oid: int = 0
    file: int = 0
    page: int = 0
    pages: int = 0
    goal: Lsn | None = None
    copied: tuple[CopiedPages, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.startswith("goal "):
            return cls(goal=Lsn.parse(text.removeprefix("goal ")))
        place, *copied = text.split(" ")
        oid, file, page, pages = map(int, place.split("."))
        return cls(oid, file, page, pages, copied=tuple(map(CopiedPages.parse, copied)))

    def __str__(self) -> str:
        """Never empty: an empty cursor is that of a table that has been copied."""
        if self.goal is not None:
            return f"goal {self.goal}"
        return " ".join([f"{self.oid}.{self.file}.{self.page}.{self.pages}", *map(str, self.copied)])

    def chunks(
        self, extents: Sequence[LeafExtent], schema: TableSchema, where: str | None, chunk_bytes: int
    ) -> Iterator[tuple[SnapshotChunk, CopyCursor]]:
        """The chunks that remain, each of about `chunk_bytes`, with the cursor behind it. `extents` are ordered."""
        for extent in extents:
            if extent.oid < self.oid:
                continue
            resumed = (extent.oid, extent.file) == (self.oid, self.file)
            page, pages = (self.page, self.pages) if resumed else (0, extent.pages)
            rest = tuple(each for each in self.copied if each.oid >= extent.oid)
            if not extent.paged:
                if not resumed and not any(self._copied_of(extent)):
                    behind = CopyCursor(extent.oid, extent.file, 1, 1, copied=rest)
                    yield (
                        SnapshotChunk(schema, extent.leaf, extent.oid, 0, None, where, extent.bytes, extent.file),
                        behind,
                    )
                continue
            step = max(1, chunk_bytes * max(extent.pages, 1) // max(extent.bytes, 1))
            for begin, end in self._gaps(extent, page, pages):
                for first in range(begin, end, step):
                    last = min(first + step, end)
                    share = extent.bytes * (last - first) // max(extent.pages, 1)
                    chunk = SnapshotChunk(schema, extent.leaf, extent.oid, first, last, where, share, extent.file)
                    yield chunk, CopyCursor(extent.oid, extent.file, last, pages, copied=rest)

    def remaining_bytes(self, extents: Sequence[LeafExtent]) -> int:
        """About how much is still to be read."""
        if self.goal is not None:
            return 0
        total = 0
        for extent in extents:
            if (extent.oid, extent.file) == (self.oid, self.file):
                total += self._bytes(extent, self.page, self.pages)
            elif extent.oid >= self.oid:
                total += self._bytes(extent, 0, extent.pages) if any(self._copied_of(extent)) else extent.bytes
        return total

    def _copied_of(self, extent: LeafExtent) -> Iterator[CopiedPages]:
        return (each for each in self.copied if (each.oid, each.file) == (extent.oid, extent.file))

    def _gaps(self, extent: LeafExtent, page: int, pages: int) -> Iterator[tuple[int, int]]:
        """The runs of pages, from `page` up to `pages`, that have not been read."""
        for each in sorted(self._copied_of(extent), key=lambda each: each.first):
            if page < min(each.first, pages):
                yield page, min(each.first, pages)
            page = max(page, pages if each.last is None else each.last)
        if page < pages:
            yield page, pages

    def _bytes(self, extent: LeafExtent, page: int, pages: int) -> int:
        return extent.bytes * sum(end - begin for begin, end in self._gaps(extent, page, pages)) // max(extent.pages, 1)
