"""Plans what a range of the log means for each table of each truck: written in a shape, or copied again."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trucker.changelog.reader import BlockRef, LogReader
from trucker.engine.destination.destination import Destination
from trucker.engine.schema.refusals import attached_under_keep, stale
from trucker.engine.schema.schema_changes import SchemaReading, Schemas, fit
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.lane import Absent, Lane
from trucker.engine.truck.truck_run import TruckRun
from trucker.errors import TruckerError
from trucker.lsn import Lsn
from trucker.pgoutput import parse_relation
from trucker.sinks.target import Target
from trucker.table import SchemaChanges, TableId


@dataclass(frozen=True, slots=True)
class TableShare:
    """One table of one truck in a batch; `news` where its shape is another than in the batch before.

    Without an assignment it is to be copied again.
    """

    run: TruckRun
    message: bytes
    reading: SchemaReading
    news: bool
    assignment: Assignment | None = None


def divide(
    runs: Sequence[TruckRun],
    lane: Lane | None,
    blocks: Sequence[BlockRef],
    start: Lsn,
    reader: LogReader,
    schemas: Schemas,
    destinations: Mapping[str, Destination],
    recipes: Recipes,
    failures: dict[str, TruckerError],
) -> list[TableShare]:
    """The shares of these blocks, their destinations prepared; a truck that cannot take its own is in `failures`."""
    relations = [(ref, reader.relations([ref])) for ref in blocks]
    xid = functools.cache(lambda: reader.first_transaction(blocks, start))
    shares: list[TableShare] = []
    for run in runs:
        destination = destinations[run.truck.destination]
        truck_shares: list[TableShare] = []
        try:
            messages = _messages(run, lane, relations, schemas)
            for table in sorted(messages):
                try:
                    truck_shares.append(_share(run, table, messages[table], xid, lane, schemas, destination, recipes))
                except TruckerError as error:
                    raise error.of_table(table) from None
        except TruckerError as error:
            failures[run.name] = error
        else:
            shares += truck_shares
    return shares


def to_copy_again(shares: Sequence[TableShare], lane: Lane | None) -> dict[str, dict[TableId, str]]:
    """The tables that must be copied again, and why, by truck; those of a lane together."""
    reasons: dict[str, dict[TableId, str]] = defaultdict(dict)
    for share in shares:
        if share.reading.again:
            table = share.reading.target.source.table
            for each in lane.tables if lane and lane.tables else (table,):
                reasons[share.run.name].setdefault(each, share.reading.again)
    return reasons


def assigned(
    shares: Sequence[TableShare], again: Mapping[str, Mapping[TableId, str]], lane: Lane | None, end: Lsn
) -> list[Assignment]:
    """What is to be written."""
    if lane and lane.tables and again:
        return []
    assignments = [share.assignment for share in shares if share.assignment and share.assignment.after < end]
    return [_of_absent_rows(each, lane.absent) for each in assignments] if lane else assignments


def _of_absent_rows(assignment: Assignment, absent: Absent) -> Assignment:
    """The assignment for a lane whose destination may lack rows that changes refer to."""
    match absent:
        case Absent.ANY:
            return replace(assignment, whole=True)
        case Absent.MOVED:
            return replace(assignment, target=replace(assignment.target, awaits_rows=True))
        case Absent.NONE:
            return assignment


def _tables(run: TruckRun, lane: Lane | None) -> frozenset[TableId]:
    """The tables of a truck that a batch is for."""
    return lane.tables if lane and lane.tables else frozenset(run.floors)


def _after(run: TruckRun, table: TableId, lane: Lane | None) -> Lsn:
    """Changes of the table committed below this are at the destination already."""
    return lane.position if lane and lane.tables else run.after(table)


def _messages(
    run: TruckRun, lane: Lane | None, relations: Sequence[tuple[BlockRef, Sequence[bytes]]], schemas: Schemas
) -> dict[TableId, list[bytes]]:
    """The Relation messages by which rows that are new to the truck are to be read, by table, in log order."""
    tables = _tables(run, lane)
    oids: Mapping[int, TableId] | None = None
    by_table: dict[TableId, list[bytes]] = {}
    for ref, messages in relations:
        for message in messages:
            relation = parse_relation(message)
            table: TableId | None = relation.table
            if table not in tables:
                oids = schemas.oids(run.name, tables) if oids is None else oids
                table = oids.get(relation.oid)
            if table is None or ref.last < _after(run, table, lane):
                continue
            table_messages = by_table.setdefault(table, [])
            if not table_messages or table_messages[-1] != message:
                table_messages.append(message)
    return by_table


def _share(
    run: TruckRun,
    table: TableId,
    messages: Sequence[bytes],
    xid: Callable[[], int | None],
    lane: Lane | None,
    schemas: Schemas,
    destination: Destination,
    recipes: Recipes,
) -> TableShare:
    keeps_changes = destination.keeps_changes
    reading, news = schemas.read(run.name, run.truck.tables[table], messages, xid, own=keeps_changes)
    if keeps_changes and not reading.remade:
        reading = replace(reading, again="", merge=())
    if not reading.again and (transformed := recipes.of(run.truck, reading.target)):
        _check_merge(reading, transformed[0])
        assignment = assignment_of(run, reading, _after(run, table, lane), destination, recipes)
        return TableShare(run, messages[-1], reading, news, assignment)
    _check_merge(reading, reading.target)
    if news and run.truck.config is None:
        reading = _fitted(reading, schemas, destination)
    if keeps_changes and not reading.again:
        assignment = Assignment(destination.name, reading.target, _after(run, table, lane), own=reading.own)
        return TableShare(run, messages[-1], reading, news, assignment)
    if not reading.again:
        assignment = Assignment(destination.name, reading.target, _after(run, table, lane), reading.renames)
        return TableShare(run, messages[-1], reading, news, assignment)
    _check_again(run, reading)
    return TableShare(run, messages[-1], reading, news)


def assignment_of(
    run: TruckRun, reading: SchemaReading, after: Lsn, destination: Destination, recipes: Recipes
) -> Assignment:
    """What makes and writes rows that are read so. Of a truck with rules or SQL the destination is prepared for it."""
    transformed = recipes.of(run.truck, reading.target)
    if transformed is None:
        return Assignment(destination.name, reading.target, after, reading.renames)
    target, recipe = transformed
    left_out = destination.prepare(target)
    target = replace(target, source=target.source.only([n for n in target.source.names if n not in left_out]))
    return Assignment(destination.name, target, after, reading.renames, recipe=recipe)


def _check_merge(reading: SchemaReading, target: Target) -> None:
    """Raise where partitions were attached whose rows cannot be merged into the target's table."""
    why = ""
    if target.statement is not None:
        why = "output.sql has written the table's rows, and would write some of them again"
    elif target.shared:
        why = "several tables go into one there"
    elif not target.source.key:
        why = "the table has no key"
    if reading.merge and why:
        raise attached_under_keep(target.truck, target.source.table, reading.merge, why)


