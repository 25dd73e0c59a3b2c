"""Debezium's envelope, compared with what the real Debezium wrote of the same changes."""

from __future__ import annotations

from pathlib import Path

from fixtures.debezium import comparison


def test_events_are_those_of_the_real_debezium(tmp_path: Path) -> None:
    """Recorded by `tests/soak/test_debezium_soak.py`."""
    comparison.check(comparison.Recording.load(), tmp_path)
