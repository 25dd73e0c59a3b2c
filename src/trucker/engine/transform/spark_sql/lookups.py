"""Lookups: tables of other connections as views for a truck's Spark files.

By keys: what the rows of a run have in certain columns, new and old values alike, is asked for at the other database,
and only that. Cached: the whole table, read again when it is older than the truck says. Read in the driver.
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
    """A truck's lookups. Safe in several threads: a table that is kept is read once."""

    def __init__(self, truck: TruckConfig, connections: Sequence[Connection]) -> None:
        named = {connection.name: connection for connection in connections}
        self._place = Place(truck.label)
        self._most = truck.rows_max
        self._all = {name: _Lookup(name, config, named[config.connection]) for name, config in truck.lookups.items()}

    def describe(self, attempt: Attempt, used: Iterable[str], columns: Sequence[Column]) -> None:
        """Give the attempt an empty view of each lookup that is used. Raises what does not go together."""
        from pyspark.sql.pandas.types import from_arrow_schema

        for lookup in self._used(used):
            lookup.look(self._place, columns)
            # No rows that Spark knows of: what it knows to be empty it would leave out of the plan.
            kinds = from_arrow_schema(lookup.empty().schema, prefer_timestamp_ntz=True)
            attempt.lookups[lookup.name] = attempt.view(attempt.session.createDataFrame([], kinds))

    def fill(self, attempt: Attempt, used: Iterable[str], reading: SpooledRelation) -> None:
        """Give the attempt a view of each with what its rows need of it."""
        for lookup in self._used(used):
            attempt.lookups[lookup.name] = attempt.view(lookup.frame(attempt.session, reading, self._most))

    def needs(self, used: Iterable[str], columns: Sequence[Column]) -> frozenset[str]:
        """The columns of the rows whose values are looked up."""
        wanted = {name for lookup in self._used(used) for key in lookup.config.on.values() for name in (key, OLD + key)}
        return frozenset(column.name for column in columns if column.name in wanted)

    def close(self) -> None:
        """Give connections back."""
        for lookup in self._all.values():
            lookup.close()

    def _used(self, names: Iterable[str]) -> list[_Lookup]:
        return [self._all[name] for name in sorted(names) if name in self._all]


@dataclass
class _Kept:
    frame: DataFrame
    until: float


class _Lookup:
    """One lookup: its table, and what is kept of it."""

    def __init__(self, name: str, config: LookupConfig, connection: Connection) -> None:
        self.name = name
        self.config = config
        self.table = parse_table(config.table)
        self.columns: tuple[Column, ...] = ()
        self._keys: tuple[Column, ...] = ()
        self._lock = threading.Lock()
        self._kept: _Kept | None = None
        self._reader: ReadsTables = adapter_of(connection).lookup_component.load()(connection)

    def look(self, place: Place, rows: Sequence[Column]) -> None:
        """Find the table's columns, and whether the rows' values can be looked up in them."""
        found = {column.name: column for column in self._reader.columns(self.table)}
        wanted = [*(self.config.columns or found), *self.config.on]
        self._all_known(place, wanted, found, f"table {self.table}")
        given = {column.name: column for column in rows}
        self._all_known(place, self.config.on.values(), given, "the rows")
        self.columns = tuple(found[name] for name in dict.fromkeys(wanted))
        self._keys = tuple(replace(_portable(given[row]), name=own) for own, row in self.config.on.items())
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
        """Its rows for those of a run."""
        if self.config.cache is None:
            keys = self._values(reading)
            return _frame(session, self._read(self._keys, keys, most) if len(keys) else self.empty())
        with self._lock:
            if self._kept is None or self._kept.until < monotonic():
                whole = self._read((), pa.table({}), most)
                self._kept = _Kept(_frame(session, whole), monotonic() + self.config.cache)
            return self._kept.frame

    def _read(self, keys: Sequence[Column], values: pa.Table, most: int) -> pa.Table:
        """Rows of the table, with Spark's types of its columns."""
        if self._reader.as_text:
            cells = [texts(values.column(key.name).combine_chunks(), form_of(key), key.name) for key in keys]
            values = pa.table(cells, [key.name for key in keys])
        read = self._reader.read(self.table, self.columns, keys, values, most)
        made = [self._typed(read.column(column.name), column) for column in self.columns]
        return pa.table(made, [column.name for column in self.columns])

    def _typed(self, cells: pa.ChunkedArray | pa.Array, column: Column) -> pa.ChunkedArray | pa.Array:
        form = form_of(column)
        return typed(cells, column, form) if self._reader.as_text else pc.cast(cells, form.list_or_value)

    def close(self) -> None:
        self._reader.close()

    def empty(self) -> pa.Table:
        return pa.table([pa.array([], form_of(c).list_or_value) for c in self.columns], [c.name for c in self.columns])

    def _values(self, reading: SpooledRelation) -> pa.Table:
        """The values to look up, each once, under the names of the table's columns; NULL matches nothing."""
        own = [key.name for key in self._keys]
        pieces = []
        for batch in reading.batches():
            for prefix in ("", OLD):
                names = [prefix + row for row in self.config.on.values()]
                if set(names) <= set(batch.schema.names):
                    pieces.append(pa.table([batch.column(name) for name in names], own))
        if not pieces:
            return pa.table({})
        return pa.concat_tables(pieces).drop_null().group_by(own).aggregate([])

    def _all_known(self, place: Place, names: Iterable[str], known: Mapping[str, Column], where: str) -> None:
        for name in names:
            if name not in known:
                meant = nearest(name, known)
                raise ConfigError(
                    f'lookup {self.name}: {where} has no column "{name}"',
                    place=place,
                    remedy=f'did you mean "{meant}"?' if meant else f"the columns are {', '.join(known)}",
                    code=UNKNOWN,
                )


def _portable(column: Column) -> Column:
    """The column by a type that any PostgreSQL knows; of the others' values the text is looked up."""
    form = form_of(column)
    known = form.kind is not Kind.TEXT or column.type_name in ("uuid", "character varying", "character")
    return column if known and not form.array else replace(column, type_name="text")


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
