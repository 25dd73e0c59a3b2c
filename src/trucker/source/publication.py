"""What a source publishes of a table: what is wanted, and how the publication holds the table at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trucker.table import TableId

UNFIT: Final = "unfit"
"""Instead of a digest of identities: by them changes came that could not be followed."""

CatalogRow = tuple[int, int]
"""`oid` and `xmin` of a row of the catalogue."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """What is wanted of a table: `columns` None means all of them, `where` is a condition on its own columns."""

    table: TableId
    columns: tuple[str, ...] | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """How a table is published at one moment.

    `relation` is the table's oid, `publication` the publication's row, None where there is none. `member` is the
    table's own row, `schema` the row of its schema with the `xmin` of the table's place in it. `identities` is a digest
    of the replica identities of a partitioned table and of its partitions, which decide together what an old tuple
    holds; it is empty for other tables, whose identity is in the stream.
    """

    relation: int
    publication: CatalogRow | None
    all_tables: bool = False
    member: CatalogRow | None = None
    schema: tuple[int, int, int] | None = None
    identities: str = ""

    @property
    def published(self) -> bool:
        return self.publication is not None and bool(self.all_tables or self.member or self.schema)

    def missed(self, now: Membership) -> str:
        """Why changes may be missing since the table was published so; "" where none can be.

        Other `identities` are no reason: partitions come and go.
        """
        if self.identities == UNFIT:
            return "a partition did not have the replica identity of the table"
        if self.relation != now.relation:
            return "the table was dropped and created again at the source"
        if now.publication is None or self.publication is None:
            return "its publication was dropped"
        if self.publication[0] != now.publication[0]:
            return "its publication was dropped and created again"
        if self.publication != now.publication:
            return "its publication was altered"
        if not now.published:
            return "the table was removed from its publication"
        if self.member != now.member or self.schema != now.schema:
            return (
                "the table was removed from its publication and added again, or its columns or row filter there "
                "were altered"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        return {
            "relation": self.relation,
            "publication": self.publication,
            "all_tables": self.all_tables,
            "member": self.member,
            "schema": self.schema,
            "identities": self.identities,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Membership:
        rows = {name: tuple(raw[name]) if raw[name] else None for name in ("publication", "member", "schema")}
        return cls(raw["relation"], all_tables=raw["all_tables"], identities=raw["identities"], **rows)
