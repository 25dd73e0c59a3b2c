"""What every test may ask for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = [
    "fixtures.balance",
    "fixtures.clock",
    "fixtures.pg",
    "fixtures.project",
    "fixtures.spark",
    "fixtures.spark_cluster",
    "fixtures.standby",
    "fixtures.tally",
    "fixtures.tls",
    "fixtures.campaign",
    "fixtures.examples",
    "fixtures.object_storage",
]


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., Any]:
    """`wait_until(condition, timeout=30)`; also importable from `fixtures.waiting`."""
    from fixtures.waiting import wait_until

    return wait_until
