"""A truck and its tables, with names and patterns resolved against the source.

Pickles: executors get it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import OUTPUT
from trucker.sinks.target import Target
from trucker.table import CopyMode, Partitions, SchemaChanges, TableId, TableSchema
from trucker.types import Unfit


@dataclass(frozen=True, slots=True)
class InputTable:
    """One input table of a truck: which columns it reads, and its output table.

    `only` empty means all columns except `excepted`; the key's columns are always read. `named`: the truck names the
    table; otherwise a pattern matches it. `key` has the column names as of the start of the run, `key_numbers` the
    attribute numbers, which do not change when a column is renamed.
    """

    source: TableId
    output: TableId
    key: tuple[str, ...]
    only: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()
    where: str | None = None
    unfit: tuple[tuple[str, Unfit], ...] = ()
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    partitions: Partitions = Partitions.FOLLOW
    copy_mode: CopyMode = CopyMode.EXPORTED
    named: bool = True
    key_numbers: tuple[int, ...] = ()

    @property
    def is_copied(self) -> bool:
        """Whether its rows are copied; otherwise it begins with the changes from some position on (`copy: none`)."""
        return self.copy_mode is not CopyMode.NONE

    def takes(self, column: str) -> bool:
        return column in self.key or self.chooses(column)

    def chooses(self, column: str) -> bool:
        """Whether the truck reads a column of this name that is not part of the key."""
        return column in self.only if self.only else column not in self.excepted

    def key_by(self, names: Mapping[int, str]) -> tuple[str, ...]:
        """The key with the names that its columns have now, by number; the old name for a column that is missing."""
        return tuple(names.get(number, name) for number, name in zip(self.key_numbers, self.key, strict=True))

    def target(self, truck: str, schema: TableSchema) -> Target:
        """The target for the table as `schema` describes it now."""
        key = frozenset(schema.key)
        columns = tuple(c for c in schema.columns if c.name in key or self.chooses(c.name))
        names = {column.name for column in columns}
        unfit = tuple(each for each in self.unfit if each[0] in names)
        source = TableSchema(schema.table, columns, schema.key)
        return Target(truck, source, self.output, unfit, self.schema_changes, uncopied=not self.is_copied)


@dataclass(frozen=True, slots=True)
class Truck:
    """A truck with its names and patterns resolved against the source.

    `dead_letters` is how many refused rows it may set aside; None where the first one stops it. `config` is set where
    the truck does more than replicate: it has rules or SQL. `by_table`: a table that fails is set aside while the
    others continue. `copies`: its tables can be copied, which those of a replay cannot.
    """

    name: str
    source: str
    destination: str
    tables: Mapping[TableId, InputTable]
    dead_letters: int | None = None
    config: TruckConfig | None = None
    by_table: bool = False
    copies: bool = True

    @property
    def fails_by_table(self) -> bool:
        """Whether a table that fails is set aside alone: no SQL, and no order across tables, needs it."""
        return self.by_table and len(self.tables) > 1 and not self.in_order

    def copies_by_chunks(self, table: TableId, *, large: bool = False, interrupted: bool = False) -> bool:
        """Whether a table is copied incrementally, as the truck wishes, or because it is large and a copy of it in one
        go was interrupted."""
        mode = self.tables[table].copy_mode
        wished = mode is CopyMode.INCREMENTAL or (
            large and (mode is CopyMode.AUTO or (mode is CopyMode.EXPORTED and interrupted))
        )
        return wished and not self.copied_whole_because(table)

    def continues(self, table: TableId) -> bool:
        """Whether a copy of the table in one go can be continued incrementally: as `copies_by_chunks`, and no row that
        was refused has been set aside."""
        return self.dead_letters is None and not self.copied_whole_because(table)

    def copied_whole_because(self, table: TableId) -> str:
        """Why a table is copied in one go only; empty where it can be copied by chunks. Rows of a chunk and of the
        stream meet by their keys, and what is written of a row replaces what was written of it before."""
        if not self.tables[table].key:
            return "there is no key"
        if self.config is None:
            return ""
        if self.config.file(OUTPUT):
            return "output.sql would get changes of rows before it gets the rows"
        if self.config.compact == "none":
            return "it keeps every change"
        return "several tables have one output" if self.shares else ""

    @property
    def repeatable(self) -> bool:
        """Whether a table can be copied again automatically: the rows of its output table are known to be its own."""
        return self.copies and (self.config is None or not (self.config.file(OUTPUT) or self.shares))

    def may_copy_again(self, table: TableId) -> bool:
        """Whether a table is copied again without being asked for."""
        input_table = self.tables[table]
        return self.repeatable and input_table.is_copied and input_table.schema_changes is not SchemaChanges.STOP

    @property
    def in_order(self) -> bool:
        """Whether the order of changes across its tables, or which of them one transaction made, is seen in what it
        writes."""
        config = self.config
        if config is None:
            return False
        return self.shares or bool(config.file(OUTPUT)) or config.compact == "none" or config.batch == "transaction"

    @property
    def shares(self) -> bool:
        """Whether several of its tables have the same output table."""
        return len({table.output for table in self.tables.values()}) < len(self.tables)
