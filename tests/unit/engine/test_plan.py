"""How a batch is cut into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trucker.change import Column, Lsn, TableId, TableSchema
from trucker.changelog.reader import BlockRef
from trucker.changelog.segment import SegmentId
from trucker.engine.plan import Table, consecutive, spread

MIB = 1 << 20


def block(size: int) -> BlockRef:
    return BlockRef(SegmentId(Lsn(1), 0), 0, size, Lsn(1), Lsn(2), ())


def test_a_small_batch_is_one_part() -> None:
    assert spread([block(1000)] * 10, parallelism=8, part_bytes=64 * MIB) == 1


def test_a_large_batch_has_a_part_for_every_task_and_no_part_too_large() -> None:
    assert spread([block(MIB)] * 64, parallelism=2, part_bytes=64 * MIB) == 2
    assert spread([block(MIB)] * 640, parallelism=2, part_bytes=64 * MIB) == 10


@given(st.lists(st.integers(0, 50 * MIB), max_size=50), st.integers(1, 20))
def test_consecutive_ranges_cover_every_block_once_and_in_order(sizes: list[int], count: int) -> None:
    ranges = consecutive([block(size) for size in sizes], count)
    assert len(ranges) == count
    assert [number for own in ranges for number in own] == list(range(len(sizes)))


def test_a_truck_always_takes_the_key() -> None:
    name = TableId("public", "t")
    schema = TableSchema(name, (Column("id", 23), Column("a", 25), Column("b", 25)), ("id",))
    only = Table(name, name, ("id",), only=frozenset({"b"})).target("truck", schema)
    assert only.source.names == ("id", "b")
    excepted = Table(name, name, ("id",), excepted=frozenset({"b"})).target("truck", schema)
    assert excepted.source.names == ("id", "a")
