"""How a batch is cut into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.changelog.reader import BlockRef
from trucker.changelog.segment import SegmentId
from trucker.engine.plan import RECEIPTS, Table, consecutive, room

MIB = 1 << 20


def block(size: int) -> BlockRef:
    return BlockRef(SegmentId(Lsn(1), 0), 0, size, Lsn(1), Lsn(2), ())


def test_a_small_batch_is_one_part() -> None:
    assert len(consecutive([block(1000)] * 10, 16 * MIB)) == 1


def test_a_large_batch_has_parts_of_equal_size() -> None:
    assert [len(part.blocks) for part in consecutive([block(MIB)] * 640, 16 * MIB)] == [16] * 40
    assert [len(part.blocks) for part in consecutive([block(4 * MIB)] * 5, 16 * MIB)] == [3, 2]


@given(st.lists(st.integers(100, 8 * MIB), min_size=1, max_size=80), st.integers(MIB, 40 * MIB))
def test_parts_cover_every_block_once_in_order_and_are_bounded(sizes: list[int], part_bytes: int) -> None:
    """I9: however large the batch, no part has more than its bytes and half a block, or a single block."""
    blocks = [block(size) for size in sizes]
    parts = consecutive(blocks, part_bytes)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert [each for part in parts for each in part.blocks] == blocks
    for part in parts:
        assert len(part.blocks) == 1 or sum(b.bytes for b in part.blocks) <= part_bytes + max(sizes) / 2


@given(st.integers(1, 100_000), st.integers(1, 5_000))
def test_receipts_together_are_bounded(parts: int, targets: int) -> None:
    """I9: what the driver collects does not grow with the batch."""
    assert room(parts, targets) * parts * targets <= RECEIPTS


def test_a_truck_always_takes_the_key() -> None:
    name = TableId("public", "t")
    schema = TableSchema(name, (Column("id", 23), Column("a", 25), Column("b", 25)), ("id",))
    only = Table(name, name, ("id",), only=frozenset({"b"})).target("truck", schema)
    assert only.source.names == ("id", "b")
    excepted = Table(name, name, ("id",), excepted=frozenset({"b"})).target("truck", schema)
    assert excepted.source.names == ("id", "a")
