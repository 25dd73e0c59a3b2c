"""COPY's text format: escapes, NULLs, slices and sizes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.sinks import copy_text as module
from trucker.sinks.copy_text import copy_text, escape

UNESCAPED = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}


def parse(text: bytes) -> list[list[str | None]]:
    """COPY's text read back, cell by cell, as the server does."""
    lines = text.decode().split("\n")
    assert lines.pop() == ""
    return [[_cell(cell) for cell in line.split("\t")] for line in lines]


def _cell(cell: str) -> str | None:
    if cell == "\\N":
        return None
    found, place = [], 0
    while place < len(cell):
        size = 2 if cell[place] == "\\" else 1
        piece = cell[place : place + size]
        found.append(UNESCAPED[piece] if size == 2 else piece)
        place += size
    return "".join(found)


def text_of(columns: list[pa.Array | str], rows: int) -> bytes:
    return b"".join(piece.to_pybytes() for piece in copy_text(columns, rows))


CELLS = st.none() | st.text(st.characters(codec="utf-8") | st.sampled_from("\\\t\n\rN."), max_size=8)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=6)))
def test_what_is_written_is_read_back(rows: list[list[str | None]]) -> None:
    width = len(rows[0]) if rows else 1
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(width)]
    assert parse(text_of(columns, len(rows))) == rows


@given(st.lists(CELLS, min_size=3, max_size=8))
def test_a_slice_is_only_itself(cells: list[str | None]) -> None:
    sliced = pa.array(cells, pa.string()).slice(1, len(cells) - 2)
    assert parse(text_of([sliced, "7"], len(sliced))) == [[cell, "7"] for cell in cells[1:-1]]


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=20), st.integers(1, 40))
def test_large_rows_come_in_several_buffers(rows: list[list[str | None]], limit: int) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LIMIT", limit)
        assert parse(text_of(columns, len(rows))) == rows


def test_constants() -> None:
    assert text_of(["1", "x"], 3) == b"1\tx\n" * 3
    assert text_of([pa.array(["a", None]), "0"], 2) == b"a\t0\n\\N\t0\n"
    assert text_of([pa.nulls(2, pa.string())], 2) == b"\\N\n\\N\n"
    assert text_of(["1"], 0) == b""


def test_nothing_to_escape_costs_nothing() -> None:
    cells = pa.array(["plain", None, ""])
    assert escape(cells) is cells


def test_the_end_marker_is_no_marker() -> None:
    assert text_of([pa.array(["\\."])], 1) == b"\\\\.\n"
