"""How a destination's table follows the source's: what is added and widened, and the statements for the rest.

Additions and widenings lose nothing and are done; everything else is for a person to run, who knows who else reads the
table. Nothing is ever dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trucker.errors import SinkError
from trucker.sinks.altered import log_altered
from trucker.sinks.postgres.ddl.destination_table import DestinationTable, literal
from trucker.sinks.postgres.ddl.widening import holds, widens
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target
from trucker.table import Column, SchemaChanges, quote_identifier

Types = Mapping[str, tuple[str, int]]


def alter(session: Session, target: Target, table: DestinationTable, types: Types) -> None:
    """Do what may be done; raise `SinkError` with the statements for what may not, having done nothing."""
    for action in due_actions(target, table, types):
        session.run(_statement(target, action))
        log_altered(target, action)


def due_actions(target: Target, table: DestinationTable, types: Types) -> list[str]:
    """What has to be done to the table and may be; raises `SinkError` with the statements for what may not."""
    moves = target.renames(table.columns)
    renames = [f"RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)}" for old, new in moves]
    table = _renamed(table, moves)
    due = list(_additions(target, table, types))
    manual = [*renames, *_retypings(target, table, types)]
    if target.schema_changes is SchemaChanges.STOP:
        gone = [quote_identifier(name) for name in target.dropped if name in table.columns]
        due = [each for each in due if each not in {f"ALTER COLUMN {name} DROP NOT NULL" for name in gone}]
        manual, due = [*manual, *due, *(f"DROP COLUMN {name}" for name in gone)], []
    if manual:
        raise _statements(target, manual)
    return due


def _renamed(table: DestinationTable, moves: Sequence[tuple[str, str]]) -> DestinationTable:
    columns = dict(table.columns)
    for old, new in moves:
        columns[new] = columns.pop(old)
    return replace(table, columns=columns)


def _additions(target: Target, table: DestinationTable, types: Types) -> Iterator[str]:
    """The actions for columns that are new, wider or may be NULL now."""
    for column in target.source.columns:
        name = quote_identifier(column.name)
        actual = table.columns.get(column.name)
        if actual is None:
            yield from _added(column, types[column.name][0])
            continue
        wanted = types[column.name][0]
        if column.was_type and not holds(actual.bare_type, wanted) and widens(wanted, actual.bare_type):
            yield f"ALTER COLUMN {name} TYPE {wanted}"
        if _released(column, target, table):
            yield f"ALTER COLUMN {name} DROP NOT NULL"
        for label in column.labels if actual.enum else ():
            if label not in actual.labels:
                yield f"ALTER TYPE {actual.enum} ADD VALUE IF NOT EXISTS {literal(label)}"
    for name, actual in table.columns.items():
        unwritten = name not in target.source.names and not (actual.has_default or actual.identity or actual.generated)
        if unwritten and actual.not_null:
            yield f"ALTER COLUMN {quote_identifier(name)} DROP NOT NULL"


def _added(column: Column, kind: str) -> Iterator[str]:
    """Rows that are there get what the source shows for them; rows that come bring their own."""
    name = quote_identifier(column.name)
    if column.missing_value is None:
        yield f"ADD COLUMN {name} {kind}"
        return
    required = " NOT NULL" if column.not_null else ""
    yield f"ADD COLUMN {name} {kind}{required} DEFAULT {literal(column.missing_value)}"
    yield f"ALTER COLUMN {name} DROP DEFAULT"


def _retypings(target: Target, table: DestinationTable, types: Types) -> Iterator[str]:
    """The type changes that a person has to make."""
    for column in target.source.columns:
        actual, wanted = table.columns.get(column.name), types[column.name][0]
        if (
            actual is not None
            and column.was_type
            and not (holds(actual.bare_type, wanted) or widens(wanted, actual.bare_type))
        ):
            name = quote_identifier(column.name)
            # Rows that come again need not be converted, which may well fail; an empty table never does.
            if target.stale and actual.not_null:
                yield f"TRUNCATE {target.table.quoted}"
            value = "NULL" if target.stale and not actual.not_null else f"{name}::text::{wanted}"
            yield f"ALTER COLUMN {name} TYPE {wanted} USING {value}"


def _released(column: Column, target: Target, table: DestinationTable) -> bool:
    """Whether the source lets NULL in where the destination does not. The stream alone does not show it."""
    actual = table.columns[column.name]
    comparable = column.type_name != "" and column.name not in target.source.key
    return actual.not_null and not actual.identity and not column.not_null and comparable


def _statement(target: Target, action: str) -> str:
    """The whole statement; most actions are of the table."""
    return action if action.startswith(("ALTER TYPE", "TRUNCATE")) else f"ALTER TABLE {target.table.quoted} {action}"


def _statements(target: Target, actions: Sequence[str]) -> SinkError:
    statements = [_statement(target, action) for action in actions]
    return SinkError(
        f"the columns of {target.source.table} changed at the source, and {target.table} must be altered",
        remedy=f"run at the destination: {'; '.join(statements)}; then trucker run",
        code="TRK425",
    )
