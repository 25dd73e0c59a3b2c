"""How much an incremental copy reads at once."""

from __future__ import annotations

import threading

import pytest

from trucker.config.models import CopyConfig
from trucker.engine.snapshot.copy_pace import LEAST_ROUND, ROUND_BYTES, WAIT_SECONDS, CopyPace

MIB = 1 << 20


def test_chunks_grow_until_they_take_as_long_as_they_should() -> None:
    pace = CopyPace(CopyConfig(chunk_seconds=2), cores=2)
    sizes = [pace.chunk_bytes]
    for _ in range(8):
        pace.learn(pace.chunk_bytes / (8 * MIB), 1000, pace.chunk_bytes, 0.0)  # 8 MiB a second
        sizes.append(pace.chunk_bytes)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 16 * MIB


def test_chunks_shrink_on_a_slow_source() -> None:
    pace = CopyPace(CopyConfig(chunk_seconds=1), cores=2)
    before = pace.chunk_bytes
    pace.learn(10.0, 1000, before, 0.0)
    assert pace.chunk_bytes == before // 4


def test_chunks_stay_within_their_limit() -> None:
    pace = CopyPace(CopyConfig(chunk_bytes=8192), cores=2)
    pace.learn(0.001, 10, 8192, 0.0)
    assert pace.chunk_bytes == 8192


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_round_is_bounded(parallel: int) -> None:
    pace = CopyPace(CopyConfig(parallel=parallel), cores=8)
    for _ in range(10):
        pace.learn(0.01, 1000, pace.chunk_bytes, 0.0)
    assert pace.chunks <= pace.readers == parallel
    assert pace.chunks * pace.chunk_bytes <= max(ROUND_BYTES, pace.chunk_bytes)


def test_a_round_is_as_much_as_others_can_wait_for() -> None:
    """Of a destination that writes 20 MiB a second, and an unlimited one once nobody waits."""
    pace = CopyPace(CopyConfig(), cores=2)
    for _ in range(20):
        pace.learn(0.01, 1000, pace.chunk_bytes, pace.chunks * pace.chunk_bytes / (20 * MIB))
    assert 0.5 * WAIT_SECONDS <= pace.chunks * pace.chunk_bytes / (20 * MIB) <= 2 * WAIT_SECONDS
    for _ in range(20):
        pace.learn(0.01, 1000, pace.chunk_bytes, 0.0)
    assert pace.chunks * pace.chunk_bytes == ROUND_BYTES


def test_a_round_is_worth_its_commit_however_long_others_wait() -> None:
    """On a busy machine they wait for a small one as long."""
    pace = CopyPace(CopyConfig(), cores=2)
    for _ in range(20):
        pace.learn(0.01, 1000, pace.chunk_bytes, 10.0)
    assert pace.chunks * pace.chunk_bytes == LEAST_ROUND


def test_a_limit_of_rows_makes_rounds_of_about_a_second() -> None:
    pace = CopyPace(CopyConfig(max_rows_per_second=1000, parallel=1), cores=2)
    for _ in range(3):
        pace.learn(0.001, 10_000, 10_000_000, 0.0)  # 1000 bytes a row
    rows = pace.chunks * pace.chunk_bytes / 1000
    assert rows == pytest.approx(1000, rel=0.1)


def test_a_limit_of_rows_is_waited_for() -> None:
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    CopyPace(CopyConfig(max_rows_per_second=1000), cores=2).rest(2000, 0.5, Stop())
    CopyPace(CopyConfig(), cores=2).rest(2000, 0.5, Stop())
    assert waits == [1.5]
