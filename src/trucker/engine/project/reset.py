"""Drops what trucker keeps of a project, so that it starts again; rows at destinations stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from trucker import private
from trucker.adapters.postgres import PostgresConnection
from trucker.changelog.location import ObjectLocation, location_of
from trucker.changelog.log_creation import delete_log
from trucker.config.models import ProjectConfig
from trucker.config.slots import MOST, part_name, whole_name
from trucker.engine.destination.destination_record import records
from trucker.engine.project.lock import refuse_unwritable
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.engine.truck.resolve import source_names
from trucker.errors import ConfigError
from trucker.lsn import Lsn
from trucker.postgres.connect import connect
from trucker.postgres.publication import drop_publication
from trucker.postgres.slot import drop_slot
from trucker.sinks.base import Sink
from trucker.sinks.batch import Batch, Phase, TableState, TruckState
from trucker.sinks.committer import Committer
from trucker.table import TableId


def plan(config: ProjectConfig, trucks: Sequence[str] | None, table: TableId | None = None) -> list[str]:
    """What `reset` does, a line for each thing. Raises where the state folder cannot be used."""
    refuse_unwritable(config.state_folder)
    chosen = chosen_trucks(config, trucks)
    if table is not None:
        _require_trucks(trucks)
        return [
            f"state of table {table} of truck {name} at {destination}"
            for destination, own in chosen.items()
            for name in sorted(own)
        ]
    lines = [
        f"position of truck {name} at {destination}" for destination, own in chosen.items() for name in sorted(own)
    ]
    if trucks is None:
        lines += [
            line for c in _sources(config) for n in stream_numbers(config, c) for line in _stream_plan(config, c, n)
        ]
    return lines


def stream_numbers(config: ProjectConfig, connection: PostgresConnection) -> list[int]:
    """Which streams the connection has, or has left a log of."""
    numbers = range(1, MOST + 1)
    return [number for number in numbers if number <= connection.slot_count or has_log(config, connection, number)]


def has_log(config: ProjectConfig, connection: PostgresConnection, number: int) -> bool:
    """Whether there is something of the stream's log on this machine; object storage is not asked."""
    location = location_of(config, part_name(connection.name, number))
    folder = location.folder if isinstance(location, ObjectLocation) else location
    return folder is not None and folder.exists()


def _stream_plan(config: ProjectConfig, connection: PostgresConnection, number: int) -> list[str]:
    publication, slot = source_names(config, connection, number)
    lines = []
    if connection.slot is None:
        standby = " and of its standby" if connection.replica else ""
        lines.append(f"replication slot {slot} of {connection.name}{standby}")
    if connection.publication is None:
        lines.append(f"publication {publication} of {connection.name}")
    return [*lines, f"change log {location_of(config, part_name(connection.name, number))}"]


def reset(
    config: ProjectConfig, trucks: Sequence[str] | None, sinks: Mapping[str, Sink], table: TableId | None = None
) -> list[str]:
    """Do it: positions first, so that what follows can be repeated after a failure; what was done.

    With `table` only that one, of these trucks, is to be copied again; their positions and their other tables stay.
    """
    done = plan(config, trucks, table)
    for destination, own in chosen_trucks(config, trucks).items():
        committer = Committer(sinks[destination])
        private.make_folder(config.state_folder / "spool" / destination)
        try:
            stored = committer.open()
            known = tuple(sorted(name for name in stored if name in own or whole_name(name) in own))
            if table is not None:
                _forget_table(committer, table, {name: stored[name] for name in known}, own)
            elif known:
                committer.commit(Batch(Lsn(0), Lsn(0), forget=known), ())
        finally:
            committer.close()
    _forget_positions(config, trucks)
    if trucks is None:
        for connection in _sources(config):
            # More than the project has now: it may have had more slots at an earlier start.
            drop_streams(config, connection, range(1, MOST + 1))
    return done


def _forget_positions(config: ProjectConfig, trucks: Sequence[str] | None) -> None:
    """What is noted of the trucks for a start without their destinations."""
    own = {name for chosen in chosen_trucks(config, trucks).values() for name in chosen}
    for record in records(config, _sources(config)):
        record.forget(name for name in record.trucks if name in own or whole_name(name) in own)


def _forget_table(
    committer: Committer, table: TableId, stored: Mapping[str, TruckState], trucks: Iterable[str]
) -> None:
    parts = [name for name, state in stored.items() if table in state.tables]
    if not parts:
        tables = sorted(str(each) for state in stored.values() for each in state.tables)
        raise ConfigError(
            f"truck {', '.join(sorted(trucks))} has not copied table {table}",
            remedy=f"name one of {', '.join(tables[:10])}{' …' if tables[10:] else ''}"
            if tables
            else "run: trucker run; it has copied no table yet",
        )
    before = TableState(Phase.COPYING, Lsn(0))
    committer.commit(Batch(Lsn(0), Lsn(0), tables={(name, table): before for name in parts}), ())


def _require_trucks(trucks: Sequence[str] | None) -> None:
    if not trucks:
        raise ConfigError("--table needs --truck", remedy="write --truck NAME --table TABLE")


def drop_streams(config: ProjectConfig, connection: PostgresConnection, numbers: Iterable[int]) -> None:
    """Drop slots of the connection, their publications and their logs. What was made beforehand stays."""
    names = {number: source_names(config, connection, number) for number in numbers}
    if connection.replica is not None and connection.slot is None:
        with connect(connection.replica, application="trucker reset") as standby:
            for _, slot in names.values():
                drop_slot(standby, slot)
    with connect(connection, application="trucker reset") as database:
        for publication, slot in names.values():
            if connection.slot is None:  # with a standby too: the project may have been run without it before
                drop_slot(database, slot)
            if connection.publication is None:
                drop_publication(database, publication)
    for number in names:
        name = part_name(connection.name, number)
        PublicationRecord(record_file(config, name)).clear()
        delete_log(location_of(config, name))


def _sources(config: ProjectConfig) -> list[PostgresConnection]:
    used = {truck.input.connection for truck in config.trucks}
    return [c for c in config.connections if c.name in used and isinstance(c, PostgresConnection)]


def chosen_trucks(config: ProjectConfig, trucks: Sequence[str] | None) -> dict[str, frozenset[str]]:
    """The trucks to forget, by destination. The part of one that a slot of several has can be named, as status does."""
    names = [truck.name for truck in config.trucks]
    for name in trucks or ():
        if whole_name(name) not in names:
            raise ConfigError(f"there is no truck {name!r}", remedy=f"name one of {', '.join(names)}")
    chosen: dict[str, set[str]] = defaultdict(set)
    for truck in config.trucks:
        chosen[truck.output.connection] |= {
            name for name in (trucks if trucks is not None else [truck.name]) if whole_name(name) == truck.name
        }
    return {destination: frozenset(own) for destination, own in chosen.items() if own}
