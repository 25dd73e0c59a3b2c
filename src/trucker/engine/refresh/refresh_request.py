"""What `trucker refresh` asks for, checked against the truck, the source and the destination. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trucker.control.answers import Refresh
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck import Truck
from trucker.errors import ControlError, SinkError
from trucker.sinks.base import SelectsKeys, Sink
from trucker.source.base import CopySession
from trucker.source.source_table import SourceTable
from trucker.table import Key, TableId


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """A truck's table, or all of its tables; with a condition or keys, only those rows."""

    truck: str
    table: TableId | None = None
    where: str | None = None
    keys: Sequence[Key] | None = None

    @property
    def whole(self) -> bool:
        return self.where is None and self.keys is None


def refreshes_of(
    request: RefreshRequest, source: ResolvedSource, sinks: Mapping[str, Sink]
) -> list[tuple[Refresh, Sequence[Key] | None]]:
    """The refreshes to queue, each with its keys as the source writes them. Raises `ControlError` for what cannot be
    done, before anything is changed."""
    truck = next(each for each in source.trucks if each.name == request.truck)
    tables = _tables(request, truck)
    sink = sinks[truck.destination]
    if sink.abilities.every_change:
        raise _impossible(
            f"truck {truck.name}: its destination keeps every change, so that no row there can be out of date",
            "nothing is to be refreshed",
        )
    if request.whole:
        if not truck.repeatable:
            raise _impossible(
                f"truck {truck.name}: which rows of its output tables are its own is not known, so that no table can be"
                " replaced as a whole",
                'refresh rows instead, which go through its steps as inserts: --where "true", or --keys FILE',
            )
        return [(Refresh(0, truck.name, str(table), 0.0), None) for table in tables]
    (table,) = tables
    with source.source.copy_session() as session:
        described = session.load_table(table)
        names = _check_keyed(truck, table, session)
        if request.where is not None:
            session.check_condition(described.schema, request.where)
            selected_at(truck, table, described, sink, f"({request.where}\n) and false")
            return [(Refresh(0, truck.name, str(table), 0.0, where=request.where), None)]
        keys = _keys(request.keys or (), names, table)
        canonical = list(dict.fromkeys(session.canonical_keys(described.schema, names, keys)))
    return [(Refresh(0, truck.name, str(table), 0.0), canonical)]


def _tables(request: RefreshRequest, truck: Truck) -> list[TableId]:
    if request.table is not None:
        if request.table not in truck.tables:
            raise _wrong(f"truck {truck.name} does not read table {request.table}", _one_of(truck))
        return [request.table]
    if not request.whole and len(truck.tables) > 1:
        what = "a condition" if request.where is not None else "keys"
        raise _wrong(
            f"truck {truck.name} reads {len(truck.tables)} tables: of which {what} speak, is not said", _one_of(truck)
        )
    return sorted(truck.tables)


def _one_of(truck: Truck) -> str:
    names = sorted(map(str, truck.tables))
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"give --table with one of its tables: {', '.join(names[:10])}{more}"


def key_names(truck: Truck, table: TableId, session: CopySession) -> tuple[str, ...]:
    """What the columns of the truck's key are called at the source now."""
    look = session.look(table)
    numbers = look.numbers if look is not None else {}
    return truck.tables[table].key_by({number: name for name, number in numbers.items()})


def _check_keyed(truck: Truck, table: TableId, session: CopySession) -> tuple[str, ...]:
    names = key_names(truck, table, session)
    instead = f"refresh all of it: trucker refresh {truck.name} --table {table}"
    if not names:
        raise _impossible(f"table {table} has no key: single rows of it are not known at the destination", instead)
    output = truck.tables[table].output
    if sum(each.output == output for each in truck.tables.values()) > 1:
        raise _impossible(
            f"several tables of truck {truck.name} go into {output}: whose row a key is, is not known there",
            f"copy them again: trucker reset --truck {truck.name}, then trucker run",
        )
    return names


def _keys(keys: Sequence[Key], names: Sequence[str], table: TableId) -> Sequence[Key]:
    if not keys:
        raise _wrong("no key is given", "give one key a line")
    for number, key in enumerate(keys, 1):
        if len(key) != len(names):
            raise _wrong(
                f"key {number} has {len(key)} values, and the key of {table} has {len(names)}",
                f"give, separated by commas: {', '.join(names)}",
            )
    return keys


def selected_at(truck: Truck, table: TableId, described: SourceTable, sink: Sink, where: str) -> list[Key]:
    """The keys of the rows that meet a condition at the destination; none where the truck has rules or SQL, whose rows
    have other columns and perhaps other keys there."""
    if truck.config is not None or not isinstance(sink, SelectsKeys):
        return []
    try:
        return list(sink.select_keys(truck.tables[table].target(truck.name, described.schema), where))
    except SinkError as error:
        if error.transient:
            raise
        raise ControlError(
            f"the destination {truck.destination} cannot evaluate the condition: {error.message}",
            remedy="write one that both stores understand; or give the keys of the rows: --keys FILE",
            code="TRK630",
        ) from None


def _wrong(message: str, remedy: str) -> ControlError:
    return ControlError(message, remedy=remedy, code="TRK630")


def _impossible(message: str, remedy: str) -> ControlError:
    return ControlError(message, remedy=remedy, code="TRK632")
