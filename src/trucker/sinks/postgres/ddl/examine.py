"""What `prepare` and the beginning of a copy would refuse, told without doing anything at the destination."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from trucker.errors import SinkError, TruckerError, TruckFailed
from trucker.sinks.ledger import Copy, foreign_rows
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.ddl import tables
from trucker.sinks.postgres.ddl.alter import Types, due_actions
from trucker.sinks.postgres.ddl.destination_table import DestinationColumn, DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.target import Target
from trucker.table import SchemaChanges, TableId
from trucker.types import Unfit

_MAY_CREATE = """
    select case when n.oid is null then has_database_privilege(current_database(), 'create')
        else has_schema_privilege(n.oid, 'usage') and has_schema_privilege(n.oid, 'create') end
    from (select max(oid) as oid from pg_namespace where nspname = $1) n"""


def examine(
    session: Session, project: str, targets: Sequence[Target], due: Collection[TableId]
) -> Iterator[tuple[Target, TruckerError]]:
    """See `Examinable.examine`. What is missing for output.sql its own check tells."""
    there: dict[TableId, DestinationTable] = {}
    for target in targets:
        if target.statement is not None:
            continue
        found = tables.describe(session, target.table)
        try:
            _refuse(session, target, found)
        except SinkError as error:
            yield target, error
            continue
        if found is not None:
            there[target.source.table] = found
    copied = [target for target in targets if target.source.table in due]
    try:
        copies = state_tables.read(session, project).copies(copied) if copied else ()
    except TruckFailed as error:
        yield copied[0], error.reason
        return
    for copy in copies:
        if copy.target.source.table in there and _has_foreign_rows(session, copy):
            yield copy.target, foreign_rows(copy.target).reason


def _has_foreign_rows(session: Session, copy: Copy) -> bool:
    if copy.ours or copy.target.statement is not None:
        return False
    return session.run(f"select exists (select from {copy.target.table.quoted})").fetchone() == (True,)


def _refuse(session: Session, target: Target, found: DestinationTable | None) -> None:
    """Raise what `tables.prepare` would."""
    tables.refuse_width(target)
    if found is None:
        if session.run(_MAY_CREATE, target.table.schema).fetchone() != (True,):
            raise tables.not_allowed(session, target, None)
        tables.refuse_other_shapes(session, target, tables.types_of(session, target))
        return
    if found.kind not in ("r", "p"):
        raise tables.no_table(target)
    if found.denied:
        raise tables.not_allowed(session, target, found)
    if target.strict:
        tables.refuse_columns(target, found)
    elif target.schema_changes is SchemaChanges.IGNORE:
        if not tables.called_otherwise(target, found):
            tables.refuse(session, tables.left_in(target, found), found, found)
        return
    types = tables.types_of(session, target)
    as_text = _made_text(target, found)
    tables.refuse_other_shapes(session, target, types, as_text)
    actions = due_actions(target, as_text, types)
    if (actions or as_text is not found) and not found.owned:
        raise tables.not_allowed(session, target, replace(found, denied=()))
    tables.refuse(session, target, _widened(target, as_text, types), found)


def _made_text(target: Target, found: DestinationTable) -> DestinationTable:
    """The table with the columns text that are to be made so."""
    wanted = [name for name, unfit in target.unfit if unfit is Unfit.TEXT and name in found.columns]
    typed = {name: found.columns[name] for name in wanted if not found.columns[name].is_text}
    if not typed:
        return found
    made = {name: replace(column, type="text", base="text", type_oid=_TEXT) for name, column in typed.items()}
    return replace(found, columns={**found.columns, **made})


def _widened(target: Target, found: DestinationTable, types: Types) -> DestinationTable:
    """The table with the columns that are to be added or widened, as they would be then."""
    columns = dict(found.columns)
    for column in target.source.columns:
        kind, oid = types[column.name]
        own = columns.get(column.name)
        if own is None:
            columns[column.name] = DestinationColumn(column.name, kind, oid or _TEXT, False, False, "", False, kind)
        elif column.was_type and oid:
            columns[column.name] = replace(own, type_oid=oid)
    return replace(found, columns=columns)


_TEXT = 25
