"""A table as the destination's catalogue has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trucker.errors import SinkError
from trucker.sinks.postgres.ddl.unique_indexes import UniqueIndex
from trucker.sinks.table_identity import TableIdentity
from trucker.table import TableId


@dataclass(frozen=True, slots=True)
class DestinationColumn:
    """`type` is SQL for the column's type, a domain resolved to its base, with the collation where it is its own.

    `base` is the same without a length or precision. A cast to a type with one cuts what is too long; a value of the
    base type is checked when it is assigned, as it should be. `enum` names the enum it is of, with its `labels`.
    `number` is its attnum, which no other column of the table ever has.
    """

    name: str
    type: str
    type_oid: int
    not_null: bool
    has_default: bool
    identity: str
    generated: bool
    base: str
    enum: str = ""
    labels: Sequence[str] = ()
    number: int = 0

    @property
    def is_text(self) -> bool:
        return self.type == "text" or self.type.startswith("text collate ")

    @property
    def fills_itself(self) -> bool:
        """Whether it needs no value."""
        return self.has_default or bool(self.identity) or self.generated

    @property
    def bare_type(self) -> str:
        """The type without its collation."""
        return self.type.partition(" collate ")[0]


@dataclass(frozen=True, slots=True)
class DestinationTable:
    """A table as the destination's catalogue has it.

    `unique` are its unique indexes that are checked at once, `referred` says that a foreign key would miss a row of
    it that leaves and comes back. `owned` says that the user is, or is a member of, its owner; `denied` has the
    privileges on it that the user lacks. `oid` is 0 for rows that are of no table.
    """

    table: TableId
    kind: str
    columns: Mapping[str, DestinationColumn]
    unique: tuple[UniqueIndex, ...]
    referred: bool
    owned: bool = True
    denied: tuple[str, ...] = ()
    oid: int = 0

    @property
    def identity(self) -> TableIdentity:
        return TableIdentity(str(self.oid), {name: column.number for name, column in self.columns.items()})

    def type_of(self, name: str) -> str:
        return self._column(name).type

    def base_of(self, name: str) -> str:
        return self._column(name).base

    def _column(self, name: str) -> DestinationColumn:
        if name not in self.columns:
            raise SinkError(
                f"table {self.table} has no column {name}",
                remedy="run `trucker run`, which adds the column and copies the table from the beginning",
                code="TRK408",
            )
        return self.columns[name]

    def key(self, columns: Iterable[str]) -> Mapping[str, str] | None:
        """The operators that compare the columns of the unique key on exactly these, None where there is no such key.

        Those of a type that is not PostgreSQL's own are in a schema that need not be on the search path.
        """
        wanted = frozenset(columns)
        for index in self.unique:
            if index.columns == wanted and index.plain:
                return dict(zip(index.names, index.operators, strict=True))
        return None

    def other_unique(self, key: Iterable[str]) -> tuple[UniqueIndex, ...]:
        """The unique indexes other than that of the key."""
        wanted = frozenset(key)
        return tuple(index for index in self.unique if not (index.plain and index.columns == wanted))

    def writable(self, name: str) -> bool:
        """A generated column is computed there, whatever the source says."""
        return not self._column(name).generated


def literal(text: str) -> str:
    """A value as SQL (`standard_conforming_strings` is on)."""
    return "'" + text.replace("'", "''") + "'"
