"""Compiles a truck's plan for a table from Spark's analysis of its files. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trucker.engine.transform.spark_sql.chain import Attempt, Branch, SqlChain
from trucker.engine.transform.spark_sql.lineage import needed, origins
from trucker.engine.transform.spark_sql.result import result_column
from trucker.engine.transform.spark_sql.spark_plan import ORDER, ResultColumn, SparkPlan
from trucker.errors import ConfigError
from trucker.rows import OLD, OPERATION
from trucker.table import Column, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

DIFFERENT = "TRK152"
NO_FORM = "TRK153"


class Compiling:
    """One compilation of a truck's files, for rows with these columns."""

    def __init__(self, chain: SqlChain, attempt: Attempt, columns: tuple[Column, ...], table: TableId) -> None:
        self._chain = chain
        self._attempt = attempt
        self._columns = {column.name: column for column in columns}
        self._table = table
        self._rows = attempt.rows("")

    def plan(self) -> SparkPlan:
        at_once = self._chain.tells_operation(self._attempt)
        operations = ORDER if self._chain.differs else ORDER[-1:]
        branches = self._chain.branches(self._attempt, operations, at_once=at_once)
        for branch in branches:
            _refuse_doubles(branch)
        self._same_columns(branches)
        columns = self._result_columns(branches)
        names = [*self._columns, OPERATION]
        used = frozenset().union(*(needed(branch.frame, names) for branch in branches))
        keys = frozenset(self._columns) & used
        return SparkPlan(self._table, tuple(self._columns.values()), keys, columns, at_once)

    def _result_columns(self, branches: Sequence[Branch]) -> tuple[ResultColumn, ...]:
        fields: dict[str, list[tuple[Branch, DataType, str]]] = {}
        for branch in sorted(branches, key=lambda each: -ORDER.index(each.operation or ORDER[-1])):
            passed = origins(branch.frame, [self._rows])
            for field, origin in zip(branch.frame.schema.fields, passed, strict=True):
                if field.name.lower() != OPERATION:
                    # Spark ignores case: a column in other letters is still the same column.
                    name = origin if origin.lower() == field.name.lower() else field.name
                    fields.setdefault(name, []).append((branch, field.dataType, origin))
        return tuple(self._merged_column(name, variants) for name, variants in fields.items())

    def _merged_column(self, name: str, variants: Sequence[tuple[Branch, DataType, str]]) -> ResultColumn:
        """One column from those of the branches; a bare NULL is compatible with any type."""
        from pyspark.sql.types import NullType

        typed = [each for each in variants if not isinstance(each[1], NullType)] or variants
        sources = [self._columns[origin] for _, _, origin in typed if origin in self._columns]
        same = len(sources) == len(typed) and len({(s.type_name, s.type_oid) for s in sources}) == 1
        kind = typed[0][1] if same else self._common(name, typed)
        column = result_column(name, kind, list({s.name: s for s in sources}.values()) if same else ())
        if column is None:
            raise ConfigError(
                f'{typed[0][0].file}: column "{name}" has the type {kind.simpleString()}, which no destination '
                "supports",
                remedy=f"cast it, for example cast({name} as string)",
                code=NO_FORM,
            )
        return column

    def _common(self, name: str, typed: Sequence[tuple[Branch, DataType, str]]) -> DataType:
        from pyspark.errors import AnalysisException

        kinds = list(dict.fromkeys(kind.simpleString() for _, kind, _ in typed))
        if len(kinds) == 1:
            return typed[0][1]
        union = " union all ".join(f"select cast(null as {kind})" for kind in kinds)
        try:
            return self._attempt.session.sql(union).schema.fields[0].dataType
        except AnalysisException:
            sides = "; ".join(f"{branch.file} as {kind.simpleString()}" for branch, kind, _ in typed)
            raise ConfigError(
                f'column "{name}" has incompatible types in the files of the truck: {sides}',
                remedy="cast it to one type in all of them",
                code=DIFFERENT,
            ) from None

    def _same_columns(self, branches: Sequence[Branch]) -> None:
        """Refuse other columns for inserts than for updates: both are whole rows. A delete needs only its key."""
        sides = {each: branch for branch in branches for each in branch.covers if not branch.operation} | {
            branch.operation: branch for branch in branches if branch.operation
        }
        if "insert" not in sides or "update" not in sides or sides["insert"] is sides["update"]:
            return
        inserts, updates = (_written(sides[operation].frame) for operation in ("insert", "update"))
        if set(inserts) != set(updates):
            raise ConfigError(
                f"inserted rows have other columns than updated rows: {sides['insert'].file} returns "
                f"{', '.join(inserts)}; {sides['update'].file} returns {', '.join(updates)}",
                remedy="return the same columns for both operations",
                code=DIFFERENT,
            )


def _written(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name.lower() != OPERATION and not name.lower().startswith(OLD)]


def _refuse_doubles(branch: Branch) -> None:
    names = [name.lower() for name in branch.frame.columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f'{branch.file}: the result has two columns "{twice}"',
            remedy=f"leave one out, or rename it: … as other_{twice}",
            code=DIFFERENT,
        )
