"""Compiles recipes: what a truck's rules and SQL files do with a table of a given shape.

Compiled in the driver, once for every shape of a table; a mistake in a file is an error here, before a row is read.
Nothing is run: the source's SQL is prepared, Spark's analyzed. The destination prepares output.sql (`Sink.prepare`).
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trucker import private
from trucker.config.models import ProjectConfig, TruckConfig
from trucker.config.sql.sql_files import BY_OPERATION, INPUT, ON_SPARK, OUTPUT
from trucker.config.sql.sql_template import SqlTemplate
from trucker.engine.spark.cluster import cores
from trucker.engine.transform.fold import Fold
from trucker.engine.transform.recipe import Recipe
from trucker.engine.transform.rules import compile_rules
from trucker.engine.transform.sql_rows import relation_of, written_columns
from trucker.engine.truck.truck import Truck
from trucker.errors import ConfigError
from trucker.sinks.batch import Receipt, Work
from trucker.sinks.target import Target
from trucker.slow_sql import SlowQueries
from trucker.source.base import Source, SourceQuery
from trucker.table import Column, TableId, TableSchema
from trucker.types import Unfit

if TYPE_CHECKING:
    from trucker.engine.destination.task_sinks import SinkSpec
    from trucker.engine.spark.application import Spark
    from trucker.engine.transform.spark_sql.spark_plan import SparkPlan, SpooledRows
    from trucker.engine.transform.spark_sql.spark_truck import SparkTruck
    from trucker.rows import Rows

_LEAST_AT_ONCE, _MOST_AT_ONCE = 4, 32
"""Parts that run through Spark SQL at once: one for each core, within these limits."""

Policies = tuple[tuple[str, Unfit], ...]
"""The policy for values that do not fit, by column."""

_OPERATION: Final = re.compile(r"\boperation\b", re.IGNORECASE)


class Recipes:
    """The recipes of one source's trucks. Used by every thread that plans a batch."""

    def __init__(
        self, source: Source, keeps_changes: Mapping[str, bool], slow_ms: int, folder: Path | None = None
    ) -> None:
        """`keeps_changes`: for each destination, whether it keeps every change. `folder` holds rows that wait for
        Spark. Until Spark is started, its files are ignored, and recipes have no columns of their results. Statements
        that take `slow_ms` are logged, except where a truck has another setting."""
        self._source = source
        self._slow_ms = slow_ms
        self._keeps_changes = keeps_changes
        self.folder = folder
        self._session: Spark | None = None
        self._spark: dict[str, SparkTruck] | None = None
        self._compiled: dict[tuple[str, TableId], tuple[Target, tuple[Target, Recipe]]] = {}
        self._lock = threading.Lock()

    def start(self, spark: Spark, config: ProjectConfig) -> None:
        """Spark has started: prepare it for every truck that has files for it."""
        trucks = [truck for truck in config.trucks if any(truck.file(name) for name in ON_SPARK)]
        if self._spark is not None or not trucks:
            return
        from trucker.engine.spark.application import session_of
        from trucker.engine.transform.spark_sql.spark_truck import SparkTruck

        assert self.folder is not None
        self._session = spark
        shutil.rmtree(self.folder, ignore_errors=True)
        private.make_folder(self.folder)
        session = session_of(spark)
        self._spark = {truck.name: SparkTruck(session, truck, config.connections, self.folder) for truck in trucks}

    def close(self) -> None:
        """Close the connections of lookups."""
        for truck in (self._spark or {}).values():
            truck.close()

    def give(self, truck: str, plan: SparkPlan, rows: SpooledRows) -> list[Rows]:
        """The result of the truck's Spark files for the rows, to show it."""
        assert self._spark is not None
        return self._spark[truck].give(plan, rows)

    def stage(self, plan: SparkPlan, rows: SpooledRows, work: Work, spec: SinkSpec) -> Receipt | None:
        """Run the Spark files of the work's truck on the rows, and stage the result, if it has rows."""
        assert self._spark is not None
        return self._spark[work.target.truck].run(plan, rows, work, spec)

    @property
    def parts_at_once(self) -> int:
        """How many parts should run through Spark SQL at once."""
        assert self._session is not None
        return min(_MOST_AT_ONCE, max(_LEAST_AT_ONCE, cores(self._session)))

    def of(self, truck: Truck, plain: Target) -> tuple[Target, Recipe] | None:
        """The target with the columns of its rows, and the recipe; None where the truck replicates the table as it is.

        `plain` is the target without rules and SQL. Raises `ConfigError` with file and line.
        """
        if truck.config is None:
            return None
        key = (truck.name, plain.source.table)
        # Held while it compiles: several threads plan batches, and each shape is to be compiled once.
        with self._lock:
            cached = self._compiled.get(key)
            if cached is None or cached[0] != plain:
                truck_ms = truck.config.slow_query_threshold_ms
                slow = SlowQueries(truck.name, self._slow_ms if truck_ms is None else truck_ms)
                compiler = _Compiler(
                    truck, truck.config, self._source, self._keeps_changes[truck.destination], self._spark
                )
                target, recipe = compiler.compile(plain)
                recipe = replace(recipe, slow=slow)
                target = replace(target, slow_ms=slow.threshold_ms) if target.statement else target
                cached = self._compiled[key] = (plain, (target, recipe))
            return cached[1]


