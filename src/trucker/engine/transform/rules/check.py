"""Checks a truck's rules before it starts, against the source's tables as they are (I11).

Creates and changes nothing. Checks that every rule applies to a table, that filters get the values they need, and where
different rows may get the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trucker.config.models import TruckConfig
from trucker.config.rules import RuleConfig
from trucker.engine.transform.rules.filters import Filter
from trucker.engine.transform.rules.ruleset import RuleSet, compile_rules, no_column
from trucker.errors import ConfigError, TruckerError
from trucker.finding import Finding, Level
from trucker.source.base import Source
from trucker.source.source_table import SourceTable
from trucker.table import TableId, TableSchema
from trucker.types import Unfit

Unique = Sequence[Sequence[str]]
"""Sets of columns that are unique in a table."""


def check_rules(
    truck: TruckConfig, source: Source, tables: Iterable[tuple[SourceTable, TableSchema, Unique]]
) -> list[Finding]:
    """The errors and warnings about the rules of a truck.

    Each of its tables is given with the columns that the truck reads, and the unique columns of its destination table.
    """
    subject = f"truck {truck.name}"
    table_list = list(tables)
    compiled: dict[TableId, RuleSet] = {}
    wrong: dict[str, Finding] = {}
    for _, schema, _ in table_list:
        try:
            compiled[schema.table] = compile_rules(truck.rules, schema)
        except TruckerError as error:
            wrong.setdefault(error.message, _finding(subject, error))
    if len(compiled) == len(table_list):
        errors = [*_useless(truck, compiled), *_without_place(truck, compiled)]
        wrong |= {error.message: _finding(subject, error) for error in errors}
    findings = list(wrong.values())
    for table, schema, unique in table_list:
        if schema.table in compiled:
            problem = needs_full(compiled[schema.table], table, source)
            findings += [problem] if problem else []
            findings += merged_keys(subject, compiled[schema.table], unique)
    return findings


def needs_full(rules: RuleSet, table: SourceTable, source: Source) -> Finding | None:
    """An error where the filters need the table's whole old rows and it does not send them; otherwise None.

    A row that starts to pass with an update has to be written whole, but PostgreSQL does not send long values that have
    not changed. Whether a deleted row passed is known from its old tuple alone.
    """
    if table.full:
        return None
    filters = [step for step in rules.steps if isinstance(step, Filter)]
    unsent = [c for c in table.toastable if c in rules.needs and c not in table.identity_columns]
    subject = f"table {table.table}"
    if unsent and any("update" in step.operations for step in filters):
        return Finding(
            Level.ERROR,
            subject,
            f"a rule `filter` needs the values of {', '.join(unsent)}, which PostgreSQL does not send if they "
            "did not change (TOAST)",
            f"{source.whole_rows_remedy(table)}  (or leave the columns out)",
            "TRK216",
        )
    for step in filters:
        name = rules.origin.get(step.column.name, step.column.name)
        if step.operations == {"delete"} and name not in table.identity_columns:
            return Finding(
                Level.ERROR,
                subject,
                f"a rule `filter` for deletes needs the old value of {name}, which PostgreSQL does not send",
                source.whole_rows_remedy(table),
                "TRK216",
            )
    return None


def merged_keys(subject: str, rules: RuleSet, unique: Unique = ()) -> Iterator[Finding]:
    """A warning for each set of columns that is unique (the key, and `unique`) and may not be so after the rules."""
    table = rules.input.table
    for columns in dict.fromkeys([rules.schema.key, *(tuple(names) for names in unique)]):
        merging = [name for name in columns if name in rules.merging]
        if merging:
            how = ", ".join(f"{name} ({'/'.join(sorted(rules.altered[name]))})" for name in merging)
            yield Finding(
                Level.WARNING,
                subject,
                f"{table}: rules alter {how}, but rows are identified by {', '.join(columns)}: rows that become "
                "equal overwrite each other or violate a unique constraint",
                "use `hash`, which keeps different values different, or remove the rule for the column",
                "TRK145",
            )


def _useless(truck: TruckConfig, compiled: Mapping[TableId, RuleSet]) -> Iterator[ConfigError]:
    """Rules that no table has the columns for: a misspelt name must not leave a column unmasked (I10)."""
    for number, rule in enumerate(truck.rules):
        concerned = [table for table in compiled if rule.concerns(table)]
        if not concerned:
            yield _for_no_table(truck, rule)
            continue
        skipped = {table: {name for at, name in compiled[table].skipped if at == number} for table in concerned}
        for name in rule.columns:
            without_column = [table for table in concerned if name in skipped[table]]
            must = [table for table in without_column if rule.names(table) or not truck.input.is_many]
            if must or (without_column and len(without_column) == len(concerned)):
                yield no_column(rule, name, compiled[(must or without_column)[0]].input)


def _for_no_table(truck: TruckConfig, rule: RuleConfig) -> ConfigError:
    path = ("route", "table") if rule.route and rule.route.table else ("tables",)
    return ConfigError(
        f"truck {truck.name} reads no table that this rule applies to",
        place=rule.place(*path),
        remedy="correct `tables`, or remove the rule",
        code="TRK140",
    )


def _without_place(truck: TruckConfig, compiled: Mapping[TableId, RuleSet]) -> Iterator[ConfigError]:
    """Mistakes in `output.columns`, which names columns as they are after the rules; SQL may make others."""
    if truck.files:
        return
    for rules in compiled.values():
        for name, settings in truck.output.columns.items():
            if name in rules.schema.key and settings.unfit is Unfit.NULL:
                yield ConfigError(
                    f"truck {truck.name}: column {name} is part of the key of {rules.input.table}, which cannot "
                    "be NULL",
                    remedy="write unfit: text or error for it",
                    code="TRK142",
                )
            if name not in rules.schema.names and not truck.input.is_many:
                yield ConfigError(
                    f"truck {truck.name}: output.columns has {name}, which is not a column of "
                    f"{rules.input.table} after the rules",
                    remedy=f"the columns are {', '.join(rules.schema.names)}",
                    code="TRK140",
                )


def _finding(subject: str, error: TruckerError) -> Finding:
    return Finding(Level.ERROR, subject, error.message, error.remedy, error.code)
