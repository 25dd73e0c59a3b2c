"""Unit tests start no JVM: what needs one is in tests/integration, where a session is shared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("java", "spark-submit")
_allowed: list[Path] = []
"""While a unit test runs: the folder that has programs of that name which tests have written."""


def refuse_java(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _allowed:
        program = Path(os.fsdecode(arguments[0]))
        if program.name in _PROGRAMS and not program.is_relative_to(_allowed[-1]):
            raise AssertionError(f"a unit test starts {program}")


sys.addaudithook(refuse_java)


@pytest.fixture(autouse=True)
def _no_jvm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    needs = request.node.get_closest_marker("spark") is not None or "spark" in request.fixturenames
    assert not needs, "tests that need Spark are in tests/integration"
    _allowed.append(tmp_path_factory.getbasetemp())
    yield
    _allowed.pop()