class _Compiler:
    def __init__(
        self,
        truck: Truck,
        config: TruckConfig,
        source: Source,
        keeps_changes: bool,
        spark: Mapping[str, SparkTruck] | None,
    ) -> None:
        self._truck, self._config, self._source = truck, config, source
        self._keeps_changes, self._spark = keeps_changes, spark

    def compile(self, plain: Target) -> tuple[Target, Recipe]:
        config, schema = self._config, plain.source
        if not config.files and config.output.key:
            raise ConfigError(
                f"truck {config.name} has output.key, but no SQL that returns other columns",
                remedy="remove output.key: rows are identified by the key of the input",
                code="TRK137",
            )
        if self._truck.shares:
            self._check_shared()
        rules = compile_rules(config.rules, schema) if config.rules else None
        shape = rules.schema if rules else schema
        fold = Fold.NONE if self._keeps_changes and not config.files else _fold(config)
        recipe = Recipe(schema, fold, rules, every=self._keeps_changes, ignores_truncate=config.on_truncate == "ignore")
        unfit = self._truck.tables[schema.table].unfit
        target = replace(plain, source=shape, shared=self._truck.shares, unfit=_fitting(unfit, shape.columns))
        if rules:
            target = replace(target, dropped=tuple(rules.called(name) for name in plain.dropped))
        if not config.files:
            self._check_history()
            return target, recipe
        positions = config.compact == "none"
        relation = relation_of(shape, positions=positions)
        query = self._query(shape, positions)
        columns = query.columns if query else relation
        plan = self._plan(columns, schema.table)
        columns = plan.columns if plan else columns
        recipe = replace(
            recipe,
            relation=relation,
            query=query,
            spark=plan,
            past=self._ignores_deletes and bool(shape.key) and config.compact == "net",
            by_transaction=config.batch == "transaction",
            rows_max=config.rows_max,
        )
        return self._written(replace(target, unfit=_fitting(unfit, columns)), columns, shape), recipe

    def _check_shared(self) -> None:
        """Refuse several tables for one output where a row that moves from one table to another within a batch could
        be inserted before it is deleted."""
        config = self._config
        on_spark = any(config.file(name) for name in ON_SPARK) and not config.file(OUTPUT)
        if self._truck.dead_letters is not None:
            why = "with on_error: dead_letter a refused row of one table may belong to another"
        elif on_spark and not self._ignores_deletes:
            why = "its Spark SQL returns rows to delete, which may belong to another table"
        else:
            return
        raise ConfigError(
            f"truck {config.name} has several tables for one output, and {why}",
            remedy="write output.sql, or give each table its own output or truck",
            code="TRK144",
        )

    @property
    def _ignores_deletes(self) -> bool:
        """Whether no file mentions deletes: then they bypass SQL, by the input's key."""
        files = self._config.files
        if self._config.file(OUTPUT) or self._config.file(BY_OPERATION["delete"]):
            return False
        return not any(_OPERATION.search(file.text) or SqlTemplate(file).old_columns for file in files)

    def _query(self, shape: TableSchema, positions: bool) -> SourceQuery | None:
        file = self._config.file(INPUT)
        if file is None:
            return None
        with closing(self._source.query_session()) as session:
            return session.prepare(file, shape, positions=positions)

    def _plan(self, columns: tuple[Column, ...], table: TableId) -> SparkPlan | None:
        if self._spark is None or not any(self._config.file(name) for name in ON_SPARK):
            return None
        return self._spark[self._config.name].compile(columns, table)

    def _written(self, target: Target, columns: Sequence[Column], shape: TableSchema) -> Target:
        statement = self._config.file(OUTPUT)
        if statement is not None:
            return replace(target, source=TableSchema(shape.table, tuple(columns)), statement=statement)
        self._check_history()
        written = written_columns(columns, old=False)
        return replace(self._with_key(replace(target, source=TableSchema(shape.table, written)), shape), strict=True)

    def _check_history(self) -> None:
        if self._config.compact == "none" and not self._keeps_changes:
            raise ConfigError(
                f"truck {self._truck.name} keeps every change (compact: none), but has no output.sql to write them",
                remedy="write output.sql, for example insert into history (…) select … from {{ rows }}",
                code="TRK136",
            )

    def _with_key(self, target: Target, shape: TableSchema) -> Target:
        """The target with its key: output.key, else the input's."""
        key, names = self._config.output.key or shape.key, target.source.names
        missing = [name for name in key if name not in names]
        if (not key and not self._keeps_changes) or missing:
            raise ConfigError(
                f"truck {self._truck.name}: "
                + (
                    f"the rows for {target.table} lack the columns {', '.join(missing)}"
                    if key
                    else f"{shape.table} has no key"
                ),
                remedy="set output.key to the columns that identify a row at the destination; the SQL must "
                f"return them; it returns {', '.join(names)}",
                code="TRK137",
            )
        if self._ignores_deletes and (
            frozenset(key) != frozenset(shape.key) or (self._config.compact == "none" and key)
        ):
            raise ConfigError(
                f"truck {self._truck.name}: rows are identified by {', '.join(key)} at the destination and by "
                f"{', '.join(shape.key) or 'nothing'} in {shape.table}, and no SQL file maps deletes to the "
                "destination's key",
                remedy="select r.operation as well, and the key of deletes from old values: "
                f"coalesce(r.{shape.key[0]}, r.old__{shape.key[0]}) as {key[0]}"
                if shape.key
                else "write delete.sql",
                code="TRK138",
            )
        return replace(target, source=replace(target.source, key=tuple(key)))


def _fold(config: TruckConfig) -> Fold:
    if config.compact == "none":
        return Fold.NONE
    return Fold.TRANSACTION if config.batch == "transaction" else Fold.NET


def _fitting(unfit: Policies, columns: Sequence[Column]) -> Policies:
    names = {column.name for column in columns}
    return tuple(each for each in unfit if each[0] in names)
