"""Tries a truck: runs recent or given changes through each step and shows the results. Nothing is written.

The steps are those of a run (`row_transform`), in this process. SQL reads from the real source and lookups. output.sql
is prepared at the destination and shown with the rows it would get.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from trucker.change import OPERATIONS, UPDATE, Changes, Lsn, TableId, TableSchema
from trucker.changelog.location import LogLocation
from trucker.changelog.reader import LogReader
from trucker.config.models import ProjectConfig
from trucker.config.sql.sql_files import HANDLER, ON_SPARK
from trucker.config.sql.sql_template import SqlTemplate, TemplateRelation
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.fold import fold
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.engine.transform.row_transform import TransformedRows, make
from trucker.engine.transform.spark_sql.spark_plan import spool_rows
from trucker.engine.truck.resolve import ResolvedSource
from trucker.engine.truck.truck import Truck
from trucker.errors import SinkUnavailable
from trucker.pgoutput import decode
from trucker.rows import OPERATION, Rows
from trucker.sinks.base import ForeseesCalls, Sink
from trucker.sinks.target import Target

if TYPE_CHECKING:
    from trucker.config.sql.sql_files import SqlFile
    from trucker.engine.spark.application import Spark

LAST: Final = "written"


@dataclass(frozen=True, slots=True)
class Shown:
    """One step for one table: its SQL, if it has any, and the rows that came out of it, or that it would get.

    Cells are PostgreSQL's text. `table` is the input; `of` says in words what the rows are.
    """

    table: str
    step: str
    of: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


def recent(log: LogLocation, tables: Mapping[TableId, TableSchema], most: int) -> dict[TableId, list[Changes]]:
    """The last changes of these tables in the change log: whole transactions, at least `most` changes if there are."""
    reader = LogReader(log)
    keys = {table: schema.key for table, schema in tables.items()}
    changes_by_table: dict[TableId, list[Changes]] = {}
    count = 0
    for ref in reversed(reader.blocks(reader.oldest(), reader.durable().commit_lsn)):
        for changes in reversed(list(decode(reader.read(ref), keys))):
            schema = tables[changes.schema.table]
            changes_by_table.setdefault(schema.table, []).insert(0, changes.reshaped(schema))
            count += len(changes)
        if count >= most:
            break
    return _last(changes_by_table, most)


def _last(changes: Mapping[TableId, Sequence[Changes]], most: int) -> dict[TableId, list[Changes]]:
    """The transactions at the end that hold `most` changes."""
    lsns = [each.commit_lsn for parts in changes.values() for each in parts]
    if not lsns:
        return {}
    ordered = np.sort(np.concatenate(lsns))
    first = ordered[max(0, len(ordered) - most)]
    recent_changes = {
        table: [each.take(each.commit_lsn >= first) for each in parts] for table, parts in changes.items()
    }
    return {table: [each for each in parts if len(each)] for table, parts in recent_changes.items()}


class Trial:
    """One truck to try. `spark` is None where the truck has no Spark files."""

    def __init__(
        self, config: ProjectConfig, source: ResolvedSource, truck: Truck, sink: Sink, spark: Spark | None
    ) -> None:
        self._config, self._source, self._truck, self._sink, self._spark = config, source, truck, sink, spark

    def run(self, changes: Mapping[TableId, Sequence[Changes]]) -> Iterator[Shown]:
        """Every step for every table that has changes."""
        with tempfile.TemporaryDirectory() as folder:
            recipes = Recipes(
                self._source.source,
                {self._truck.destination: self._sink.abilities.every_change},
                self._config.slow_query_threshold_ms,
                Path(folder) / "rows",
            )
            if self._spark is not None:
                recipes.start(self._spark, self._config)
            try:
                for table, table_changes in sorted(changes.items()):
                    if table_changes:
                        yield from self._table(table, table_changes, recipes)
            finally:
                recipes.close()

    def _table(self, table: TableId, changes: Sequence[Changes], recipes: Recipes) -> Iterator[Shown]:
        plain = self._truck.tables[table].target(self._truck.name, self._source.tables[table].schema)
        compiled = recipes.of(self._truck, plain)
        yield _changes(table, "changes", "from the change log", Changes.concat(list(changes)))
        if compiled is None:
            every = [each for each in changes if len(each)]
            net = list(fold(every, Recipe(plain.source).fold))
            if isinstance(self._sink, ForeseesCalls):
                yield from self._called(table, plain, every if self._sink.abilities.every_change else net)
                return
            yield from (_changes(table, LAST, f"to {plain.table}", each) for each in net)
            return
        target, recipe = compiled
        yield from self._transformed_steps(table, target, recipe, changes, recipes)

    def _transformed_steps(
        self, table: TableId, target: Target, recipe: Recipe, changes: Sequence[Changes], recipes: Recipes
    ) -> Iterator[Shown]:
        config = self._truck.config
        assert config is not None
        for net in fold(list(changes), recipe.fold):
            yield _changes(table, "folded", f"by compact: {config.compact}", net)
            if recipe.rules:
                yield _changes(table, "rules", "after the rules", recipe.ruled(net))
        (transformed,) = make([(Assignment(self._truck.destination, target, Lsn(0), recipe=recipe), changes)],
                       self._source.source, 0)  # fmt: skip
        if recipe.query is not None:
            yield from self._queried(table, recipe, transformed)
        spark_result = self._on_spark(recipe, transformed, recipes)
        if spark_result is not None:
            rows, names = spark_result
            sql = "\n\n".join(_text(file, recipe, table) for name in names if (file := config.file(name)))
            yield _rows(table, " + ".join(names), "result of Spark SQL", sql, rows)
        yield from self._written(table, target, recipe, transformed, spark_result[0] if spark_result else None)

    def _queried(self, table: TableId, recipe: Recipe, transformed: TransformedRows) -> Iterator[Shown]:
        assert self._truck.config is not None
        file = self._truck.config.file("input.sql")
        assert file is not None
        rows = transformed.queried
        if rows is not None:
            yield _rows(table, file.name, "result from the source", _text(file, recipe, table), rows)

    def _on_spark(
        self, recipe: Recipe, transformed: TransformedRows, recipes: Recipes
    ) -> tuple[list[Rows], list[str]] | None:
        config = self._truck.config
        assert config is not None
        if recipe.spark is None:
            return None
        names = [name for name in ON_SPARK if config.file(name)]
        if transformed.rows is None or not len(transformed.rows):
            return [], names
        assert recipes.folder is not None
        spooled = spool_rows(recipes.folder, transformed.rows, recipe.spark)
        try:
            return recipes.give(self._truck.name, recipe.spark, spooled), names
        finally:
            spooled.discard()

    def _written(
        self, table: TableId, target: Target, recipe: Recipe, transformed: TransformedRows, spark: Sequence[Rows] | None
    ) -> Iterator[Shown]:
        """The changes that the destination would get, and output.sql, prepared there."""
        from trucker.engine.transform.row_transform import written

        changes = [
            *transformed.changes,
            *(written(rows, target, Lsn(0), 0, every=recipe.every) for rows in spark or () if len(rows)),
        ]
        if isinstance(self._sink, ForeseesCalls):
            yield from self._called(table, target, changes)
            return
        if target.statement is None:
            for each in changes:
                yield _changes(table, LAST, f"to {target.table} by {', '.join(target.source.key)}", each)
            return
        outcome = self._prepared(target)
        for each in changes:
            rows = Rows(target.source.columns, each.new, each.op, each.ordinal)
            sql = _text(target.statement, recipe, table, target.source.names)
            yield _rows(table, target.statement.name, f"its input; the file was {outcome}", sql, [rows])

    def _called(self, table: TableId, target: Target, changes: Sequence[Changes]) -> Iterator[Shown]:
        assert isinstance(self._sink, ForeseesCalls)
        calls = tuple(self._sink.foreseen_calls(target, changes))
        if calls:
            yield Shown(str(table), HANDLER, "its calls; nothing was called", "", ("call", "with"), calls)

    def _prepared(self, target: Target) -> str:
        try:
            self._sink.prepare(target)
        except SinkUnavailable:
            return "not run"  # a running project may hold the destination; some stores allow one process
        return "prepared, but not run"


def _text(file: SqlFile, recipe: Recipe, table: TableId, names: tuple[str, ...] | None = None) -> str:
    """The file's text for the rows it is shown with; those stand in it as `rows`."""
    columns = names if names is not None else tuple(column.name for column in recipe.relation)
    template = SqlTemplate(file)
    operations = ("delete", "update", "insert") if template.uses_operation else ("",)
    spark = file.name in ON_SPARK
    relation = TemplateRelation("rows as r", (*columns, OPERATION), "`" if spark else '"')
    texts = []
    for operation in operations:
        rendered = template.render(
            relation,
            operation=operation,
            input_table=str(table),
            transformed=TemplateRelation("transformed as t", (), "`") if template.uses("transformed") else None,
            lookups={name: name for name in template.lookups} if spark else {},
        )
        texts.append((f"-- for {operation}\n" if operation else "") + rendered.text.strip())
    return "\n".join(texts)


