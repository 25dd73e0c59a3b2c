"""Beginning anew: drop what trucker keeps, leave what it has written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trucker.change import Lsn
from trucker.changelog.place import place_of
from trucker.changelog.source import delete_log
from trucker.config.models import PostgresConnection, ProjectConfig
from trucker.engine.resolve import source_names
from trucker.errors import ConfigError
from trucker.postgres.connect import connect
from trucker.postgres.publication import drop_publication
from trucker.postgres.slot import drop_slot
from trucker.sinks.base import Batch, Sink


def plan(config: ProjectConfig, trucks: Sequence[str] | None) -> list[str]:
    """What `reset` does, a line for each thing."""
    chosen = _chosen(config, trucks)
    lines = [
        f"position of truck {name} at {destination}" for destination, own in chosen.items() for name in sorted(own)
    ]
    if trucks is None:
        for connection in _sources(config):
            publication, slot = source_names(config, connection)
            if connection.slot is None:
                place = " and of its standby" if connection.replica else ""
                lines.append(f"replication slot {slot} of {connection.name}{place}")
            if connection.publication is None:
                lines.append(f"publication {publication} of {connection.name}")
            lines.append(f"change log {place_of(config, connection.name)}")
    return lines


def reset(config: ProjectConfig, trucks: Sequence[str] | None, sinks: Mapping[str, Sink]) -> list[str]:
    """Do it: positions first, so that what follows can be repeated after a failure; what was done."""
    done = plan(config, trucks)
    for destination, own in _chosen(config, trucks).items():
        sink = sinks[destination]
        (config.state_folder / "spool" / destination).mkdir(parents=True, exist_ok=True)
        try:
            known = tuple(sorted(own & sink.open().keys()))
            if known:
                sink.commit(Batch(Lsn(0), Lsn(0), forget=known), ())
        finally:
            sink.close()
    if trucks is None:
        for connection in _sources(config):
            _reset_source(config, connection)
    return done


def _reset_source(config: ProjectConfig, connection: PostgresConnection) -> None:
    publication, slot = source_names(config, connection)
    if connection.replica is not None and connection.slot is None:
        with connect(connection.replica, application="trucker reset") as standby:
            drop_slot(standby, slot)
    with connect(connection, application="trucker reset") as database:
        if connection.slot is None:  # with a standby too: the project may have been run without it before
            drop_slot(database, slot)
        if connection.publication is None:
            drop_publication(database, publication)
    delete_log(place_of(config, connection.name))


def _sources(config: ProjectConfig) -> list[PostgresConnection]:
    used = {truck.input.connection for truck in config.trucks}
    return [c for c in config.connections if c.name in used and isinstance(c, PostgresConnection)]


def _chosen(config: ProjectConfig, trucks: Sequence[str] | None) -> dict[str, frozenset[str]]:
    """The trucks to forget, by destination."""
    names = [truck.name for truck in config.trucks]
    for name in trucks or ():
        if name not in names:
            raise ConfigError(f"there is no truck {name!r}", remedy=f"the trucks are {', '.join(names)}")
    chosen: dict[str, set[str]] = defaultdict(set)
    for truck in config.trucks:
        if trucks is None or truck.name in trucks:
            chosen[truck.output.connection].add(truck.name)
    return {destination: frozenset(own) for destination, own in chosen.items()}
