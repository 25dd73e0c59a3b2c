"""Runs the Spark files of a truck in order: transform.sql, then the file of each operation.

`{{ rows }}` of each is the rows given to Spark; `{{ transformed }}` the result of transform.sql for the rows of the
operation. The result of an operation without a file is that of transform.sql, or the rows as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import BY_OPERATION, TRANSFORM
from trucker.config.sql.sql_template import RenderedSql, SqlTemplate, TemplateRelation
from trucker.engine.transform.spark_sql.failure import no_query, not_one, unresolved
from trucker.engine.transform.spark_sql.result import quoted
from trucker.engine.transform.spark_sql.spark_plan import ORDER
from trucker.rows import OPERATION
from trucker.table import TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = count()
_lock = threading.Lock()


@dataclass(frozen=True)
class Branch:
    """A query that returns rows of the result. Where `operation` is empty, its column `operation` has that of a row."""

    frame: DataFrame
    operation: str
    file: str
    """The file that returns its columns, for messages."""

    @property
    def covers(self) -> tuple[str, ...]:
        return (self.operation,) if self.operation else ORDER


@dataclass
class Attempt:
    """The files rendered and analyzed, once, for certain rows. Temporary views of it go with `close`."""

    session: SparkSession
    columns: tuple[str, ...]
    table: TableId
    rows: Callable[[str], DataFrame]
    """The rows of one operation, or with "" of all."""
    checks: bool = False
    lookups: dict[str, str] = field(default_factory=dict)
    """The views of lookups by name, for `{{ lookups.name }}`."""
    rendered: list[RenderedSql] = field(default_factory=list)
    _views: dict[str, str] = field(default_factory=dict)

    def rows_view(self, operation: str) -> str:
        key = f"rows {operation}"
        if key not in self._views:
            self._views[key] = self.view(self.rows(operation))
        return self._views[key]

    def view(self, frame: DataFrame) -> str:
        """A name for a data frame in this session."""
        with _lock:
            name = f"trucker_{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        self._views[name] = name
        return name

    def query(self, template: SqlTemplate, operation: str, transformed: DataFrame | None = None) -> DataFrame:
        """A file's query over the rows of `operation` (all with "")."""
        from pyspark.errors import AnalysisException

        rows = TemplateRelation(f"{quoted(self.rows_view(operation))} r", self.columns, "`")
        then = None
        if transformed is not None:
            then = TemplateRelation(f"{quoted(self.view(transformed))} t", tuple(transformed.columns), "`")
        rendered = template.render(
            rows, operation=operation, input_table=str(self.table), transformed=then, lookups=self.lookups
        )
        statements = rendered.statements()
        if len(statements) != 1:
            raise not_one(rendered, statements)
        self.rendered.append(rendered)
        try:
            if self.checks and not _is_query(self.session, statements[0].text):
                raise no_query(rendered, statements[0])
            return self.session.sql(statements[0].text)
        except AnalysisException as error:
            raise unresolved(error, rendered, statements[0]) from None

    def close(self) -> None:
        for name in set(self._views.values()):
            self.session.catalog.dropTempView(name)
        self._views.clear()


def _is_query(session: SparkSession, text: str) -> bool:
    """Whether the statement is a query: `session.sql` would execute any other statement immediately."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    while plan.getClass().getSimpleName() == "UnresolvedWith":
        plan = plan.child()
    base = "org.apache.spark.sql.catalyst.plans.logical."
    instance_of = session._jvm.java.lang.Class.forName
    kinds = ("Command", "ParsedStatement", "CompoundPlanStatement")
    return not any(instance_of(base + kind).isInstance(plan) for kind in kinds)


class SqlChain:
    """A truck's Spark files as templates."""

    def __init__(self, truck: TruckConfig) -> None:
        files = {name: truck.file(name) for name in (TRANSFORM, *BY_OPERATION.values())}
        templates = {name: SqlTemplate(file) for name, file in files.items() if file}
        self.transform = templates.get(TRANSFORM)
        self.by_operation = {op: templates[name] for op, name in BY_OPERATION.items() if name in templates}
        self.lookups = frozenset(name for each in templates.values() for name in each.lookups)

    @property
    def differs(self) -> bool:
        """Whether the queries are not the same for every operation."""
        return bool(self.by_operation) or (self.transform is not None and self.transform.uses_operation)

    def tells_operation(self, attempt: Attempt) -> bool:
        """Whether transform.sql returns the operation of each row, and so gets the rows of all operations at once."""
        if self.transform is None or self.transform.uses_operation:
            return False
        return _has_operation(attempt.query(self.transform, ""))

    def branches(self, attempt: Attempt, operations: Sequence[str], *, at_once: bool) -> list[Branch]:
        """The queries that make the result of rows with these operations, in the order of their rows."""
        if at_once:
            return self._after_all(attempt)
        return [self._of(attempt, operation) for operation in ORDER if operation in operations]

    def _of(self, attempt: Attempt, operation: str) -> Branch:
        then, label = None, "the rows"
        if self.transform is not None:
            then, label = attempt.query(self.transform, operation), self.transform.file.label
        template = self.by_operation.get(operation)
        if template is not None:
            return _branch(attempt.query(template, operation, then), operation, template.file.label)
        return _branch(attempt.rows(operation) if then is None else then, operation, label)

    def _after_all(self, attempt: Attempt) -> list[Branch]:
        from pyspark.sql import functions

        assert self.transform is not None
        label = self.transform.file.label
        whole = attempt.query(self.transform, "")
        if not self.by_operation:
            return [Branch(whole, "", label)]
        word = functions.col(OPERATION)
        branches = []
        for operation in ORDER:
            template = self.by_operation.get(operation)
            if template is not None:
                result = attempt.query(template, operation, whole.where(word == operation))
                branches.append(_branch(result, operation, template.file.label))
        # Rows with another or no operation stay in the result, where `operation_codes` refuses them.
        rest = whole.where(word.isNull() | ~word.isin(*self.by_operation))
        return [*branches, Branch(rest, "", label)]


def _branch(frame: DataFrame, operation: str, file: str) -> Branch:
    """A result with a column `operation` determines the operations itself, whatever the rows' were."""
    return Branch(frame, "" if _has_operation(frame) and file != "the rows" else operation, file)


def _has_operation(frame: DataFrame) -> bool:
    return any(name.lower() == OPERATION for name in frame.columns)