def _rows(table: TableId, step: str, of: str, sql: str, rows: Rows | Sequence[Rows]) -> Shown:
    parts = [rows] if isinstance(rows, Rows) else list(rows)
    names = parts[0].names if parts else ()
    cells = [
        (OPERATIONS[op], *cells)
        for part in parts
        for op, cells in zip(part.op.tolist(), _tuples(part.cells.to_pydict(), len(part)), strict=True)
    ]
    return Shown(str(table), step, of, sql, (OPERATION, *names), tuple(cells))


def _tuples(columns: Mapping[str, Sequence[str | None]], count: int) -> list[tuple[str | None, ...]]:
    return list(zip(*columns.values(), strict=True)) if columns else [()] * count


def _changes(table: TableId, step: str, of: str, changes: Changes) -> Shown:
    """Changes as rows: new values, and old values where there are any."""
    names = changes.schema.names
    cells: dict[str, Sequence[str | None]] = {}
    for name in names:
        new = changes.new.column(name).to_pylist()
        unsent = changes.unchanged.get(name)
        if unsent is not None:
            new = ["(unchanged)" if mark and op == UPDATE else cell
                   for cell, mark, op in zip(new, unsent, changes.op, strict=True)]  # fmt: skip
        cells[name] = new
    for name in names:
        old = changes.old.column(name)
        if old.null_count < len(old):
            cells[f"old__{name}"] = old.to_pylist()
    operations = [OPERATIONS[op] for op in changes.op.tolist()]
    rows = [(operation, *row) for operation, row in zip(operations, _tuples(cells, len(changes)), strict=True)]
    return Shown(str(table), step, of, "", (OPERATION, *cells), tuple(rows))
