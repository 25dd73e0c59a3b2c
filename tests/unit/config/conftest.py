"""A project made of texts, and what loading it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trucker.config.models import ProjectConfig
from trucker.config.problems import ConfigErrors
from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

PROJECT = """\
connections:
  - name: main
  - name: duck
    adapter: duckdb
    path: out.duckdb
"""

TRUCK = """\
input:
  connection: main
  table: public.orders
output:
  connection: duck
"""

Write = Callable[..., Path]
Load = Callable[..., ProjectConfig]
Mistakes = Callable[..., list[ConfigError]]


@pytest.fixture(name="write")
def _write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write(project, truck, **files)`: a project in `shop/` of the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(project: str | None = PROJECT, truck: str | None = TRUCK, files: dict[str, str] | None = None) -> Path:
        texts = {"trucker.yml": project, "trucks/orders/truck.yml": truck, **(files or {})}
        (tmp_path / "shop").mkdir(exist_ok=True)
        for name, text in texts.items():
            if text is not None:
                path = tmp_path / "shop" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return Path("shop")

    return write


@pytest.fixture(name="load")
def _load(write: Write) -> Load:
    """`write` and load."""
    return lambda *texts, **named: load_project(write(*texts, **named))


@pytest.fixture(name="mistakes")
def _mistakes(load: Load) -> Mistakes:
    """All that is wrong with the project as written."""

    def mistakes(*texts: str | None, **named: dict[str, str]) -> list[ConfigError]:
        with pytest.raises(ConfigError) as caught:
            load(*texts, **named)
        return list(caught.value.errors) if isinstance(caught.value, ConfigErrors) else [caught.value]

    return mistakes
