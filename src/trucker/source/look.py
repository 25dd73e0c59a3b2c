"""The shape of a table in the catalogue at one moment, with what distinguishes one DDL statement from another.

The stream names columns and types. It does not say which column a name means (a renamed one, or another that was added
under the name of a dropped one), nor that all rows were written anew. Two looks do, by comparison: a column keeps its
number for life and names the transaction that last altered it, and rows that were written anew are in another file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from trucker.lsn import Lsn
from trucker.table import Column, TableId


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """A column with its number. `altered` is the id of the transaction that last altered it; `filled` says that rows
    older than the column have `column.missing_value` by the catalogue's word, NULL or not."""

    number: int
    column: Column
    filled: bool
    altered: int


@dataclass(frozen=True)
class Look:
    """A table at a moment not later than `lsn`. `width` counts every column it ever had; `files` has the file of every
    leaf that holds rows, by the leaf's oid.

    `attached` has, of the leaves that have not been partitions of the table for all of their life, what is another text
    after each ATTACH; None where that was not looked at. Transactions below `horizon` had ended. `leaves` has the
    leaves' names.
    """

    table: TableId
    oid: int
    lsn: Lsn
    key: tuple[str, ...]
    width: int
    columns: tuple[SeenColumn, ...]
    files: Mapping[int, int]
    attached: Mapping[int, str] | None = None
    horizon: int = 0
    leaves: Mapping[int, TableId] = field(default_factory=dict)

    @property
    def partitioned(self) -> bool:
        return self.oid not in self.files

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {seen.column.name: seen.number for seen in self.columns}

    @cached_property
    def by_number(self) -> Mapping[int, SeenColumn]:
        return {seen.number: seen for seen in self.columns}

    def with_tree_of(self, other: Look) -> Look:
        """The same with the partitions of another look."""
        tree = {name: getattr(other, name) for name in ("files", "attached", "horizon", "leaves")}
        return replace(self, **tree)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": [self.table.schema, self.table.name],
            "oid": self.oid,
            "lsn": str(self.lsn),
            "key": list(self.key),
            "width": self.width,
            "columns": [asdict(seen) for seen in self.columns],
            "files": sorted(self.files.items()),
            "attached": None if self.attached is None else sorted(self.attached.items()),
            "horizon": self.horizon,
            "leaves": [[oid, leaf.schema, leaf.name] for oid, leaf in sorted(self.leaves.items())],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Look:
        columns = tuple(
            SeenColumn(c["number"], _column(c["column"]), c["filled"], c["altered"]) for c in raw["columns"]
        )
        return cls(
            TableId(*raw["table"]),
            raw["oid"],
            Lsn.parse(raw["lsn"]),
            tuple(raw["key"]),
            raw["width"],
            columns,
            dict(map(tuple, raw["files"])),
            None if raw.get("attached") is None else dict(map(tuple, raw["attached"])),
            raw.get("horizon", 0),
            {oid: TableId(schema, name) for oid, schema, name in raw.get("leaves", ())},
        )


def _column(raw: Mapping[str, Any]) -> Column:
    return Column(**{**raw, "labels": tuple(raw["labels"])})


@dataclass(frozen=True, slots=True)
class Sighting:
    """A table in the catalogue at one moment; None where there is none of the name.

    `sent` are the columns whose values the publication sends. All that was seen was committed before `lsn`. The table
    was as it had been judged to be when transactions below `since` had ended, if that is known.
    """

    table: TableId
    look: Look | None
    sent: frozenset[str]
    lsn: Lsn
    since: int = 0
