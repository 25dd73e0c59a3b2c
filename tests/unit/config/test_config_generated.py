"""What is made from the models: schemas, reference pages and the starter project."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trucker.config.models import ProjectFile, TruckFile
from trucker.config.problems import keys_of
from trucker.config.project_folder import load_project
from trucker.config.registry import installed
from trucker.config.schema import project_schema, truck_schema
from trucker.config.starter import IGNORED, TRUCK_YML, TRUCKER_YML, write_starter
from trucker.errors import ConfigError

ROOT = Path(__file__).parents[3]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_on_disk_are_those_the_code_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    stale = tool().generate(ROOT / "docs" / "reference", check=True)
    assert stale == [], "run: python tools/gen_docs.py"


def test_check_writes_nothing_and_generate_writes_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    gen_docs = tool()
    assert len(gen_docs.generate(tmp_path, check=True)) == len(gen_docs.PAGES)
    assert list(tmp_path.iterdir()) == []
    assert len(gen_docs.generate(tmp_path, check=False)) == len(gen_docs.PAGES)
    assert gen_docs.generate(tmp_path, check=True) == []
    (tmp_path / "cli.md").write_text("old", encoding="utf-8")
    assert gen_docs.generate(tmp_path, check=True) == [tmp_path / "cli.md"]


def test_every_key_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    for model in (ProjectFile, TruckFile, *(adapter.connection for adapter in installed().built_in())):
        for key in keys_of(model):
            assert f"| `{key}` |" in page


def _walk(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [inner for entry in schema for inner in _walk(entry)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(inner for entry in schema.values() for inner in _walk(entry))]


@pytest.mark.parametrize("schema", [project_schema(installed().built_in()), truck_schema()], ids=["trucker", "truck"])
def test_schemas_hold_together(schema: dict[str, Any]) -> None:
    json.dumps(schema)
    for part in _walk(schema):
        reference = part.get("$ref")
        if isinstance(reference, str):
            target: Any = schema
            for step in reference.removeprefix("#/").split("/"):
                target = target[step]


def test_schema_knows_the_keys_as_written() -> None:
    definitions = project_schema(installed().built_in())["$defs"]
    postgres = definitions["PostgresConnection"]["properties"]
    assert {"pass", "pass_path", "url", "url_path", "replica_pass", "ssl", "port_path"} <= set(postgres)
    assert "password" not in postgres
    assert {"type": "string", "pattern": "{{|{%", "description": "A template."} in postgres["port"]["anyOf"]
    assert "schema" in truck_schema()["$defs"]["OutputConfig"]["properties"]


def test_starter_loads(tmp_path: Path) -> None:
    written = write_starter(tmp_path / "new")
    assert [path.relative_to(tmp_path / "new").as_posix() for path in written] == [
        "trucker.yml",
        "trucks/example/truck.yml",
        ".gitignore",
    ]
    config = load_project(tmp_path / "new")
    assert config.unique_id == "new"
    assert [truck.name for truck in config.trucks] == ["example"]


def test_starter_loads_with_everything_uncommented(tmp_path: Path) -> None:
    """What is commented must be right too, once somebody takes the # away."""
    write_starter(tmp_path)
    lines = TRUCKER_YML.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("# state:"))
    settings = [line.removeprefix("# ") for line in lines[first:]]
    (tmp_path / "trucker.yml").write_text("\n".join([*lines[:first], *settings]) + "\n", encoding="utf-8")
    config = load_project(tmp_path)
    assert (config.log.keep, config.log.max_bytes, config.retry.first) == (604800, 10 * 1024**3, 0.5)
    assert config.spark.settings == {"spark.driver.memory": "2g"}


def test_starter_shows_every_setting() -> None:
    for key in keys_of(ProjectFile):
        assert f"{key}:" in TRUCKER_YML
    for key in ("only_columns", "except_columns", "where", "table", "tables", "schema", "columns"):
        assert f"{key}:" in TRUCK_YML


@pytest.mark.parametrize("existing", ["trucker.yml", "trucks/example/truck.yml"])
def test_starter_overwrites_nothing(tmp_path: Path, existing: str) -> None:
    path = tmp_path / existing
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="already exists"):
        write_starter(tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_starter_adds_to_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n.trucker/\n", encoding="utf-8")
    write_starter(tmp_path)
    lines = (tmp_path / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert lines == ["mine", *IGNORED]


def test_starter_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_starter(tmp_path / "file" / "x")
