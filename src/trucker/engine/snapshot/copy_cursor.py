"""How far an incremental copy of a table has got, and which chunks come next.

A table is read leaf by leaf in the order of their oids, each by ranges of pages up to the number of pages that it has
when its first chunk is planned. Rows that are written to later pages, or move to pages that were read before, are in
the stream, and so is every other change since the copy began. A leaf with another file than before was rewritten: its
rows may be anywhere, and it is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from trucker.lsn import Lsn
from trucker.source.snapshot import LeafExtent, SnapshotChunk
from trucker.table import TableSchema


@dataclass(frozen=True, slots=True)
class CopyCursor:
    """Before page `page` of the first `pages` of the leaf `oid`, whose file was `file`.

    Once every chunk has been read, `goal` is a position: when it is reached, the destination has no row that is newer
    than the position.
    """

    oid: int = 0
    file: int = 0
    page: int = 0
    pages: int = 0
    goal: Lsn | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.startswith("goal "):
            return cls(goal=Lsn.parse(text.removeprefix("goal ")))
        oid, file, page, pages = map(int, text.split("."))
        return cls(oid, file, page, pages)

    def __str__(self) -> str:
        """Never empty: an empty cursor is that of a table that has been copied."""
        return f"goal {self.goal}" if self.goal is not None else f"{self.oid}.{self.file}.{self.page}.{self.pages}"

    def chunks(
        self, extents: Sequence[LeafExtent], schema: TableSchema, where: str | None, chunk_bytes: int
    ) -> Iterator[tuple[SnapshotChunk, CopyCursor]]:
        """The chunks that remain, each of about `chunk_bytes`, with the cursor behind it. `extents` are ordered."""
        for extent in extents:
            if extent.oid < self.oid:
                continue
            resumed = (extent.oid, extent.file) == (self.oid, self.file)
            page, pages = (self.page, self.pages) if resumed else (0, extent.pages)
            if not extent.paged:
                if not resumed:
                    behind = CopyCursor(extent.oid, extent.file, 1, 1)
                    yield (
                        SnapshotChunk(schema, extent.leaf, extent.oid, 0, None, where, extent.bytes, extent.file),
                        behind,
                    )
                continue
            step = max(1, chunk_bytes * max(extent.pages, 1) // max(extent.bytes, 1))
            while page < pages:
                last = min(page + step, pages)
                share = extent.bytes * (last - page) // max(extent.pages, 1)
                chunk = SnapshotChunk(schema, extent.leaf, extent.oid, page, last, where, share, extent.file)
                page = last
                yield chunk, CopyCursor(extent.oid, extent.file, page, pages)

    def remaining_bytes(self, extents: Sequence[LeafExtent]) -> int:
        """About how much is still to be read."""
        if self.goal is not None:
            return 0
        total = 0
        for extent in extents:
            if (extent.oid, extent.file) == (self.oid, self.file):
                total += extent.bytes * max(0, self.pages - self.page) // max(extent.pages, 1)
            elif extent.oid >= self.oid:
                total += extent.bytes
        return total
