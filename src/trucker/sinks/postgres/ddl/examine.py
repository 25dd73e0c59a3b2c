"""What `prepare` and the beginning of a copy would refuse, found without a change at the destination."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from trucker.errors import TruckerError
from trucker.sinks.postgres import state_tables
from trucker.sinks.postgres.ddl import tables
from trucker.sinks.postgres.ddl.alter import PostgresAlterations, Types
from trucker.sinks.postgres.ddl.destination_table import DestinationColumn, DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.sql.examination import examine_targets
from trucker.sinks.target import Target
from trucker.table import TableId
from trucker.types import Unfit

_MAY_CREATE = """
    select case when n.oid is null then has_database_privilege(current_database(), 'create')
        else has_schema_privilege(n.oid, 'usage') and has_schema_privilege(n.oid, 'create') end
    from (select max(oid) as oid from pg_namespace where nspname = $1) n"""


def examine(
    session: Session, project: str, targets: Sequence[Target], due: Collection[TableId]
) -> Iterator[tuple[Target, TruckerError]]:
    """See `Examinable.examine`."""

    def exists(target: Target) -> bool:
        table = tables.describe(session, target.table)
        _refuse(session, target, table)
        return table is not None

    def is_empty(table: TableId) -> bool:
        return session.run(f"select exists (select from {table.quoted})").fetchone() == (False,)

    yield from examine_targets(targets, due, lambda: state_tables.read(session, project), exists, is_empty)


def _refuse(session: Session, target: Target, table: DestinationTable | None) -> None:
    """Raise what `tables.prepare` would."""
    tables.refuse_width(target)
    if table is None:
        if session.run(_MAY_CREATE, target.table.schema).fetchone() != (True,):
            raise tables.not_allowed(session, target, None)
        tables.refuse_other_shapes(session, target, tables.types_of(session, target))
        return
    if table.kind not in ("r", "p"):
        raise tables.no_table(target)
    if table.denied:
        raise tables.not_allowed(session, target, table)
    if not tables.follows(session, target, table):
        return
    types = tables.types_of(session, target)
    as_text = _with_text_columns(target, table)
    tables.refuse_other_shapes(session, target, types, as_text)
    actions = PostgresAlterations(target, as_text, types).due()
    if (actions or as_text is not table) and not table.owned:
        raise tables.not_allowed(session, target, replace(table, denied=()))
    tables.refuse(session, target, _widened(target, as_text, types), table)


def _with_text_columns(target: Target, table: DestinationTable) -> DestinationTable:
    """The table as it would be with the columns of policy `text` converted."""
    wanted = [name for name, unfit in target.unfit if unfit is Unfit.TEXT and name in table.columns]
    typed = {name: table.columns[name] for name in wanted if not table.columns[name].is_text}
    if not typed:
        return table
    converted = {name: replace(column, type="text", base="text", type_oid=_TEXT) for name, column in typed.items()}
    return replace(table, columns={**table.columns, **converted})


def _widened(target: Target, table: DestinationTable, types: Types) -> DestinationTable:
    """The table with the columns that are to be added or widened, as they would be then."""
    columns = dict(table.columns)
    for column in target.source.columns:
        kind, oid = types[column.name]
        actual = columns.get(column.name)
        if actual is None:
            columns[column.name] = DestinationColumn(column.name, kind, oid or _TEXT, False, False, "", False, kind)
        elif column.was_type and oid:
            columns[column.name] = replace(actual, type_oid=oid)
    return replace(table, columns=columns)


_TEXT = 25
