"""Sinks are found by adapter name, and a missing driver says how to install it."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.config.models import PostgresConnection
from trucker.errors import ConfigError
from trucker.sinks import registry
from trucker.sinks.base import Workspace

WORKSPACE = Workspace("project", Path("unused"))


def test_a_built_in_sink() -> None:
    sink = registry.make_sink(PostgresConnection(name="p"), WORKSPACE)
    assert type(sink).__name__ == "PostgresSink"


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for name in [name for name in sys.modules if name.startswith("trucker.sinks.duckdb")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as missing:
        registry.sink_class("duckdb")
    assert missing.value.remedy == 'pip install "trucker[duckdb]"'


def test_another_missing_module_is_not_taken_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "duckdb", registry.BuiltIn("no_such_module_at_all", "X", driver="duckdb"))
    with pytest.raises(ModuleNotFoundError):
        registry.sink_class("duckdb")


class Theirs:
    def __init__(self, connection: Any, workspace: Workspace) -> None:
        self.made_with = (connection, workspace)


def test_a_sink_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:Theirs", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.GROUP else [])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Theirs.__module__])
    connection: Any = SimpleNamespace(adapter="theirs")
    made: Any = registry.make_sink(connection, WORKSPACE)
    assert made.made_with == (connection, WORKSPACE)


def test_an_unknown_adapter_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'oracle'") as unknown:
        registry.sink_class("oracle")
    assert "postgres" in unknown.value.remedy
