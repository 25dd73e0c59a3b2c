"""SQL that takes long is told, with truck, file, rows and time."""

from __future__ import annotations

import logging
import pickle

import pytest

from trucker.slow_sql import SlowQueries


def test_only_slow_statements_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trucker.slow"):
        with SlowQueries("shop", 3_600_000).watch("trucks/shop/input.sql", 5):
            pass
        assert caplog.records == []
        with pickle.loads(pickle.dumps(SlowQueries("shop", 0))).watch("trucks/shop/input.sql", 5) as timing:
            timing.given = 7
        with pytest.raises(ValueError, match="fails"), SlowQueries("shop", 0).watch("trucks/shop/output.sql", 1):
            raise ValueError("fails")
    first, second = caplog.records
    assert first.getMessage() == second.getMessage() == "slow query"
    assert (vars(first)["file"], vars(second)["file"]) == ("trucks/shop/input.sql", "trucks/shop/output.sql")
    assert "rows_out" not in vars(second)
    assert (vars(first)["truck"], vars(first)["rows"], vars(first)["rows_out"]) == ("shop", 5, 7)
    assert vars(first)["milliseconds"] >= 0
