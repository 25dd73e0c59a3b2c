"""Splits a source over its slots: one stream for each, with its own publication, change log and loop.

What a stream is made of is a source like any other, so that everything that works on a source works on a stream. A
truck whose tables are in several streams has a part in each, with a position of its own at the destination. Parts are
trucks to the destination: it commits each when it comes, and a transaction over tables of two of them in two steps (I5
holds within a stream only).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trucker.config.models import ProjectConfig
from trucker.config.slots import part_name, slot_by_name, slot_of
from trucker.engine.truck.resolve import ResolvedSource, published_tables
from trucker.engine.truck.truck import Truck
from trucker.errors import ConfigError
from trucker.finding import Finding, Level
from trucker.source.factory import make_source
from trucker.table import TableId


def split(config: ProjectConfig, source: ResolvedSource) -> tuple[ResolvedSource, ...]:
    """A source for each slot that has tables; the source as it is where there is one slot."""
    if source.connection.slot_count == 1:
        return (source,)
    places = _places(source)
    return tuple(_stream(config, source, number, places) for number in sorted(set(places.values())))


def spread_findings(source: ResolvedSource, streams: Sequence[ResolvedSource]) -> list[Finding]:
    """What somebody who has several slots should know of them."""
    connection = source.connection
    if connection.slot_count == 1:
        return []
    counts = ", ".join(f"{stream.slot}: {len(stream.tables)}" for stream in streams)
    found = [
        Finding(
            Level.OK,
            connection.name,
            f"tables by slot: {counts}; a transaction over tables of different slots is applied in as many steps",
        )
    ]
    if len(streams) < connection.slot_count:
        found.append(
            Finding(
                Level.WARNING,
                connection.name,
                f"only {len(streams)} of the {connection.slot_count} slots have tables",
                "name the tables of each slot: slots: [[shop.orders, shop.items], [shop.events]]; or lower `slots`",
                "TRK124",
            )
        )
    return found


def _stream(
    config: ProjectConfig, source: ResolvedSource, number: int, places: Mapping[TableId, int]
) -> ResolvedSource:
    trucks = tuple(part for truck in source.trucks if (part := _part(truck, number, places)).tables)
    tables = {name: table for name, table in source.tables.items() if places[name] == number}
    return replace(
        source,
        name=part_name(source.connection.name, number),
        source=make_source(source.connection, config.unique_id, number),
        trucks=trucks,
        tables=tables,
        published=published_tables(trucks, tables),
    )


def _part(truck: Truck, number: int, places: Mapping[TableId, int]) -> Truck:
    tables = {name: table for name, table in truck.tables.items() if places[name] == number}
    return replace(truck, name=part_name(truck.name, number), tables=tables)


def _places(source: ResolvedSource) -> dict[TableId, int]:
    """Which slot each table goes to. Those that belong together go by the name of their truck."""
    slots = source.connection.slots
    places = {table: slot_of(table, slots) for table in source.tables}
    for trucks, tables in _together(source.trucks):
        if isinstance(slots, int):
            places |= dict.fromkeys(tables, slot_by_name(f"truck {min(trucks)}", slots))
        elif len({places[table] for table in tables}) > 1:
            spread = ", ".join(f"{table} in slot {places[table]}" for table in sorted(tables))
            raise ConfigError(
                f"{'trucks' if len(trucks) > 1 else 'truck'} {', '.join(sorted(trucks))}: the order of changes "
                f"across tables matters, but connection {source.connection.name} has these tables in different "
                f"slots: {spread}",
                remedy="name all of them in one slot's list; a table that no list names is in the first slot",
                code="TRK123",
            )
    return places


def _together(trucks: Sequence[Truck]) -> Iterator[tuple[set[str], set[TableId]]]:
    """Trucks whose tables must not be parted, and those tables; trucks with a table in common are one group."""
    groups: list[tuple[set[str], set[TableId]]] = []
    for truck in trucks:
        if not truck.in_order:
            continue
        names, tables = {truck.name}, set(truck.tables)
        for group in [group for group in groups if group[1] & tables]:
            groups.remove(group)
            names |= group[0]
            tables |= group[1]
        groups.append((names, tables))
    yield from groups
