"""How tests are spread over processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fixtures import balance, memory_folder, waiting


def test_every_long_file_is_there_and_named_once() -> None:
    assert [name for name in balance.LONG if not (balance.ROOT / name).exists()] == []
    assert len(set(balance.LONG)) == len(balance.LONG)


def test_long_files_come_first_and_the_others_keep_their_order() -> None:
    long = [SimpleNamespace(path=balance.ROOT / name) for name in balance.LONG for _ in range(2)]
    short = [SimpleNamespace(path=Path(f"test_{number}.py")) for number in range(5)]
    items: list[Any] = [*short, *long]
    random.shuffle(items)
    kept = [item for item in items if item in short]
    balance.pytest_collection_modifyitems(items)
    assert [item.path for item in items[: len(long)]] == [item.path for item in long]
    assert items[len(long) :] == kept


@pytest.mark.parametrize(
    ("cores", "gigabytes", "processes"), [(1, 16, 2), (2, 16, 4), (4, 64, 8), (8, 8, 2), (2, 1, 1)]
)
def test_there_are_more_processes_than_cores_as_far_as_memory_goes(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gigabytes << 30))
    assert balance.pytest_xdist_auto_num_workers() == processes


@pytest.mark.parametrize(("free", "available", "used"), [(20, 20, True), (1, 20, False), (20, 8, False)])
def test_temporary_files_are_in_memory_where_there_is_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, available: int, used: bool
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(memory_folder, "MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free << 30))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available << 30))
    folder = memory_folder.memory_folder()
    assert (folder is not None) is used
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert memory_folder.memory_folder() is None


def test_the_folders_of_runs_that_have_ended_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_folder, "MEMORY", tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (os.getpid(), ended.pid):
        (tmp_path / f"{memory_folder.PREFIX}{pid}" / "files").mkdir(parents=True)
    memory_folder.remove_stale()
    assert [folder.name for folder in tmp_path.iterdir()] == [f"{memory_folder.PREFIX}{os.getpid()}"]


def test_a_deadline_is_longer_on_an_overloaded_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for load, longer in ((0.0, 1.0), (1.9, 1.0), (8.0, 4.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 99.0, 99.0))
        assert waiting.busy() == longer
    calls = []
    with pytest.raises(AssertionError, match="did not become true"):
        waiting.wait_until(lambda: calls.append(1), 0.0, 0.0)
    assert calls
