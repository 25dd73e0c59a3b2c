"""Checks rules and SQL files against the real databases before a truck runs. Nothing is run or created (I11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trucker.config.sql.sql_files import ON_SPARK
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck import Truck
from trucker.errors import TruckerError
from trucker.finding import Finding, Level
from trucker.sinks.base import Sink
from trucker.table import TableId


def check_sql(source: ResolvedSource, sinks: Mapping[str, Sink], recipes: Recipes, *, spark: bool) -> Iterator[Finding]:
    """Findings about each truck's rules and SQL; one that is OK where there are no mistakes. Without `spark`, trucks
    with Spark files are left out."""
    for truck in source.trucks:
        if truck.config is None or not truck.config.does_more:
            continue
        on_spark = any(truck.config.file(name) for name in ON_SPARK)
        if on_spark and not spark:
            continue
        findings = [finding for table in truck.tables for finding in _check_table(source, truck, table, sinks, recipes)]
        # One mistake is reported once, however many tables it concerns.
        wrong = {finding.message: finding for finding in findings}
        names = ", ".join(file.name for file in truck.config.files) or "rules"
        verb = "is" if len(truck.config.files) == 1 else "are"
        yield from wrong.values() or [Finding(Level.OK, f"truck {truck.name}", f"{names} {verb} valid")]


def _check_table(
    source: ResolvedSource, truck: Truck, table: TableId, sinks: Mapping[str, Sink], recipes: Recipes
) -> list[Finding]:
    plain = truck.tables[table].target(truck.name, source.tables[table].schema)

    def look() -> None:
        compiled = recipes.of(truck, plain)
        if compiled is not None and compiled[0].statement is not None:
            sinks[truck.destination].prepare(compiled[0])

    return _findings_of(f"truck {truck.name}", look)


def _findings_of(subject: str, look: Callable[[], None]) -> list[Finding]:
    try:
        look()
    except TruckerError as error:
        return [Finding(Level.ERROR, subject, error.message, error.remedy, error.code)]
    return []
