"""Conditions on a source: server, privileges, tables, publication, slot."""

from __future__ import annotations

from collections.abc import Iterator

from trucker.engine.project.conditions.condition import failure
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.publication_record import PublicationRecord, record_file
from trucker.engine.project.publication_start import altered_findings
from trucker.engine.transform.rules import compile_rules
from trucker.engine.truck.resolve import ResolvedSource, resolve_source
from trucker.errors import TruckerError
from trucker.finding import Finding
from trucker.source.base import Source


def usable(situation: Situation) -> Iterator[Finding]:
    """Every source can be connected to, and has what trucks take from it."""
    for source in situation.configured_sources:
        yield from _source(situation, source)


def _source(situation: Situation, source: Source) -> Iterator[Finding]:
    try:
        session = situation.session(source)
        system = session.identify()
        situation.databases[source.name] = (system.system_identifier, system.database)
        resolved = resolve_source(situation.config, source, session)
    except TruckerError as error:
        yield failure(source.name, error)
        return
    situation.sources[source.name] = resolved
    yield from source.check(resolved.published, instance=str(situation.instance or ""))
    yield from _sql(situation, resolved)


def unaltered(situation: Situation) -> Iterator[Finding]:
    """The publication is as the last run left it; where it is not, the run copies tables again."""
    for source in situation.sources.values():
        record = PublicationRecord(record_file(situation.config, source.name))
        yield from altered_findings(source, record, situation.session(source.source))


def _sql(situation: Situation, resolved: ResolvedSource) -> Iterator[Finding]:
    """What the source says of the SQL of the trucks that read from it."""
    by_name = {truck.name: truck for truck in situation.config.trucks}
    for truck in resolved.trucks:
        configured, schemas = by_name[truck.name], []
        for name, table in truck.tables.items():
            described = resolved.tables[name]
            try:
                rules = compile_rules(configured.rules, table.target(truck.name, described.schema).source)
            except TruckerError:  # the condition of the rules reports it
                continue
            schemas.append(rules.schema)
            yield from resolved.source.check_old_values(configured, described, rules.origin)
        yield from resolved.source.check_input(configured, schemas)
