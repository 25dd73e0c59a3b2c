"""What a truck may not be, seen before any row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_source import FakeSource
from trucker.change import TableId
from trucker.config.models import InputConfig, OutputConfig, TruckConfig
from trucker.config.sql.sql_files import SqlFile
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ConfigError
from trucker.testing.handmade import schema_of

ONE = schema_of(TableId("public", "one"), {"id": "integer not null", "n": "integer"}, ["id"])


def compiled(*, letters: int | None = None, files: dict[str, str] | None = None, **settings: Any) -> Any:
    names = ["one", "two"]
    config = TruckConfig(
        name="shared",
        folder=Path(),
        input=InputConfig(connection="source", tables=("public.one", "public.two")),
        output=OutputConfig(connection="there", table="public.both", **settings),
        files=tuple(SqlFile(name, name, text) for name, text in (files or {}).items()),
    )
    tables = {
        TableId("public", name): InputTable(TableId("public", name), TableId("public", "both"), ("id",))
        for name in names
    }
    truck = Truck("shared", "source", "there", tables, letters, config)
    recipes = Recipes(FakeSource(), {"there": False}, 1000)
    return recipes.of(truck, tables[ONE.table].target("shared", ONE))


def test_several_tables_into_one_are_shared() -> None:
    target, recipe = compiled()
    assert target.shared
    assert recipe.reads == ONE


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"letters": 10}, "dead_letter"),
        ({"files": {"transform.sql": "select id, operation from {{ rows }}"}}, "rows to delete"),
        ({"key": ("n",)}, "output.key"),
    ],
)
def test_what_a_shared_output_cannot_have(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compiled(**settings)
    assert said in f"{caught.value.message} {caught.value.remedy}"
