"""Lookups: tables of other connections as views for a truck's Spark files.

By keys: only the rows with the values that a run's rows, new and old, have in the key columns are read. Cached: the
whole table is read, again when it is older than `cache`. The driver reads both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from trucker.config.adapter import Connection
from trucker.config.lookups import LookupConfig
from trucker.config.models import TruckConfig
from trucker.config.patterns import parse_table
from trucker.config.problems import nearest
from trucker.config.registry import adapter_of
from trucker.engine.transform.spark_sql.spark_plan import SpooledRelation
from trucker.engine.transform.spark_sql.typed_cells import texts, typed
from trucker.engine.transform.spark_sql.types import form_of
from trucker.errors import ConfigError, Place, SourceError
from trucker.lookup import Lookup as ReadsTables
from trucker.rows import OLD
from trucker.table import Column
from trucker.types import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trucker.engine.transform.spark_sql.chain import Attempt

UNKNOWN: Final = "TRK155"


class Lookups:
    """A truck's lookups. Safe in several threads: a cached table is read once."""

    def __init__(self, truck: TruckConfig, connections: Sequence[Connection]) -> None:
        named = {connection.name: connection for connection in connections}
        self._place = Place(truck.label)
        self._most = truck.rows_max
        self._all = {name: _Lookup(name, config, named[config.connection]) for name, config in truck.lookups.items()}

    def describe(self, attempt: Attempt, used: Iterable[str], columns: Sequence[Column]) -> None:
        """Give the attempt an empty view of each lookup in use. Raises `ConfigError` where columns do not match."""
        from pyspark.sql.pandas.types import from_arrow_schema

        for lookup in self._used(used):
            lookup.look(self._place, columns)
            # A data frame from an empty list: Spark would remove a relation that it knows to be empty from the plan.
            kinds = from_arrow_schema(lookup.empty().schema, prefer_timestamp_ntz=True)
            attempt.lookups[lookup.name] = attempt.view(attempt.session.createDataFrame([], kinds))

    def fill(self, attempt: Attempt, used: Iterable[str], reading: SpooledRelation) -> None:
        """Give the attempt a view of each lookup that is used, with the rows that its own rows need."""
        for lookup in self._used(used):
            attempt.lookups[lookup.name] = attempt.view(lookup.frame(attempt.session, reading, self._most))

    def needs(self, used: Iterable[str], columns: Sequence[Column]) -> frozenset[str]:
        """The columns of the rows whose values are looked up."""
        keys = {name for lookup in self._used(used) for key in lookup.config.on.values() for name in (key, OLD + key)}
        return frozenset(column.name for column in columns if column.name in keys)

    def close(self) -> None:
        """Give connections back."""
        for lookup in self._all.values():
            lookup.close()

    def _used(self, names: Iterable[str]) -> list[_Lookup]:
        return [self._all[name] for name in sorted(names) if name in self._all]


@dataclass
class _CachedTable:
    frame: DataFrame
    until: float


class _Lookup:
    """One lookup: its table, and the cached rows."""

    def __init__(self, name: str, config: LookupConfig, connection: Connection) -> None:
        self.name = name
        self.config = config
        self.table = parse_table(config.table)
        self.columns: tuple[Column, ...] = ()
        self._keys: tuple[Column, ...] = ()
        self._lock = threading.Lock()
        self._cached: _CachedTable | None = None
        self._reader: ReadsTables = adapter_of(connection).lookup_component.load()(connection)

    def look(self, place: Place, rows: Sequence[Column]) -> None:
        """Read the table's columns, and check that the rows' values can be looked up in them."""
        available = {column.name: column for column in self._reader.columns(self.table)}
        names = [*(self.config.columns or available), *self.config.on]
        self._check_columns(place, names, available, f"table {self.table}")
        row_columns = {column.name: column for column in rows}
        self._check_columns(place, self.config.on.values(), row_columns, "the rows")
        self.columns = tuple(available[name] for name in dict.fromkeys(names))
        self._keys = tuple(replace(_portable(row_columns[row]), name=key) for key, row in self.config.on.items())
        try:
            self._reader.check(self.table, self.columns, self._keys)
        except SourceError as error:
            if error.transient:
                raise
            raise ConfigError(
                f"lookup {self.name}: {error.message}",
                place=place,
                remedy="look up columns of compatible types; a `cast` rule changes the type of the rows' column",
                code=UNKNOWN,
            ) from None

    def frame(self, session: SparkSession, reading: SpooledRelation, most: int) -> DataFrame:
        """The table's rows for the rows of a run."""
        if self.config.cache is None:
            keys = self._values(reading)
            return _frame(session, self._read(self._keys, keys, most) if len(keys) else self.empty())
        with self._lock:
            if self._cached is None or self._cached.until < monotonic():
                whole = self._read((), pa.table({}), most)
                self._cached = _CachedTable(_frame(session, whole), monotonic() + self.config.cache)
            return self._cached.frame

    def _read(self, keys: Sequence[Column], values: pa.Table, most: int) -> pa.Table:
        """Rows of the table, with Spark's types of its columns."""
        if self._reader.as_text:
            cells = [texts(values.column(key.name).combine_chunks(), form_of(key), key.name) for key in keys]
            values = pa.table(cells, [key.name for key in keys])
        read = self._reader.read(self.table, self.columns, keys, values, most)
        cells_typed = [self._typed(read.column(column.name), column) for column in self.columns]
        return pa.table(cells_typed, [column.name for column in self.columns])

    def _typed(self, cells: pa.ChunkedArray | pa.Array, column: Column) -> pa.ChunkedArray | pa.Array:
        form = form_of(column)
        return typed(cells, column, form) if self._reader.as_text else pc.cast(cells, form.list_or_value)

    def close(self) -> None:
        self._reader.close()

    def empty(self) -> pa.Table:
        return pa.table([pa.array([], form_of(c).list_or_value) for c in self.columns], [c.name for c in self.columns])

    def _values(self, reading: SpooledRelation) -> pa.Table:
        """The values to look up, each once, under the names of the table's columns; NULL matches nothing."""
        key_names = [key.name for key in self._keys]
        pieces = []
        for batch in reading.batches():
            for prefix in ("", OLD):
                names = [prefix + row for row in self.config.on.values()]
                if set(names) <= set(batch.schema.names):
                    pieces.append(pa.table([batch.column(name) for name in names], key_names))
        if not pieces:
            return pa.table({})
        return pa.concat_tables(pieces).drop_null().group_by(key_names).aggregate([])

    def _check_columns(self, place: Place, names: Iterable[str], columns: Mapping[str, Column], where: str) -> None:
        for name in names:
            if name not in columns:
                suggestion = nearest(name, columns)
                raise ConfigError(
                    f'lookup {self.name}: {where} has no column "{name}"',
                    place=place,
                    remedy=f'did you mean "{suggestion}"?' if suggestion else f"the columns are {', '.join(columns)}",
                    code=UNKNOWN,
                )


def _portable(column: Column) -> Column:
    """The column with a type that every PostgreSQL has; values of other types are looked up as text."""
    form = form_of(column)
    portable = form.kind is not Kind.TEXT or column.type_name in ("uuid", "character varying", "character")
    return column if portable and not form.array else replace(column, type_name="text")


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
