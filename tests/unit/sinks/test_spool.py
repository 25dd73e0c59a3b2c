from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from trucker.change import Lsn, TableId
from trucker.errors import SinkUnavailable
from trucker.sinks.batch import Batch, Receipt, Work
from trucker.sinks.spool import Inline, Spool, Spooled
from trucker.sinks.target import Target
from trucker.testing.handmade import schema_of

SCHEMA = schema_of(TableId("public", "items"), {"id": "integer"}, ["id"])
OTHER = schema_of(TableId("public", "items.x"), {"id": "integer"}, ["id"])


def work(part: int = 0, truck: str = "main", table: TableId = SCHEMA.table, end: int = 2) -> Work:
    target = Target(truck, schema_of(table, {"id": "integer"}, ["id"]), table)
    return Work(Batch(Lsn(1), Lsn(end), {truck: Lsn(end)}, targets=(target,)), target, part)


def batches(count: int, size: int = 1000) -> list[pa.RecordBatch]:
    return [pa.record_batch({"a": [f"{n} {i} " * 10 for i in range(size)]}) for n in range(count)]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_small_parts_travel_in_the_receipt(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    staged = spool.stage(work(), batches(2))
    assert isinstance(staged, Inline)
    assert list(spool.read(staged)) == batches(2)
    assert files(tmp_path / "spool") == []


def test_large_parts_become_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path, inline_bytes=1000)
    first, second = spool.stage(work(), batches(3)), spool.stage(work(), batches(3))
    assert isinstance(first, Spooled)
    assert isinstance(second, Spooled)
    assert first.file != second.file
    assert files(tmp_path) == sorted([first.file, second.file])
    assert list(spool.read(first)) == batches(3)


def test_what_is_staged_for_the_next_batch_stays(tmp_path: Path) -> None:
    """I3: a commit takes away what was given up for its targets, in its own range and before it."""
    spool = Spool(tmp_path, inline_bytes=0)
    own, given_up = spool.stage(work(), batches(1)), spool.stage(work(part=1), batches(1))
    then = Work(Batch(Lsn(2), Lsn(9)), work().target, 0)
    later = spool.stage(then, batches(2))
    assert isinstance(own, Spooled)
    assert isinstance(given_up, Spooled)
    assert isinstance(later, Spooled)
    spool.keep_only(work().batch, [own])
    assert files(tmp_path) == sorted([own.file, later.file])
    spool.discard(work().batch)
    assert files(tmp_path) == [later.file]
    assert list(spool.read(later)) == batches(2)
    spool.discard(replace(then.batch, targets=(then.target,)))
    assert files(tmp_path) == []


def test_a_copy_leaves_nothing_else_of_its_table(tmp_path: Path) -> None:
    spool = Spool(tmp_path, inline_bytes=0)
    spool.stage(work(end=90), batches(1))
    copy = Batch(Lsn(1), Lsn(1), targets=(work().target,), snapshot="copy")
    spool.discard(copy)
    assert files(tmp_path) == []


def test_nothing_to_stage(tmp_path: Path) -> None:
    assert Spool(tmp_path).stage(work(), []) is None


def test_parts_are_read_in_their_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, inline_bytes=0)
    made = batches(3)
    receipts = [Receipt("main", SCHEMA.table, part, 1, spool.stage(work(part), [made[part]])) for part in (2, 0, 1)]
    assert list(spool.read_all(receipts)) == made


def test_a_failed_part_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Spool(tmp_path, inline_bytes=0).stage(work(), failing())
    assert files(tmp_path) == []


def test_one_batch_at_a_time_is_held(tmp_path: Path) -> None:
    """I9: what was staged is not kept in memory."""

    def many() -> Iterator[pa.RecordBatch]:
        for n in range(200):
            yield pa.record_batch({"a": [n.to_bytes(2, "big") * 50_000]})
            assert pa.total_allocated_bytes() - before < 3_000_000

    gc.collect()
    before = pa.total_allocated_bytes()
    spool = Spool(tmp_path, inline_bytes=10_000)
    staged = spool.stage(work(), many())
    assert staged is not None
    held = [pa.total_allocated_bytes() - before for _ in spool.read(staged)]
    assert len(held) == 200
    assert max(held) < 3_000_000


def test_only_what_the_receipts_name_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, inline_bytes=0)
    mine, given_up = spool.stage(work(), batches(1)), spool.stage(work(end=3), batches(1))
    others = [spool.stage(work(truck="other"), batches(1)), spool.stage(work(table=OTHER.table), batches(1))]
    assert isinstance(mine, Spooled)
    assert isinstance(given_up, Spooled)
    spool.keep_only(work().batch, [mine, None])
    kept = [staged.file for staged in others if isinstance(staged, Spooled)]
    assert files(tmp_path) == sorted([mine.file, *kept])
    spool.discard(work().batch)
    assert files(tmp_path) == sorted(kept)
    spool.clear()
    assert files(tmp_path) == []


def test_clear_takes_unfinished_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "x.arrows.part").touch()
    (tmp_path / "mine.txt").touch()
    Spool(tmp_path).clear()
    assert files(tmp_path) == ["mine.txt"]
    Spool(tmp_path / "absent").clear()


def test_a_file_that_is_gone_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailable, match="TRK451"):
        list(Spool(tmp_path).read(Spooled("gone.arrows")))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkUnavailable, match="TRK450"):
        Spool(tmp_path / "file", inline_bytes=0).stage(work(), batches(1))


def test_any_name_makes_a_file(tmp_path: Path) -> None:
    for name in ("..", "a/b", "*", "[x]", "é" * 63, "x" * 200):
        staged = Spool(tmp_path, inline_bytes=0).stage(work(truck=name, table=TableId(name, name)), batches(1))
        assert isinstance(staged, Spooled)
        assert len(staged.file.encode()) < 240
        assert list(Spool(tmp_path).read(staged)) == batches(1)
        Spool(tmp_path).discard(work(truck=name, table=TableId(name, name)).batch)
        assert files(tmp_path) == []
