"""A truck's tables as the state folder and the change log have them: the source is not asked.

The state folder has each table as the truck wrote it last (`WrittenSchema`), at the end of what it has applied. A
replay is about an earlier time, when the table may have had another shape. What it was then, its Relation messages in
the log say, by names alone:

- one shape in the whole range: it is the shape, whatever its columns became afterwards;
- several: every column of theirs must be one that the table still has, so that its number is known. Columns that were
  added are followed then; a range with any other change of columns is refused (I8), except for destinations that keep
  every change in its own shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trucker.changelog.format.log_range import LogRange
from trucker.changelog.reader import LogReader
from trucker.config.models import TruckConfig
from trucker.config.patterns import select_tables
from trucker.engine.schema.column_identity import is_older
from trucker.engine.schema.schema_changes import CatalogDescription, Schemas
from trucker.engine.schema.written_schema import SchemaStore, WrittenSchema
from trucker.engine.truck.resolve import truck_of
from trucker.engine.truck.truck import InputTable, Truck
from trucker.errors import ControlError
from trucker.lsn import Lsn
from trucker.pgoutput import Relation, parse_relation
from trucker.source.look import Look, SeenColumn
from trucker.source.source_table import SourceTable, SourceType
from trucker.table import Column, TableId, TableSchema

NOT_FOLLOWED = "TRK653"


class MemoryDocument:
    """A document that ends with the process: of a replay nothing is stored but rows and positions."""

    def read(self) -> bytes | None:
        return None

    def write(self, content: bytes) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table of a range, whose changes are read as `written` says. `now` is a later look, where columns were added in
    the range. `schema` is its first shape there."""

    written: WrittenSchema
    schema: TableSchema
    now: Look | None = None


def logged_truck(config: TruckConfig, written: Mapping[TableId, WrittenSchema]) -> Truck:
    """The truck with the tables that it has written. Raises where it has none."""
    chosen = select_tables(config.input.tables, sorted(written))
    if not chosen:
        raise ControlError(
            f"truck {config.name} has no tables in the state folder: it has copied none of them yet",
            remedy="run `trucker run`; what the change log has from then on can be replayed",
            code="TRK650",
        )
    truck = truck_of(config, [_source_table(written[table]) for table in chosen])
    return replace(truck, copies=False, by_table=False)


def _source_table(written: WrittenSchema) -> SourceTable:
    look = written.look
    columns = tuple(seen.column for seen in look.columns)
    names = {number: seen.column.name for number, seen in look.by_number.items()}
    numbers = tuple(look.numbers[name] for name in look.key if name in look.numbers)
    if written.key is not None and names.keys() >= frozenset(written.key):
        numbers = written.key
    schema = TableSchema(look.table, columns, tuple(names[number] for number in numbers))
    return SourceTable(
        schema,
        look.oid,
        identity="d",
        identity_columns=schema.key,
        partitioned=look.partitioned,
        row_security=False,
        bytes=0,
        leaves=(),
        key_numbers=numbers,
    )


def logged_tables(
    reader: LogReader, whole: LogRange, truck: Truck, written: Mapping[TableId, WrittenSchema], *, own: bool
) -> dict[TableId, LoggedTable]:
    """The truck's tables that have changes in a range. Raises where a shape there cannot be followed, unless the
    destination keeps every change in its `own` shape."""
    xid = reader.first_transaction(whole.references(), whole.start)
    tables = {}
    for table, described in _described(reader, whole, truck, written).items():
        reading = _Reading(truck.tables[table], written[table], [relation for _, relation in described], xid)
        if len(described) == 1 or own or reading.followed:
            tables[table] = reading.logged
        else:
            raise ControlError(
                f"the columns of {table} were changed after {described[1][0]}, and the change log does not tell how",
                remedy=f"replay up to there: --to {described[1][0]}; for what comes after, begin with a copy of the "
                "destination that is younger",
                code=NOT_FOLLOWED,
            ).of_table(table)
    return tables


def _described(
    reader: LogReader, whole: LogRange, truck: Truck, written: Mapping[TableId, WrittenSchema]
) -> dict[TableId, list[tuple[Lsn, Relation]]]:
    """The shapes of each table of the truck, each with a position before which no row has it."""
    oids = {written[table].look.oid: table for table in truck.tables}
    described: dict[TableId, list[tuple[Lsn, Relation]]] = defaultdict(list)
    for end, oid, message in reader.descriptions(whole):
        relation = parse_relation(message)
        table = relation.table if relation.table in truck.tables else oids.get(oid)
        if table is None:
            continue
        shapes = described[table]
        if not shapes or (shapes[-1][1].oid, shapes[-1][1].columns) != (oid, relation.columns):
            shapes.append((end, relation))
    return described


@dataclass(frozen=True)
class _Reading:
    """The shapes of one table in a range; `xid` is the first transaction of the range."""

    table: InputTable
    last: WrittenSchema
    relations: Sequence[Relation]
    xid: int | None
    _spare: int = field(default=1 << 20)

    @property
    def followed(self) -> bool:
        """Whether each column of each shape is surely one that the table still has."""
        look = self.last.look
        present = all(
            relation.oid == look.oid and all(self._seen(column) for column in relation.columns)
            for relation in self.relations
        )
        return present and all(
            seen is not None and self.xid is not None and is_older(seen.altered, self.xid)
            for seen in map(self._seen, self.relations[0].columns)
        )

    @property
    def logged(self) -> LoggedTable:
        """The table with its first shape."""
        written = self._written()
        columns, names = written.look.columns, {seen.number: seen.column.name for seen in written.look.columns}
        schema = TableSchema(self.table.source, tuple(seen.column for seen in columns), self.table.key_by(names))
        now = self.last.look if len(self.relations) > 1 and self.followed else None
        return LoggedTable(written, schema, now)

    def _written(self) -> WrittenSchema:
        """A column that the table no longer has gets a number of its own."""
        look, relation = self.last.look, self.relations[0]
        columns = tuple(
            self._seen(column) or SeenColumn(self._spare + at, column, filled=False, altered=0)
            for at, column in enumerate(relation.columns)
        )
        width = max((seen.number for seen in columns if seen.number < self._spare), default=0)
        # A table whose rows were never written anew has them in a file that is called like the leaf itself.
        first_files = {leaf: leaf for leaf in look.files}
        then = replace(look, oid=relation.oid, columns=columns, width=width, files=first_files)
        taken = frozenset(
            seen.number
            for seen in columns
            if seen.number in self.table.key_numbers or self.table.chooses(seen.column.name)
        )
        return WrittenSchema(then, taken, key=self.table.key_numbers)

    def _seen(self, column: Column) -> SeenColumn | None:
        look = self.last.look
        seen = look.by_number.get(look.numbers.get(column.name, 0))
        same = seen is not None and (seen.column.type_oid, seen.column.typmod) == (column.type_oid, column.typmod)
        return seen if same else None


def schemas_of(truck: Truck, tables: Mapping[TableId, LoggedTable], written: Iterable[WrittenSchema]) -> Schemas:
    """What judges the shapes of a range. Types are those of the columns that tables of the source have now."""
    store = SchemaStore(MemoryDocument())
    store.put({(truck.name, table): logged.written for table, logged in tables.items()})
    types = {
        (column.type_oid, column.typmod): SourceType(column.type_name, column.definition)
        for column in (seen.column for each in written for seen in each.look.columns)
    }

    def describe(table: TableId, columns: tuple[Column, ...]) -> CatalogDescription:
        logged = tables.get(table)
        return CatalogDescription(logged.now if logged else None, types)

    return Schemas(describe, store)