def _fitted(reading: SchemaReading, schemas: Schemas, destination: Destination) -> SchemaReading:
    """The destination prepared for a new shape; the reading as far as it has a place there."""
    if reading.doubtful:
        return reading
    reading = replace(reading, target=replace(reading.target, stale=bool(reading.again)))
    reading = fit(reading, destination.prepare)
    if not reading.again and not destination.keeps_changes:
        reading = replace(reading, again=_found_place(reading, schemas))
    return reading


def follow(
    run: TruckRun, reading: SchemaReading, schemas: Schemas, destination: Destination, recipes: Recipes
) -> SchemaReading:
    """Prepare the destination for a shape that was seen in the catalogue; the reading as `_share` would have it.

    Raises what stops the truck, by its policy or because it may not copy the table again.
    """
    transformed = None if reading.again else recipes.of(run.truck, reading.target)
    _check_merge(reading, transformed[0] if transformed else reading.target)
    if transformed is not None:
        destination.prepare(transformed[0])
    elif run.truck.config is None:
        reading = _fitted(reading, schemas, destination)
    if reading.again:
        _check_again(run, reading)
    return reading


def _check_again(run: TruckRun, reading: SchemaReading) -> None:
    """Raise where a table that must be copied again may not be. One that is never copied begins anew where another
    table has its name: there is nothing to go on from."""
    table = reading.target.source.table
    begins_anew = reading.remade and run.truck.copies and not run.truck.tables[table].is_copied
    if reading.target.schema_changes is SchemaChanges.STOP or not (begins_anew or run.truck.may_copy_again(table)):
        raise stale(run.truck, table, reading.again)


def tell_truncated(
    shares: Sequence[TableShare],
    tables: frozenset[TableId],
    reader: LogReader,
    blocks: Sequence[BlockRef],
    schemas: Schemas,
) -> None:
    """A TRUNCATE of partitioned tables has been applied: that their partitions were emptied is no news then."""
    for share in shares:
        table, look = share.reading.target.source.table, share.reading.known.look
        xids = reader.truncations(blocks, look.oid) if table in tables and look.partitioned else []
        if xids:
            schemas.truncated(share.run.name, table, xids[-1])


def _found_place(reading: SchemaReading, schemas: Schemas) -> str:
    """A column that was left out until now lacks the values it had meanwhile."""
    before = schemas.known(reading.target.truck, reading.target.source.table)
    if before is None or before.left_out.isdisjoint(reading.numbers):
        return ""
    return "the destination now has a column that was left out before"
