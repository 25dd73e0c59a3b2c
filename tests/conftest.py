"""What every test may ask for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# Where byte code is not kept, each of the many processes that the tests start compiles all modules that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background job ignores SIGINT, and so would every process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any example may take long: how fast it is, is no property of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

pytest_plugins = [
    "fixtures.balance",
    "fixtures.clock",
    "fixtures.memory_folder",
    "fixtures.pg",
    "fixtures.project",
    "fixtures.spark",
    "fixtures.spark_cluster",
    "fixtures.standby",
    "fixtures.tally",
    "fixtures.tls",
    "fixtures.campaign",
    "fixtures.examples",
    "fixtures.jetstream",
    "fixtures.nats_sink",
    "fixtures.object_storage",
    "fixtures.kafka",
]


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., Any]:
    """`wait_until(condition, timeout=30)`; also importable from `fixtures.waiting`."""
    from fixtures.waiting import wait_until

    return wait_until
