"""Accepts destination tables as they are now, after they were dropped or altered (`trucker accept`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trucker import private
from trucker.config.models import ProjectConfig
from trucker.engine.project.reset import chosen_trucks
from trucker.sinks.base import Sink
from trucker.sinks.committer import Committer
from trucker.sinks.table_identity import TableChange
from trucker.table import TableId


def accept(
    config: ProjectConfig, trucks: Sequence[str] | None, table: TableId | None, sinks: Mapping[str, Sink]
) -> list[TableChange]:
    """Store what the trucks' tables are now; what had changed. Without `table` all tables of the trucks."""
    accepted: list[TableChange] = []
    for destination, names in chosen_trucks(config, trucks).items():
        committer = Committer(sinks[destination])
        private.make_folder(config.state_folder / "spool" / destination)
        try:
            committer.open()
            changes = [
                change
                for change in committer.changed_tables()
                if change.truck in names and table in (None, change.source)
            ]
            if changes:
                committer.accept_tables([(change.truck, change.source) for change in changes])
            accepted += changes
        finally:
            committer.close()
    return accepted
