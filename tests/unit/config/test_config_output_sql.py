"""output.sql where it cannot be: refused when the project is loaded, with file and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

PROJECT = """connections:
  - {name: shop, database: shop}
  - {name: lines, adapter: jsonl, path: lines}
  - {name: out, adapter: stdout}
  - {name: duck, adapter: duckdb, path: data.duckdb}
"""


def _project(folder: Path, destination: str, more: str = "") -> Path:
    truck = folder / "trucks" / "orders"
    truck.mkdir(parents=True)
    (folder / "trucker.yml").write_text(PROJECT)
    (truck / "truck.yml").write_text(
        f"input: {{connection: shop, table: public.orders}}\noutput: {{connection: {destination}}}\n{more}"
    )
    (truck / "output.sql").write_text("insert into copies select r.id from {{ rows }}\n")
    return folder


@pytest.mark.parametrize("destination", ["lines", "out"])
def test_a_destination_that_runs_no_sql(tmp_path: Path, destination: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_project(_project(tmp_path, destination))
    assert caught.value.code == "TRK118"
    assert caught.value.message.startswith("trucks/orders/output.sql: ")
    assert "postgres or duckdb" in caught.value.remedy


def test_letters_and_statements(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_project(_project(tmp_path, "duck", "on_error: dead_letter\n"))
    assert caught.value.code == "TRK119"
    assert "truck.yml:3:" in caught.value.message
    assert "output.sql" in caught.value.remedy


@pytest.mark.parametrize("destination", ["shop", "duck"])
def test_a_destination_that_does(tmp_path: Path, destination: str) -> None:
    (truck,) = load_project(_project(tmp_path, destination)).trucks
    assert truck.file("output.sql") is not None
