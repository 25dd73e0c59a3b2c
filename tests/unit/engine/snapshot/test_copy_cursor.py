"""The cursor of an incremental copy: every page once, in order, from any cursor, whatever happens to the leaves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trucker.engine.snapshot.copy_cursor import CopiedPages, CopyCursor, joined
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


@given(leaves, st.integers(1, 10 * PAGE), st.data())
def test_pages_that_were_copied_are_not_read(extents: list[LeafExtent], size: int, data: st.DataObject) -> None:
    """A copy in one go has read parts of every leaf, in no order; the last part of a leaf has no end."""
    copied, wanted = [], []
    for extent in extents:
        cuts = sorted({0, *data.draw(st.lists(st.integers(0, extent.pages), max_size=6))})
        for first, last in pairwise([*cuts, None]):
            end = extent.pages if last is None else last
            if data.draw(st.booleans()):
                copied.append(CopiedPages(extent.oid, extent.file, first or 0, last))
            else:
                wanted += [(extent.oid, page) for page in range(first or 0, end)]
    read: list[SnapshotChunk] = []
    cursor = CopyCursor(copied=joined(data.draw(st.permutations(copied))))
    while planned := list(cursor.chunks(extents, SCHEMA, None, size)):
        taken = planned[: data.draw(st.integers(1, len(planned)))]
        read += [chunk for chunk, _ in taken]
        cursor = CopyCursor.parse(str(taken[-1][1]))
        assert cursor.remaining_bytes(extents) == (len(wanted) - len(_pages(read))) * PAGE
    assert _pages(read) == wanted


def test_pages_of_a_file_that_is_gone_are_read_again() -> None:
    cursor = CopyCursor(copied=(CopiedPages(100, 100, 0, None),))
    assert list(cursor.chunks([_leaf(100, 3)], SCHEMA, None, PAGE)) == []
    chunks = [chunk for chunk, _ in cursor.chunks([_leaf(100, 3, file=7)], SCHEMA, None, PAGE)]
    assert _pages(chunks) == [(100, page) for page in range(3)]


def test_pages_that_follow_one_another_are_one_run() -> None:
    parts = [CopiedPages(1, 1, 4, 9), CopiedPages(1, 1, 0, 4), CopiedPages(1, 1, 9, None), CopiedPages(2, 2, 0, 1)]
    assert joined(parts) == (CopiedPages(1, 1, 0, None), CopiedPages(2, 2, 0, 1))


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
