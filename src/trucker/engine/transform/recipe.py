"""The recipe: how a table's changes become the rows of a target. The driver compiles it, executors follow it."""

from __future__ import annotations

from dataclasses import dataclass

from trucker.change import Changes, Column, TableSchema
from trucker.engine.transform.fold import Fold
from trucker.engine.transform.rules import RuleSet
from trucker.engine.transform.spark_sql.spark_plan import SparkPlan
from trucker.rows import Rows
from trucker.slow_sql import SlowQueries
from trucker.source.base import QuerySession, SourceQuery


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a table's changes become the rows of a target, for a truck that does more than replicate.

    `reads` is the table as it is read. With SQL, `relation` has the columns of the rows that the first file gets;
    `past`: deletes bypass the SQL. `by_transaction` ends runs with each transaction. `every`: the destination keeps
    every change.
    """

    reads: TableSchema
    fold: Fold = Fold.NET
    rules: RuleSet | None = None
    relation: tuple[Column, ...] = ()
    query: SourceQuery | None = None
    spark: SparkPlan | None = None
    past: bool = False
    every: bool = False
    by_transaction: bool = False
    ignores_truncate: bool = False
    rows_max: int = 1_000_000
    slow: SlowQueries | None = None

    def ruled(self, changes: Changes) -> Changes:
        """The changes after the rules."""
        return self.rules.apply(changes) if self.rules else changes

    def ask(self, session: QuerySession, rows: Rows) -> Rows:
        """The result of input.sql for the rows."""
        assert self.query is not None
        return session.run(self.query, rows, rows_max=self.rows_max, slow=self.slow)
