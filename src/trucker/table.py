"""Tables and their columns, as the source describes them.

Separate from `trucker.change`, which has the rows: configuration and status need no Arrow, whose import takes as long
as the rest of a command's start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

OLD: Final = "old__"
"""Before the name of a column: its old value, in the rows that a truck's SQL is given (`trucker.rows`)."""

OPERATION: Final = "operation"
"""The column with the operation of each of those rows."""


@lru_cache(4096)
def quote_identifier(name: str) -> str:
    """Quote a name for SQL. Always quotes, so reserved words and capitals need no care."""
    return '"' + name.replace('"', '""') + '"'


class SchemaChanges(StrEnum):
    """What a truck does when the columns of one of its tables change at the source."""

    APPLY = "apply"
    STOP = "stop"
    IGNORE = "ignore"


class CopyMode(StrEnum):
    """How a table is copied first. `NONE`: not at all, changes alone are applied."""

    EXPORTED = "exported"
    INCREMENTAL = "incremental"
    AUTO = "auto"
    NONE = "none"


class Partitions(StrEnum):
    """What a truck does with the rows of a partition that is detached, dropped or truncated at the source."""

    FOLLOW = "follow"
    KEEP = "keep"


Key = tuple[str, ...]
"""The values of a row's key, in the order of its columns, as the source writes them."""


class TableId(NamedTuple):
    """A table's schema and name, unquoted. A named tuple, because it is the key of most mappings: its hash is computed
    without a call in Python."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the source describes it.

    `type_name` is `format_type()`'s text with domains resolved to their base type, or "" where only the
    stream has described the column. `missing_value` is what rows older than an ADD COLUMN hold for it.
    `definition` has the statements that make the type, where it is a user's (`type_definition`). `labels` are an
    enum's values. `was_name` and `was_type` say what the column was when rows of it were last written, where that
    is another name or type.
    """

    name: str
    type_oid: int
    typmod: int = -1
    type_name: str = ""
    not_null: bool = False
    missing_value: str | None = None
    definition: str = ""
    labels: tuple[str, ...] = ()
    was_name: str = ""
    was_type: str = ""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table at one moment. `key` names the columns that identify a row; empty means the whole row does."""

    table: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    names: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Once: every step of a batch asks for them.
        object.__setattr__(self, "names", tuple([column.name for column in self.columns]))

    def __hash__(self) -> int:
        """Of the names alone: schemas are looked up several times a batch, and differ by more than that rarely."""
        return hash((self.table, self.names, self.key))

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def only(self, names: Sequence[str]) -> TableSchema:
        """The same table with just these columns, in their order here."""
        selected = frozenset(names)
        return replace(self, columns=tuple(c for c in self.columns if c.name in selected))

    def called(self, names: Mapping[str, str]) -> TableSchema:
        """The same columns under other names, in the same order. A column that is not renamed and whose name another
        column gets is renamed out of the way."""
        new_names = frozenset(names.values())
        resulting = [names.get(n) or (f"{n} (not taken)" if n in new_names else n) for n in self.names]
        return replace(self, columns=tuple(replace(c, name=n) for c, n in zip(self.columns, resulting, strict=True)))

    def to_json(self) -> str:
        table, columns = self.table._asdict(), [asdict(column) for column in self.columns]
        return json.dumps({"table": table, "columns": columns, "key": self.key})

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        raw = json.loads(text)
        columns = tuple(Column(**{**c, "labels": tuple(c["labels"])}) for c in raw["columns"])
        return cls(TableId(**raw["table"]), columns, tuple(raw["key"]))
