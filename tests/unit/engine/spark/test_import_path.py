"""Workers on the driver's machine import what the program imports."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.engine.spark.interpreter import share_import_path


def _shared(**environment: str) -> list[str]:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment=environment))
    share_import_path(spark)
    share_import_path(spark)
    return str(spark.sparkContext.environment["PYTHONPATH"]).split(os.pathsep)


def test_the_folders_of_the_program_are_shared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend("here")
    paths = _shared(PYTHONPATH="/already/there")
    assert paths[:3] == ["/already/there", str(tmp_path / "here"), str(tmp_path)]
    assert len(paths) == len(set(paths))


def test_what_every_interpreter_has_is_not_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "absent"))
    paths = _shared()
    assert sysconfig.get_paths()["stdlib"] not in paths
    assert not set(site.getsitepackages()) & set(paths)
    assert str(tmp_path / "absent") not in paths
