"""Checks a truck's SQL against the source before it starts, in `trucker check` and every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from trucker.adapters.postgres import PostgresConnection
from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import INPUT
from trucker.config.sql.sql_template import ANY_COLUMN, SqlTemplate
from trucker.errors import SourceError, TruckerError
from trucker.finding import Finding, Level
from trucker.postgres.catalog import to_full
from trucker.postgres.connect import connect
from trucker.postgres.source_query.prepare import prepare_query
from trucker.source.source_table import SourceTable
from trucker.table import TableSchema

NO_OLD_VALUES = "TRK135"


def check_input(reads: PostgresConnection, truck: TruckConfig, tables: Sequence[TableSchema]) -> list[Finding]:
    """Prepare the truck's input.sql, if it has one, for every table as the truck takes it. Runs and changes nothing.

    `reads` is where it will run: the standby, where one is named.
    """
    file = truck.file(INPUT)
    if file is None:
        return []
    subject = f"truck {truck.name}"
    findings: dict[str, Finding] = {}
    try:
        with closing(connect(reads, application="trucker check", own_sql=True)) as connection:
            for table in tables:
                try:
                    prepare_query(connection, file, table, positions=truck.compact == "none")
                except TruckerError as error:
                    # One mistake is reported once, however many tables it concerns.
                    findings.setdefault(error.message, _finding(subject, error))
    except SourceError as error:
        return [_finding(subject, error)]
    count = f"{len(tables)} tables" if len(tables) != 1 else str(tables[0].table)
    return list(findings.values()) or [Finding(Level.OK, subject, f"{file.label} can run for {count}")]


def check_old_values(
    truck: TruckConfig, tables: Iterable[SourceTable], origin: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """An error for each table that does not send a value which the truck's SQL needs."""
    templates = [SqlTemplate(file) for file in truck.files]
    for table in tables:
        problem = old_values_problem(truck.name, templates, table, origin) or _unsent_problem(truck, table)
        if problem is not None:
            yield _finding(f"truck {truck.name}", problem)


def old_values_problem(
    truck: str,
    templates: Iterable[SqlTemplate],
    table: SourceTable,
    origin: Mapping[str, str] | None = None,
) -> SourceError | None:
    """The error where a truck uses old values that the table's old tuples do not have (I11); otherwise None.

    Names that are not columns of the rows are ignored: they are other names of the SQL. `origin` has the rows' columns
    and their names in the table, where rules rename them.
    """
    if table.full:
        return None
    named = origin if origin is not None else {name: name for name in table.schema.names}
    outside = {name.lower(): column for name, column in named.items() if column not in table.identity_columns}
    for template in templates:
        for name in sorted(template.old_columns):
            unsent = next(iter(outside.values()), None) if name == ANY_COLUMN else outside.get(name.lower())
            if unsent is not None:
                return SourceError(
                    f"truck {truck}: {template.file.label} uses the old value of {unsent}, which PostgreSQL does not"
                    f" send for table {table.table}",
                    remedy=to_full(table),
                    code=NO_OLD_VALUES,
                )
    return None


def _unsent_problem(truck: TruckConfig, table: SourceTable) -> SourceError | None:
    """The error for a truck that keeps every change and may miss a value: PostgreSQL may not send one that an update
    does not change, and what the source has later may be another value (I7)."""
    if table.full or not truck.files or truck.compact != "none":
        return None
    unsent = next((name for name in table.toastable if name not in table.identity_columns), None)
    if unsent is None:
        return None
    return SourceError(
        f"truck {truck.name} keeps every change, and PostgreSQL does not always send {unsent} of table {table.table}",
        remedy=to_full(table),
        code=NO_OLD_VALUES,
    )


def _finding(subject: str, error: TruckerError) -> Finding:
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code)
