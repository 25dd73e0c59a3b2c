"""Conditions on a source: server, privileges, tables, publication, slot."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.adapters.postgres import PostgresConnection
from trucker.engine.project.conditions.condition import failure
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.engine.project.publication_start import altered_findings
from trucker.engine.transform.rules import compile_rules
from trucker.engine.truck.resolve import ResolvedSource, resolve_source
from trucker.errors import TruckerError
from trucker.finding import Finding
from trucker.postgres.preflight import Needed, check_source
from trucker.postgres.slot import identify
from trucker.postgres.source_query import check_input, check_old_values


def usable(situation: Situation) -> Iterator[Finding]:
    """Every source can be connected to, and has what trucks take from it."""
    for connection in situation.source_connections:
        yield from _source(situation, connection)


def _source(situation: Situation, connection: PostgresConnection) -> Iterator[Finding]:
    config = situation.config
    try:
        database = situation.database(connection)
        system = identify(database)
        situation.databases[connection.name] = (system.system_identifier, system.database)
        resolved = resolve_source(config, connection, database)
    except TruckerError as error:
        yield failure(connection.name, error)
        return
    situation.sources[connection.name] = resolved
    needed = Needed(resolved.publication, resolved.slot, resolved.published)
    yield from check_source(connection, needed, instance=str(situation.instance or ""))
    yield from _sql(situation, resolved)


def unaltered(situation: Situation) -> Iterator[Finding]:
    """The publication is as the last run left it; where it is not, the run copies tables again."""
    for source in situation.sources.values():
        record = PublicationRecord(record_file(situation.config, source.name))
        yield from altered_findings(source, record, situation.database(source.connection))


def _sql(situation: Situation, resolved: ResolvedSource) -> Iterator[Finding]:
    """What the source says of the SQL of the trucks that read from it."""
    by_name = {truck.name: truck for truck in situation.config.trucks}
    for truck in resolved.trucks:
        configured, taken = by_name[truck.name], []
        for name, table in truck.tables.items():
            source = resolved.tables[name]
            try:
                rules = compile_rules(configured.rules, table.target(truck.name, source.schema).source)
            except TruckerError:  # told with the other rules
                continue
            taken.append(rules.schema)
            yield from check_old_values(configured, [source], rules.origin)
        yield from check_input(resolved.reads, configured, taken)
