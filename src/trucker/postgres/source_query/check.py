"""What can be said of a truck's SQL before it starts, with the source as it is: `trucker check`, and every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from trucker.config.models import TruckConfig
from trucker.config.sql_template import ANY_COLUMN, SqlTemplate
from trucker.errors import SourceError, TruckerError
from trucker.finding import Finding, Level
from trucker.postgres.catalog import SourceTable

NO_OLD_VALUES = "TRK135"


def check_old_values(
    truck: TruckConfig, tables: Iterable[SourceTable], renames: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """An error for each table that does not send an old value which the truck's SQL mentions."""
    templates = [SqlTemplate(file) for file in truck.files]
    for table in tables:
        problem = old_values_problem(truck.name, templates, table, renames)
        if problem is not None:
            yield _finding(f"truck {truck.name}", problem)


def old_values_problem(
    truck: str,
    templates: Iterable[SqlTemplate],
    table: SourceTable,
    renames: Mapping[str, str] | None = None,
) -> SourceError | None:
    """Why the old values that a truck mentions would not come: the table's old tuples do not carry them (I11).

    Names that are no columns of the table are somebody else's. `renames` gives the table's name of a column that a rule
    calls otherwise.
    """
    if table.full:
        return None
    outside = {name.lower(): name for name in table.schema.names if name not in table.identity_columns}
    for template in templates:
        for name in sorted(template.old_columns):
            column = (renames or {}).get(name, name)
            lacking = next(iter(outside.values()), None) if name == ANY_COLUMN else outside.get(column.lower())
            if lacking is not None:
                return SourceError(
                    f"truck {truck}: {template.file.label} uses the old value of {lacking}, which PostgreSQL does not"
                    f" send for table {table.table}",
                    remedy=_full(table),
                    code=NO_OLD_VALUES,
                )
    return None


def _full(table: SourceTable) -> str:
    """Partitions have a replica identity of their own, which they do not take from their table."""
    lacking = [leaf.table for leaf in table.leaves if leaf.identity != "f"]
    names = list(dict.fromkeys([*lacking, *([table.table] if table.partitioned or not lacking else [])]))
    return "run: " + "; ".join(f"ALTER TABLE {name.quoted} REPLICA IDENTITY FULL" for name in names)


def _finding(subject: str, error: TruckerError) -> Finding:
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code)
