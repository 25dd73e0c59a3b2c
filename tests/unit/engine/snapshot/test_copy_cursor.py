"""The cursor of an incremental copy: every page once, in order, from any cursor, whatever happens to the leaves."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trucker.engine.snapshot.copy_cursor import CopyCursor
from trucker.lsn import Lsn
from trucker.source.snapshot import LeafExtent, SnapshotChunk
from trucker.table import TableId, TableSchema

SCHEMA = TableSchema(TableId("public", "t"), (), ())
PAGE = 8192


def _leaf(oid: int, pages: int, *, file: int | None = None, paged: bool = True) -> LeafExtent:
    return LeafExtent(TableId("public", f"leaf_{oid}"), oid, file or oid, pages, pages * PAGE, paged)


leaves = st.lists(st.integers(0, 40), max_size=5).map(
    lambda sizes: [_leaf(100 + number, pages) for number, pages in enumerate(sizes)]
)


def _pages(chunks: list[SnapshotChunk]) -> list[tuple[int, int]]:
    return [(chunk.oid, page) for chunk in chunks for page in range(chunk.first, chunk.last or chunk.first + 1)]


@given(leaves, st.integers(1, 10 * PAGE), st.data())
def test_every_page_is_read_once_whatever_the_interruptions(
    extents: list[LeafExtent], size: int, data: st.DataObject
) -> None:
    read: list[SnapshotChunk] = []
    cursor = CopyCursor()
    while planned := list(cursor.chunks(extents, SCHEMA, None, size)):
        taken = planned[: data.draw(st.integers(1, len(planned)))]
        read += [chunk for chunk, _ in taken]
        cursor = CopyCursor.parse(str(taken[-1][1]))
        assert cursor.remaining_bytes(extents) == sum(e.bytes for e in extents) - len(_pages(read)) * PAGE
    assert _pages(read) == [(extent.oid, page) for extent in extents for page in range(extent.pages)]


@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 40))
def test_a_leaf_that_was_rewritten_is_read_from_its_beginning(pages: int, at: int, now: int) -> None:
    cursor = CopyCursor(100, 100, min(at, pages), pages)
    rewritten = [replace(_leaf(100, now), file=7)]
    chunks = [chunk for chunk, _ in cursor.chunks(rewritten, SCHEMA, None, PAGE)]
    assert _pages(chunks) == [(100, page) for page in range(now)]
    assert all(chunk.file == 7 for chunk in chunks)


@given(st.integers(1, 40), st.integers(1, 40))
def test_pages_that_a_leaf_gets_later_are_left_to_the_stream(pages: int, more: int) -> None:
    cursor = CopyCursor(100, 100, 0, pages)
    chunks = [chunk for chunk, _ in cursor.chunks([_leaf(100, pages + more)], SCHEMA, None, PAGE)]
    assert _pages(chunks) == [(100, page) for page in range(pages)]


def test_a_leaf_without_pages_is_read_as_a_whole() -> None:
    extents = [_leaf(100, 0, paged=False)]
    ((chunk, behind),) = CopyCursor().chunks(extents, SCHEMA, None, PAGE)
    assert (chunk.first, chunk.last) == (0, None)
    assert list(behind.chunks(extents, SCHEMA, None, PAGE)) == []


def test_a_goal_is_a_cursor_of_its_own() -> None:
    cursor = CopyCursor(goal=Lsn(1000))
    assert CopyCursor.parse(str(cursor)) == cursor
    assert cursor.remaining_bytes([_leaf(100, 5)]) == 0
