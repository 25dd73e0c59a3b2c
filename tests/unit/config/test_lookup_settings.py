"""`lookups` in truck.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

PROJECT = """
connections:
  - name: source
  - {name: crm, adapter: duckdb, path: crm.duckdb}
  - {name: lines, adapter: jsonl, path: lines}
"""
TRUCK = """\
input: {connection: source, table: orders}
output: {connection: crm}
lookups:
  customers:
"""


def _load(folder: Path, lookup: str) -> object:
    (folder / "trucks" / "orders").mkdir(parents=True)
    (folder / "trucker.yml").write_text(PROJECT)
    (folder / "trucks" / "orders" / "truck.yml").write_text(TRUCK + lookup)
    (truck,) = load_project(folder).trucks
    return truck.lookups["customers"]


def test_by_keys_and_kept(tmp_path: Path) -> None:
    one = _load(tmp_path / "a", "    connection: source\n    table: customers\n    on: {id: customer_id}\n")
    other = _load(tmp_path / "b", "    {connection: crm, table: main.customers, columns: name, cache: 10m}\n")
    assert (one.on, one.cache, one.columns) == ({"id": "customer_id"}, None, None)  # type: ignore[attr-defined]
    assert (other.on, other.cache, other.columns) == ({}, 600.0, ("name",))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lookup", "code", "place", "said"),
    [
        ("    {connection: source, table: customers}", "TRK105", "5:5", "either on or cache"),
        ("    {connection: source, table: t, on: {id: x}, cache: 1m}", "TRK105", "5:49", "either on or cache"),
        ("    {connection: sorce, table: t, cache: 1m}", "TRK107", "5:18", 'no connection "sorce"'),
        ("    {connection: lines, table: t, cache: 1m}", "TRK109", "5:18", "cannot be looked up"),
        ("    {connection: source, table: public.*, cache: 1m}", "TRK105", "5:33", "a single table"),
        ("    {connection: source, table: t, cache: 1m, key: id}", "TRK104", "5:47", 'unknown key "key"'),
        ("    {connection: source, cache: 1m}", "TRK106", "5:5", '"table" is missing'),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, lookup: str, code: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, lookup + "\n")
    assert (caught.value.code, said in caught.value.message) == (code, True)
    assert f"truck.yml:{place}" in caught.value.message
