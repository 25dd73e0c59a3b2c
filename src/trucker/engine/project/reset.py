"""Drops what trucker keeps of a project, so that it starts again; rows at destinations stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from trucker import private
from trucker.changelog.location import location_of
from trucker.changelog.log_creation import delete_log
from trucker.config.models import ProjectConfig
from trucker.engine.destination.destination_record import records
from trucker.engine.project.lock import refuse_unwritable
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.errors import ConfigError
from trucker.lsn import Lsn
from trucker.sinks.base import Sink
from trucker.sinks.batch import Batch, Phase, TableState, TruckState
from trucker.sinks.committer import Committer
from trucker.source.base import Source
from trucker.source.factory import make_source
from trucker.table import TableId


def plan(config: ProjectConfig, trucks: Sequence[str] | None, table: TableId | None = None) -> list[str]:
    """What `reset` does, a line for each thing. Raises where the state folder cannot be used."""
    refuse_unwritable(config.state_folder)
    chosen = chosen_trucks(config, trucks)
    if table is not None:
        _require_trucks(trucks)
        return [
            f"state of table {table} of truck {name} at {destination}"
            for destination, names in chosen.items()
            for name in sorted(names)
        ]
    lines = [
        f"position of truck {name} at {destination}" for destination, names in chosen.items() for name in sorted(names)
    ]
    if trucks is None:
        for source in _sources(config):
            lines += [*source.objects(), f"change log {location_of(config, source.name)}"]
    return lines


def reset(
    config: ProjectConfig, trucks: Sequence[str] | None, sinks: Mapping[str, Sink], table: TableId | None = None
) -> list[str]:
    """Do it: positions first, so that what follows can be repeated after a failure; what was done.

    With `table` only that one, of these trucks, is to be copied again; their positions and their other tables stay.
    """
    done = plan(config, trucks, table)
    for destination, names in chosen_trucks(config, trucks).items():
        committer = Committer(sinks[destination])
        private.make_folder(config.state_folder / "spool" / destination)
        try:
            stored = committer.open()
            present = tuple(sorted(stored.keys() & names))
            if table is not None:
                _forget_table(committer, table, {name: stored[name] for name in present}, names)
            elif present:
                committer.commit(Batch(Lsn(0), Lsn(0), forget=present), ())
        finally:
            committer.close()
    _forget_positions(config, trucks)
    if trucks is None:
        for source in _sources(config):
            _drop_source(config, source)
    return done


def _forget_positions(config: ProjectConfig, trucks: Sequence[str] | None) -> None:
    """What is noted of the trucks for a start without their destinations."""
    names = {name for chosen in chosen_trucks(config, trucks).values() for name in chosen}
    for record in records(config):
        record.forget(name for name in record.trucks if name in names)


def _forget_table(
    committer: Committer, table: TableId, stored: Mapping[str, TruckState], trucks: Iterable[str]
) -> None:
    readers = [name for name, state in stored.items() if table in state.tables]
    if not readers:
        tables = sorted(str(each) for state in stored.values() for each in state.tables)
        raise ConfigError(
            f"truck {', '.join(sorted(trucks))} has not copied table {table}",
            remedy=f"name one of {', '.join(tables[:10])}{' …' if tables[10:] else ''}"
            if tables
            else "run: trucker run; it has copied no table yet",
        )
    before = TableState(Phase.COPYING, Lsn(0))
    committer.commit(Batch(Lsn(0), Lsn(0), tables={(name, table): before for name in readers}), ())


def _require_trucks(trucks: Sequence[str] | None) -> None:
    if not trucks:
        raise ConfigError("--table needs --truck", remedy="write --truck NAME --table TABLE")


def _drop_source(config: ProjectConfig, source: Source) -> None:
    """Drop the slot of the source, its publication and its log. What was made beforehand stays."""
    source.drop_objects()
    PublicationRecord(record_file(config, source.name)).clear()
    delete_log(location_of(config, source.name))


def _sources(config: ProjectConfig) -> list[Source]:
    return [make_source(connection, config.unique_id) for connection in config.sources]


def chosen_trucks(config: ProjectConfig, trucks: Sequence[str] | None) -> dict[str, frozenset[str]]:
    """The trucks to forget, by destination; all of the project's where `trucks` is None."""
    names = [truck.name for truck in config.trucks]
    for name in trucks or ():
        if name not in names:
            raise ConfigError(f"there is no truck {name!r}", remedy=f"name one of {', '.join(names)}")
    chosen: dict[str, set[str]] = defaultdict(set)
    for truck in config.trucks:
        if trucks is None or truck.name in trucks:
            chosen[truck.output.connection].add(truck.name)
    return {destination: frozenset(truck_names) for destination, truck_names in chosen.items()}
