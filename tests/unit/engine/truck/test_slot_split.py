"""A source split by its slots: names, parts of trucks, and tables that must not be parted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trucker.adapters.postgres import PostgresConnection
from trucker.change import Column, TableId, TableSchema
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.sql_files import SqlFile
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.slot_split import split
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ConfigError


def _id(name: str) -> TableId:
    return TableId("shop", name)


def _truck(name: str, *tables: str, config: TruckConfig | None = None, output: str = "") -> Truck:
    found = {_id(table): InputTable(_id(table), _id(output or table), ("id",)) for table in tables}
    return Truck(name, "shop", "there", found, config=config)


def _config(name: str, **settings: Any) -> TruckConfig:
    ends = {"input": {"connection": "shop", "tables": ["shop.*"]}, "output": {"connection": "there"}}
    return TruckConfig.model_validate({**ends, **settings, "name": name, "folder": Path("/p")})


def _with_output(name: str) -> TruckConfig:
    return _config(name, files=(SqlFile("output.sql", "sums/output.sql", "delete from x"),))


def _split(slots: Any, *trucks: Truck, **more: Any) -> dict[str, ResolvedSource]:
    connection = PostgresConnection(name="shop", slots=slots, **more)
    project = ProjectConfig(unique_id="demo", folder=Path("/p"), connections=(connection,), state=Path("/s"))
    names = sorted({table for truck in trucks for table in truck.tables})
    tables: Any = {name: SimpleNamespace(schema=TableSchema(name, (Column("id", 23),), ("id",))) for name in names}
    source: Any = SimpleNamespace(publication="p", slot="s")
    whole = ResolvedSource("shop", connection, source, trucks, tables, ())
    return {stream.name: stream for stream in split(project, whole)}


def _tables(streams: dict[str, ResolvedSource]) -> dict[str, list[str]]:
    return {name: sorted(table.name for table in stream.tables) for name, stream in streams.items()}


def test_one_slot_is_the_source_as_it_is() -> None:
    (stream,) = _split(1, _truck("copy", "a", "b")).values()
    assert (stream.name, stream.publication, stream.slot, stream.trucks[0].name) == ("shop", "p", "s", "copy")
    assert _split([["shop.a"]], _truck("copy", "a", "b"))["shop"].slot == "s"


def test_every_stream_has_its_tables_and_names() -> None:
    streams = _split([["shop.a"], ["shop.b"]], _truck("copy", "a", "b"), _truck("lake", "b"))
    assert _tables(streams) == {"shop": ["a"], "shop~2": ["b"]}
    first, second = streams.values()
    assert (first.publication, first.slot) == ("trucker_demo_shop", "trucker_demo_shop")
    assert second.slot == second.publication
    assert second.slot.startswith("trucker_demo_shop_2_")
    assert first.source != second.source
    assert [truck.name for truck in first.trucks] == ["copy"]
    assert [(truck.name, list(truck.tables)) for truck in second.trucks] == [
        ("copy~2", [_id("b")]),
        ("lake~2", [_id("b")]),
    ]
    assert [published.table for published in second.published] == [_id("b")]
    assert {truck.source for stream in streams.values() for truck in stream.trucks} == {"shop"}


def test_names_made_beforehand_are_numbered() -> None:
    streams = _split([["shop.a"], ["shop.b"]], _truck("copy", "a", "b"), slot="changes", publication="theirs")
    assert [(stream.slot, stream.publication) for stream in streams.values()] == [
        ("changes", "theirs"),
        ("changes_2", "theirs_2"),
    ]


def test_a_slot_without_tables_is_none() -> None:
    assert _tables(_split([["shop.x"], ["shop.*"]], _truck("copy", "a", "b"))) == {"shop~2": ["a", "b"]}


@pytest.mark.parametrize(
    "together",
    [
        {"config": _with_output("sums")},
        {"config": _config("sums"), "output": "all"},
        {"config": _config("sums", compact="none")},
        {"config": _config("sums", batch="transaction")},
    ],
)
def test_tables_whose_order_shows_are_not_parted(together: dict[str, Any]) -> None:
    names = [f"t{number}" for number in range(20)]
    sums, copy = _truck("sums", *names[:10], **together), _truck("copy", *names)
    streams = _split(4, sums, copy)
    assert len(streams) == 4
    assert len([part for stream in streams.values() for part in stream.trucks if part.name.startswith("sums")]) == 1
    with pytest.raises(ConfigError, match=r"truck sums: .* shop.t0 in slot 2, shop.t1 in slot 1") as caught:
        _split([["shop.x"], ["shop.t0"]], _truck("sums", "t0", "t1", **together))
    assert caught.value.code == "TRK123"


def test_trucks_that_share_a_table_stay_together() -> None:
    """However they are written, and whatever other trucks there are."""
    trucks = [
        _truck("one", "a", "b", config=_with_output("one")),
        _truck("two", "c", "d", config=_with_output("two")),
        _truck("three", "b", "c", config=_with_output("three")),
    ]
    for order in (trucks, trucks[::-1], [trucks[2], *trucks[:2]]):
        streams = _split(8, *order, _truck("copy", "a", "b", "c", "d", "e"))
        assert ["a", "b", "c", "d"] in [[t for t in tables if t != "e"] for tables in _tables(streams).values()]
