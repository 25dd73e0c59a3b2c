"""Conditions on destinations: reachable, writable, what they store, their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trucker.config.adapter import Connection
from trucker.config.registry import adapter_of
from trucker.config.sql.sql_files import ON_SPARK
from trucker.engine.project.conditions.condition import failure, fine
from trucker.engine.project.conditions.situation import Situation
from trucker.engine.project.continuity import copied_tables
from trucker.engine.schema.schema_changes import copied
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema, shapes_file
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import SinkHeld, TruckerError
from trucker.finding import Checkable, Finding, Level
from trucker.sinks.base import Examinable
from trucker.sinks.letters import KeepsLetters
from trucker.sinks.target import Target
from trucker.source.factory import make_source
from trucker.table import TableId


def reachable(situation: Situation) -> Iterator[Finding]:
    """Every destination answers, and tells what it stores.

    A run waits for one that this project has used before: to it, that is no other than one that goes away later.
    """
    for connection in situation.destination_connections:
        name, sink = connection.name, situation.sinks[connection.name]
        try:
            stored = sink.stored() if isinstance(sink, Examinable) else None
            _identify(situation, connection)
            if stored is not None:
                situation.stored[name] = stored
        except SinkHeld as error:
            situation.away[name] = error
            instance = situation.instance
            if instance is not None and error.pid == instance.pid:
                yield fine(f"connection {name}", f"in use by this project's running instance ({instance})")
            else:
                yield failure(f"connection {name}", error, waits=situation.has_used(name))
        except TruckerError as error:
            situation.away[name] = error
            yield failure(f"connection {name}", error, waits=error.transient and situation.has_used(name))


def _identify(situation: Situation, connection: Connection) -> None:
    """Which database it really is; the source's look has it where both are one connection."""
    if adapter_of(connection).source and connection.name not in situation.databases:
        with make_source(connection, situation.config.unique_id).session("check") as session:
            system = session.identify()
            situation.databases[connection.name] = (system.system_identifier, system.database)


def writable(situation: Situation) -> Iterator[Finding]:
    """Every destination that answers can be written, and trucker's own tables can be there."""
    for name, sink in situation.sinks.items():
        if isinstance(sink, Checkable) and name not in situation.away:
            yield from sink.check()


def letters(situation: Situation) -> Iterator[Finding]:
    """Dead letters are no reason not to run, but somebody should look at them."""
    for name, sink in situation.sinks.items():
        if not isinstance(sink, KeepsLetters) or name in situation.away:
            continue
        try:
            counts = sink.count_letters()
        except TruckerError:  # what is wrong with the destination has been found
            continue
        events = sink.abilities.every_change
        where = "with `trucker redrive --dry-run`" if events else "in trucker.dead_letters there"
        for truck, count in sorted(counts.items()):
            yield Finding(
                Level.WARNING,
                f"truck {truck}",
                f"{count} dead letters: {'events' if events else 'rows'} that its destination refused",
                f"read the reasons {where}, fix the causes, then run `trucker redrive`",
                "TRK473",
            )


def tables(situation: Situation) -> Iterator[Finding]:
    """The tables at the destinations can take the rows, or can be made; those to be copied hold no rows of others.

    Of a truck that has run before a fault is its own, or its table's: the others start.
    """
    for source in situation.sources.values():
        schema_store = SchemaStore(shapes_file(situation.config, source.name))
        keeps_changes = {name: sink.abilities.every_change for name, sink in situation.sinks.items()}
        recipes = Recipes(source.source, keeps_changes, situation.config.slow_query_threshold_ms)
        for truck in source.trucks:
            sink = situation.sinks[truck.destination]
            if truck.destination in situation.stored and isinstance(sink, Examinable) and not _on_spark(truck):
                yield from _examine(situation, source, truck, sink, schema_store, recipes)


def _on_spark(truck: Truck) -> bool:
    """Whether its rows are known only to Spark."""
    return truck.config is not None and any(truck.config.file(name) for name in ON_SPARK)


def _examine(
    situation: Situation,
    source: ResolvedSource,
    truck: Truck,
    sink: Examinable,
    schema_store: SchemaStore,
    recipes: Recipes,
) -> Iterator[Finding]:
    state = situation.stored[truck.destination].get(truck.name)
    copied_before = copied_tables(truck, state, situation.incomplete(source))
    looked_at = {
        name: table
        for name, table in truck.tables.items()
        if name not in copied_before or _other_key(table, schema_store.get(truck.name, name))
    }
    waits = not situation.is_new(truck.name, truck.destination)
    try:
        targets = _targets(situation, source, truck, looked_at, schema_store, recipes)
        copied_now = {name for name in looked_at.keys() - copied_before.keys() if truck.tables[name].is_copied}
        problems = list(sink.examine(targets, copied_now)) if targets else []
    except TruckerError as error:
        yield failure(f"truck {truck.name}", error, waits=waits)
        return
    for target, reason in problems:
        yield failure(f"truck {truck.name}, table {target.source.table}", reason, waits=waits)


def _other_key(table: InputTable, written: WrittenSchema | None) -> bool:
    """Whether the source's table has another key than when its rows were last written."""
    if written is None:
        return False
    return {written.look.numbers.get(name) for name in written.look.key} != set(table.key_numbers)


def _targets(
    situation: Situation,
    source: ResolvedSource,
    truck: Truck,
    tables: Mapping[TableId, InputTable],
    schema_store: SchemaStore,
    recipes: Recipes,
) -> list[Target]:
    """The targets as a copy, or the next batch, would have them."""
    targets = []
    for name, table in tables.items():
        schema, before = source.tables[name].schema, schema_store.get(truck.name, name)
        target = table.target(truck.name, schema)
        if before is not None:
            look = situation.session(source.source).look(name)
            target = copied(truck.name, table, schema, look, before).target if look is not None else target
        transformed = recipes.of(truck, target)
        targets.append(transformed[0] if transformed is not None else target)
    return targets
