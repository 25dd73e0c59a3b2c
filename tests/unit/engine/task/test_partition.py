"""How a batch is cut into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.changelog.format.segment import SegmentId
from trucker.changelog.reader import BlockRef
from trucker.engine.task.partition import PIECES, RECEIPTS, consecutive, joined, room
from trucker.engine.task.payload import StreamPart
from trucker.engine.truck.truck import InputTable

MIB = 1 << 20


def block(size: int) -> BlockRef:
    return BlockRef(SegmentId(Lsn(1), 0), 0, size, Lsn(1), Lsn(2), ())


def blocks(part: StreamPart) -> int:
    return sum(map(len, part.pieces))


def test_a_small_batch_is_one_part() -> None:
    assert len(consecutive([block(1000)] * 10, 16 * MIB)) == 1


def test_a_large_batch_has_parts_of_equal_size() -> None:
    assert [blocks(part) for part in consecutive([block(MIB)] * 640, 16 * MIB)] == [16] * 40
    assert [blocks(part) for part in consecutive([block(4 * MIB)] * 5, 16 * MIB)] == [3, 2]


@given(st.lists(st.integers(100, 8 * MIB), min_size=1, max_size=80), st.integers(MIB, 40 * MIB))
def test_parts_cover_every_block_once_in_order_and_are_bounded(sizes: list[int], part_bytes: int) -> None:
    """I9: however large the batch, no part has more than its bytes and half a block, or a single block."""
    given = [block(size) for size in sizes]
    parts = consecutive(given, part_bytes)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert [each for part in parts for piece in part.pieces for each in piece] == given
    for part in parts:
        (piece,) = part.pieces
        assert len(piece) == 1 or sum(b.bytes for b in piece) <= part_bytes + max(sizes) / 2


@given(st.integers(1, 100), st.floats(0, 1))
def test_joined_parts_have_the_same_pieces_under_the_same_numbers(count: int, left: float) -> None:
    given = consecutive([block(16 * MIB)] * count, 16 * MIB)
    assert len(given) == count
    parts = joined(given, left)
    numbered = [(part.index + n, piece) for part in parts for n, piece in enumerate(part.pieces)]
    assert numbered == [(part.index, part.pieces[0]) for part in given]
    assert all(len(part.pieces) <= PIECES for part in parts)
    sizes = {len(part.pieces) for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_parts_are_as_many_as_what_is_left_is_worth() -> None:
    given = consecutive([block(16 * MIB)] * 4, 16 * MIB)
    assert [len(joined(given, left)) for left in (1.0, 0.6, 0.5, 0.26, 0.25, 0.01, 0.0)] == [4, 4, 2, 2, 1, 1, 1]


@given(st.integers(1, 100_000), st.integers(1, 5_000))
def test_receipts_together_are_bounded(parts: int, targets: int) -> None:
    """I9: what the driver collects does not grow with the batch."""
    assert room(parts, targets) * parts * targets <= RECEIPTS


def test_a_truck_always_takes_the_key() -> None:
    name = TableId("public", "t")
    schema = TableSchema(name, (Column("id", 23), Column("a", 25), Column("b", 25)), ("id",))
    only = InputTable(name, name, ("id",), only=frozenset({"b"})).target("truck", schema)
    assert only.source.names == ("id", "b")
    excepted = InputTable(name, name, ("id",), excepted=frozenset({"b"})).target("truck", schema)
    assert excepted.source.names == ("id", "a")
