"""A table of a source: its columns, its key, and what its old tuples carry."""

from __future__ import annotations

from dataclasses import dataclass

from trucker.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: an ordinary one, or a partition. `identity_columns` is what its old tuples carry."""

    oid: int
    table: TableId
    identity: str
    identity_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that can be published.

    `identity` is the replica identity as Relation messages have it (d n f i). `identity_columns` are the columns every
    old tuple carries, whichever partition it is of; all columns under FULL, none where rows cannot be identified.
    `generated` columns are computed by the server and not part of `schema`, unless the publication sends them. `hidden`
    are those for which the server refuses to change a row that is identified as a whole, because its old tuple could
    not be sent whole. `bytes` counts the rows with their TOAST, not indexes. `key_numbers` are the key's columns by the
    number each keeps for life. `toastable` columns may hold values that an update does not send where it leaves them as
    they are.
    """

    schema: TableSchema
    oid: int
    identity: str
    identity_columns: tuple[str, ...]
    partitioned: bool
    row_security: bool
    bytes: int
    leaves: tuple[Leaf, ...]
    generated: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    key_numbers: tuple[int, ...] = ()
    toastable: tuple[str, ...] = ()
    own_identity: tuple[str, ...] = ()

    @property
    def table(self) -> TableId:
        return self.schema.table

    @property
    def full(self) -> bool:
        """Whether every old tuple is the whole row, and is sent as such."""
        return self.whole_rows and self.identity == "f"

    @property
    def whole_rows(self) -> bool:
        """Whether every old tuple holds the whole row."""
        return all(leaf.identity == "f" for leaf in self.holders)

    @property
    def holders(self) -> tuple[Leaf, ...]:
        """The leaves; the table itself while it has no partition."""
        return self.leaves or (Leaf(self.oid, self.table, self.identity, self.own_identity),)

    @property
    def described(self) -> bool:
        """Whether old tuples are sent as whole rows, or as keys of some columns."""
        return self.identity == "f" or bool(self.own_identity)

    @property
    def unfit(self) -> tuple[Leaf, ...]:
        """The leaves whose old tuples are not what they are sent as, or do not hold the key."""
        key = set(self.schema.key)
        return tuple(
            leaf
            for leaf in self.holders
            if leaf.identity != "f"
            and ((self.partitioned and self.identity == "f") or not key or not key <= set(leaf.identity_columns))
        )


@dataclass(frozen=True, slots=True)
class SourceType:
    """A type's name, domains resolved, and the statements that make it where it is a user's."""

    name: str = ""
    definition: str = ""
