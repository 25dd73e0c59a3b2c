"""Conditions on trucks: their tables, rules and SQL files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trucker.config.sql.sql_files import NAMES, misnamed_files
from trucker.engine.project.conditions.condition import failure, fine
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.transform.rules.check import check_rules
from trucker.engine.transform.sql_check import check_sql
from trucker.engine.truck.resolve import check_outputs
from trucker.errors import TruckerError
from trucker.finding import Finding, Level, TellsUnique
from trucker.sinks.base import Sink
from trucker.table import TableId


def well_formed(situation: Situation) -> Iterator[Finding]:
    """The project was loaded, which checks its form."""
    config = situation.config
    subject = f"project {config.unique_id}" if config.is_built else str(config.folder)
    yield fine(subject, f"the project's settings are valid, trucks: {len(config.trucks)}")


def named_files(situation: Situation) -> Iterator[Finding]:
    """Every file that looks like one of a truck's is one that is used."""
    for truck in situation.config.trucks:
        for path, likely in misnamed_files(truck.folder) if truck.folder else ():
            yield Finding(
                Level.WARNING,
                f"truck {truck.name}",
                f"{path} is not used: it is not one of the file names of a truck",
                f"rename it to {likely}, or move it out of the folder"
                if likely
                else f"move it out of the folder, or rename it: {', '.join(NAMES)}",
                "TRK126",
            )


def outputs(situation: Situation) -> Iterator[Finding]:
    """No two trucks write one table, and none writes what another reads."""
    shared = {name for name, sink in situation.sinks.items() if sink.abilities.every_change}
    trucks = [truck for source in situation.sources.values() for truck in source.trucks]
    try:
        check_outputs(trucks, situation.databases, shared)
    except TruckerError as error:
        yield failure("trucks", error)


def rules(situation: Situation) -> Iterator[Finding]:
    """Rules fit the columns of their tables, on both sides."""
    configured = {truck.name: truck for truck in situation.config.trucks if truck.rules}
    for source in situation.sources.values():
        for truck in source.trucks:
            if truck.name not in configured:
                continue
            tables = [
                (
                    source.tables[name],
                    table.target(truck.name, source.tables[name].schema).source,
                    _unique(situation.sinks[truck.destination], table.output),
                )
                for name, table in truck.tables.items()
            ]
            yield from check_rules(configured[truck.name], source.source, tables)


def _unique(sink: Sink, table: TableId) -> list[tuple[str, ...]]:
    try:
        return sink.unique_columns(table) if isinstance(sink, TellsUnique) else []
    except TruckerError:  # what is wrong with the destination has been found
        return []


def sql(situation: Situation) -> Iterator[Finding]:
    """Rules and SQL files can be run where they are to be run. Files for Spark are checked with a Spark session, those
    of trucks whose destination does not answer once it does."""
    keeps_changes = {name: sink.abilities.every_change for name, sink in situation.sinks.items()}
    for source in situation.sources.values():
        recipes = Recipes(source.source, keeps_changes, situation.config.slow_query_threshold_ms)
        reachable = tuple(truck for truck in source.trucks if truck.destination not in situation.away)
        yield from check_sql(replace(source, trucks=reachable), situation.sinks, recipes, spark=False)
