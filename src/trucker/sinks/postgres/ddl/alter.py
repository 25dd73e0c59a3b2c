"""How a table at a PostgreSQL destination follows the source's (`sinks.sql.alterations`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trucker.sinks.altered import log_altered
from trucker.sinks.postgres.ddl import widening
from trucker.sinks.postgres.ddl.destination_table import DestinationColumn, DestinationTable, literal
from trucker.sinks.postgres.session import Session
from trucker.sinks.sql.alterations import Alterations
from trucker.sinks.target import Target
from trucker.table import Column, quote_identifier

Types = Mapping[str, tuple[str, int]]


class PostgresAlterations(Alterations[DestinationColumn]):
    """`types` are those that the target's columns are to have."""

    def __init__(self, target: Target, table: DestinationTable, types: Types) -> None:
        super().__init__(target, table.columns)
        self._types = types

    def wanted(self, column: Column) -> str:
        return self._types[column.name][0]

    def holds(self, kind: str, other: str) -> bool:
        return widening.holds(kind, other)

    def widens(self, kind: str, other: str) -> bool:
        return widening.widens(kind, other)

    def missing_value(self, column: Column) -> str:
        return literal(column.missing_value or "")

    def constraint(self, column: Column) -> str:
        return " NOT NULL" if column.not_null else ""

    def further(self, column: Column, present: DestinationColumn) -> Iterator[str]:
        # The stream alone does not show whether the source lets NULL in.
        comparable = column.type_name != "" and column.name not in self.target.source.key
        if present.not_null and not present.identity and not column.not_null and comparable:
            yield f"ALTER COLUMN {quote_identifier(column.name)} DROP NOT NULL"
        for label in column.labels if present.enum else ():
            if label not in present.labels:
                yield f"ALTER TYPE {present.enum} ADD VALUE IF NOT EXISTS {literal(label)}"


def alter(session: Session, target: Target, table: DestinationTable, types: Types) -> None:
    """Do what may be done; raise `SinkError` with the statements for what may not, having done nothing."""
    alterations = PostgresAlterations(target, table, types)
    for action in alterations.due():
        session.run(alterations.statement(action))
        log_altered(target, action)
