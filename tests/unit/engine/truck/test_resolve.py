"""Outputs against inputs, and what a publication must hold for several trucks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.fake_source import FakeCatalog, FakeSource
from trucker.adapters.postgres import PostgresConnection
from trucker.change import Column, TableId, TableSchema
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.engine.truck.resolve import ResolvedSource, check_outputs, published_tables, resolve_source, truck_of
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ConfigError, SourceError
from trucker.source.publication import PublishedTable
from trucker.types import Unfit

HERE, THERE = ("1", "shop"), ("2", "shop")


def truck(name: str, *tables: str, source: str = "source", destination: str = "there", schema: str = "public") -> Truck:
    found = {}
    for table in tables:
        place = TableId("public", table)
        found[place] = InputTable(place, TableId(schema, table), ("id",))
    return Truck(name, source, destination, found)


def _refused(*trucks: Truck, shared: frozenset[str] = frozenset(), **databases: tuple[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        check_outputs(trucks, {"source": HERE, "there": THERE, **databases}, shared)
    return refused.value.code


def test_copies_elsewhere_are_fine() -> None:
    trucks = [truck("one", "a", "b"), truck("two", "a", schema="second"), truck("three", "a", destination="lake")]
    check_outputs(trucks, {"source": HERE, "there": THERE}, frozenset())


def test_an_output_that_is_an_input_of_any_truck_is_a_loop() -> None:
    assert _refused(truck("one", "a", destination="source")) == "TRK121"
    assert _refused(truck("one", "a", destination="alias"), alias=HERE) == "TRK121"
    assert _refused(truck("one", "a"), truck("back", "a", source="there", destination="source")) == "TRK121"


def test_two_inputs_for_one_output() -> None:
    assert _refused(truck("one", "a"), truck("two", "a")) == "TRK122"
    assert _refused(truck("one", "a", destination="lake"), truck("two", "a", destination="lake")) == "TRK122"
    both = [truck("one", "a", destination="files"), truck("two", "a", destination="files")]
    check_outputs(both, {"source": HERE}, frozenset({"files"}))


def _source(*columns: str) -> Any:
    schema = TableSchema(TableId("public", "a"), tuple(Column(c, 25) for c in columns), ("id",))
    return SimpleNamespace(schema=schema, key_numbers=(1,))


def _takes(name: str, *only: str, where: str | None = None, excepted: tuple[str, ...] = ()) -> Truck:
    place = TableId("public", "a")
    table = InputTable(place, place, ("id",), frozenset(only), frozenset(excepted), where)
    return Truck(name, "source", "there", {place: table})


def test_the_publication_holds_what_any_truck_takes() -> None:
    place = TableId("public", "a")
    tables = {place: _source("id", "x", "y", "z")}
    assert published_tables([_takes("one", "x"), _takes("two", "y")], tables) == (
        PublishedTable(place, ("id", "x", "y"), None),
    )
    assert published_tables([_takes("one", "x"), _takes("two")], tables) == (PublishedTable(place, None, None),)
    assert published_tables([_takes("one", excepted=("z",))], tables) == (
        PublishedTable(place, ("id", "x", "y"), None),
    )
    assert published_tables([_takes("one", where="x > 1"), _takes("two", where="x > 1")], tables)[0].where == "x > 1"


def test_trucks_must_agree_on_the_rows_of_a_table() -> None:
    tables = {TableId("public", "a"): _source("id", "x")}
    with pytest.raises(ConfigError) as refused:
        published_tables([_takes("one", where="x > 1"), _takes("two")], tables)
    assert refused.value.code == "TRK120"


def _configured(tmp_path: Path, table: str, **columns: str) -> TruckConfig:
    output = {"connection": "there", "columns": {name: {"unfit": policy} for name, policy in columns.items()}}
    given = {"input": {"connection": "source", "tables": [table]}, "output": output, "name": "t", "folder": tmp_path}
    return TruckConfig.model_validate(given)


def test_policies_apply_to_the_columns_that_are_read(tmp_path: Path) -> None:
    source = _source("id", "x", "y")
    made = truck_of(_configured(tmp_path, "public.*", x="null", elsewhere="text"), [source])
    target = made.tables[TableId("public", "a")].target("t", source.schema)
    assert target.unfit == (("x", Unfit.NULL),)
    assert (target.unfit_of("x"), target.unfit_of("y")) == (Unfit.NULL, None)


def test_a_key_has_no_policy_null(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'id' is part of the key of public\.a"):
        truck_of(_configured(tmp_path, "public.*", id="null"), [_source("id", "x")])


def _resolved(tmp_path: Path, pattern: str, *tables: str) -> ResolvedSource:
    """What a truck of this pattern takes from a source of these tables."""
    ids = [TableId(*name.split(".")) for name in tables]
    known: Any = {
        table: SimpleNamespace(schema=TableSchema(table, (Column("id", 23),), ("id",)), key_numbers=(1,))
        for table in ids
    }
    trucks = (_configured(tmp_path, pattern),)
    config = ProjectConfig(
        unique_id="demo",
        folder=tmp_path,
        state=Path("state"),
        connections=(PostgresConnection(name="source"),),
        trucks=trucks,
    )
    return resolve_source(config, FakeSource(), FakeCatalog(known))


def test_a_pattern_takes_the_tables_of_the_source_but_not_truckers_own(tmp_path: Path) -> None:
    resolved = _resolved(tmp_path, "*.*", "public.a", "public.b", "trucker.positions")
    assert [str(table) for table in resolved.tables] == ["public.a", "public.b"]
    assert [each.table.name for each in resolved.published] == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "code"), [("public.absent", "TRK210"), ("other.*", "TRK210"), ("trucker.positions", "TRK218")]
)
def test_a_truck_that_can_take_nothing_is_refused(tmp_path: Path, pattern: str, code: str) -> None:
    with pytest.raises(SourceError) as refused:
        _resolved(tmp_path, pattern, "public.a", "trucker.positions")
    assert refused.value.code == code
