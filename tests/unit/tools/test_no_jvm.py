"""`tests/unit` starts no JVM: its conftest sees to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trucker.engine.spark.java import cache_folder, find_java


def test_java_cannot_be_started() -> None:
    java = find_java(cache_folder())
    with pytest.raises(AssertionError, match="a unit test starts"):
        subprocess.run([java.binary, "-version"], check=False)


def test_a_program_of_that_name_that_a_test_has_written_can(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    assert subprocess.run([java], check=False).returncode == 0
