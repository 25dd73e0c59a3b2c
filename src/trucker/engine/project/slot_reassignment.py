"""Moves tables to other slots when the configuration assigns them differently than at the last start.

A table that goes to another slot is a new one there: its changes since then are in no log of that slot. So it is copied
again, and what it has at the destination stays readable until the copy counts. The destinations store it first, in one
transaction each: a table is known to one part of its truck only, whatever is cut short here. Then slots that have no
table any more are dropped, with all that is theirs: an unread one would hold the server's WAL for ever.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from trucker.adapters.postgres import PostgresConnection
from trucker.config.models import ProjectConfig
from trucker.config.slots import MOST, part_name, whole_name
from trucker.engine.destination.destination import Destination
from trucker.engine.project.reset import drop_streams, has_log
from trucker.engine.schema.written_schema import SchemaStore, shapes_file
from trucker.engine.truck.resolve import ResolvedSource, source_names
from trucker.engine.truck.truck import Truck
from trucker.errors import SinkError, SourceError
from trucker.lsn import Lsn
from trucker.postgres.connect import connect
from trucker.postgres.protocol import SLOT_SECONDS
from trucker.postgres.slot import find_slots
from trucker.sinks.batch import Batch, Phase, TableState, TruckState
from trucker.table import TableId

log = logging.getLogger("trucker.streams")

LOOK_SECONDS: Final = 0.2

Moves = dict[tuple[str, TableId], str]
"""Tables with the part of the truck they belong to now, and the part that they belonged to."""


def rearrange(
    config: ProjectConfig,
    sources: Sequence[ResolvedSource],
    destinations: Mapping[str, Destination],
    states: Mapping[str, TruckState],
    shapes: Mapping[str, SchemaStore],
) -> bool:
    """Have destinations and servers fit the sources; whether the states are other ones now.

    `states` has every part of the project's trucks, also parts that no longer exist; `shapes` what is known of
    tables, by source.
    """
    changed = False
    moves: dict[str, Moves] = defaultdict(dict)
    for source in sources:
        for truck in source.trucks:
            found = _moved(truck, states)
            moves[truck.destination] |= found
            _carry_shapes(config, source, shapes, found)
    parts = {truck.name for source in sources for truck in source.trucks}
    unused = [name for name, state in states.items() if name not in parts and state.lsn]
    places = {truck.name: truck.destination for source in sources for truck in source.trucks}
    homes = {whole_name(name): destination for name, destination in places.items()}
    for name, destination in destinations.items():
        forget = tuple(sorted(part for part in unused if homes.get(whole_name(part)) == name))
        if moves[name] or forget:
            _tell(destination, moves[name], forget)
            changed = True
    _drop_unused(config, sources)
    return changed


def refuse_moves(sources: Sequence[ResolvedSource], states: Mapping[str, TruckState]) -> None:
    """Raise where a table goes to another slot and cannot be copied again. Changes nothing."""
    for source in sources:
        for truck in source.trucks:
            _moved(truck, states)


def _moved(truck: Truck, states: Mapping[str, TruckState]) -> Moves:
    """The tables that the destination knows as another part's."""
    found: Moves = {}
    for other, state in states.items():
        if other == truck.name or whole_name(other) != whole_name(truck.name):
            continue
        tables = [table for table in state.tables if table in truck.tables]
        if tables and state.lsn and not truck.repeatable:
            name = whole_name(truck.name)
            raise SinkError(
                f"truck {name}: {min(tables)} has moved to another slot and must be copied again, but the rows "
                "that the truck has written of it cannot be identified",
                remedy=f"set `slots` back; or remove the rows that {name} has written, run `trucker reset "
                f"--truck {name}`, then `trucker run`",
                code="TRK125",
            )
        found |= {(truck.name, table): other for table in tables}
    return found


def _carry_shapes(
    config: ProjectConfig, source: ResolvedSource, shapes: Mapping[str, SchemaStore], moves: Moves
) -> None:
    """What is known of the tables' columns at the destination goes along."""
    for (truck, table), before in moves.items():
        there = source.connection.name + before.removeprefix(whole_name(before))
        known = (shapes.get(there) or SchemaStore(shapes_file(config, there))).get(before, table)
        if known is not None:
            shapes[source.name].put({(truck, table): known})


def _tell(destination: Destination, moves: Moves, forget: tuple[str, ...]) -> None:
    before = TableState(Phase.COPYING, Lsn(0))
    tables = {slot: before for (truck, table), other in moves.items() for slot in ((truck, table), (other, table))}
    if moves:
        named = sorted({str(table) for _, table in moves})
        log.warning(
            "tables are copied again",
            extra={"tables": named, "destination": destination.name, "reason": "the tables moved to another slot"},
        )
    failures = destination.commit(Batch(Lsn(0), Lsn(0), tables=tables, moved=moves, forget=forget), ())
    for error in failures.values():
        raise error


def _drop_unused(config: ProjectConfig, sources: Sequence[ResolvedSource]) -> None:
    connections = {source.connection.name: source.connection for source in sources}
    used = {source.name for source in sources}
    for name, connection in connections.items():
        unused = {number for number in range(1, MOST + 1) if part_name(name, number) not in used}
        for number in sorted(unused & _present(config, connection, unused)):
            log.warning(
                "slot dropped", extra={"source": part_name(name, number), "reason": "the slot has no tables any more"}
            )
            _drop(config, connection, number)


def _present(config: ProjectConfig, connection: PostgresConnection, numbers: set[int]) -> set[int]:
    """Which of the connection's streams there is something of: a slot, or a log."""
    logs = {number for number in numbers if has_log(config, connection, number)}
    names = {source_names(config, connection, number)[1]: number for number in numbers}
    with connect(connection.replica or connection, application="trucker setup") as database:
        present = find_slots(database, list(names))
    if connection.slot is not None:
        for name in sorted(present):
            log.warning(
                "slot has no tables any more and retains WAL",
                extra={
                    "source": connection.name,
                    "slot": name,
                    "remedy": f"run at the source: SELECT pg_drop_replication_slot('{name}')",
                },
            )
        return logs
    return logs | {names[name] for name in present}


def _drop(config: ProjectConfig, connection: PostgresConnection, number: int) -> None:
    """All there is of a stream. The project's instance that was killed just now may have its slot for a moment."""
    began = time.monotonic()
    while True:
        try:
            drop_streams(config, connection, [number])
            break
        except SourceError as error:
            if error.code != "TRK231" or time.monotonic() - began > SLOT_SECONDS:
                raise
        time.sleep(LOOK_SECONDS)
    name = part_name(connection.name, number)
    for folder in ("shapes", "publications", "destinations"):
        (config.state_folder / folder / f"{name}.json").unlink(missing_ok=True)
    shutil.rmtree(config.state_folder / "rows" / name, ignore_errors=True)
