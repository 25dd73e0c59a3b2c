"""Files in a truck's folder that look like its SQL files and are not used are warned of, with the likely name."""

from __future__ import annotations

from pathlib import Path

import pytest

from trucker.config.project_folder import load_project
from trucker.config.sql.sql_files import misnamed_files
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.conditions.trucks import named_files
from trucker.finding import Level


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("inputs.sql", "input.sql"),
        ("tranform.sql", "transform.sql"),
        ("Outputs.SQL", "output.sql"),
        ("function.py", "functions.py"),
        ("notes.sql", ""),
    ],
)
def test_the_likely_name(tmp_path: Path, name: str, likely: str) -> None:
    (tmp_path / name).touch()
    assert [(path.name, meant) for path, meant in misnamed_files(tmp_path)] == [(name, likely)]


@pytest.mark.parametrize("name", ["input.sql", "OUTPUT.SQL", "functions.py", "truck.yml", "notes.md", ".input.sql"])
def test_files_that_are_used_or_have_nothing_to_do_with_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert list(misnamed_files(tmp_path)) == []


def test_a_start_finds_it(tmp_path: Path) -> None:
    folder = tmp_path / "trucks" / "orders"
    folder.mkdir(parents=True)
    (tmp_path / "trucker.yml").write_text("connections:\n  - {name: a}\n  - {name: b, adapter: jsonl, path: b}\n")
    (folder / "truck.yml").write_text("input: {connection: a, tables: public.*}\noutput: {connection: b}\n")
    (folder / "inputs.sql").write_text("select 1")
    (finding,) = named_files(Situation(load_project(tmp_path)))
    assert finding.level is Level.WARNING
    assert finding.code == "TRK126"
    assert str(folder / "inputs.sql") in finding.message
    assert finding.remedy.startswith("rename it to input.sql")
