"""One source table of one truck and the table that it goes to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trucker.config.sql.sql_files import SqlFile
from trucker.table import SchemaChanges, TableId, TableSchema
from trucker.types import Unfit

TruckTable = tuple[str, TableId]
"""A truck and one of its source tables."""


@dataclass(frozen=True, slots=True)
class Target:
    """One source table of one truck and the table it goes to. `source` is what the truck takes of it.

    `unfit` has the columns with a policy for values that the destination cannot hold, and the policy of each.
    `schema_changes` says what may be done to the table. `dropped` names columns that the source has dropped. `stale`
    says that the rows there are not the source's, and are copied again once the table fits.

    Of a truck with SQL or rules `source` has the columns that these give, and their key. `strict` says that a table
    which is there must have just these columns. `shared` says that other tables' rows go to the same table: a copy adds
    to what is there. `statement` is the truck's output.sql: it writes, and `table` is ignored then. Rows for
    it come in `Changes.new`, deletes too, and `Changes.ordinal` is the number of the run (`rows.Rows`) each belongs to.
    Statements that take longer than `slow_ms` milliseconds are logged. `awaits_rows` says that rows of the source
    table, of a partition that was attached, are not at the destination yet and will be written there as whole rows:
    until then an update with unchanged cells is left out where its row is not there. `uncopied` says that the rows
    which the source had at first were never copied: any row that a change is about may be missing, for good. The
    framework then gives updates as whole rows.
    """

    truck: str
    source: TableSchema
    table: TableId
    unfit: tuple[tuple[str, Unfit], ...] = ()
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    dropped: tuple[str, ...] = ()
    stale: bool = False
    strict: bool = False
    shared: bool = False
    statement: SqlFile | None = None
    slow_ms: int | None = None
    awaits_rows: bool = False
    uncopied: bool = False

    @property
    def truck_table(self) -> TruckTable:
        """The truck and the source table."""
        return self.truck, self.source.table

    @property
    def place(self) -> TableId:
        """Where its rows are, in the ledger's words: a table, or wherever output.sql puts them."""
        return TableId("", self.statement.name) if self.statement else self.table

    def unfit_of(self, column: str) -> Unfit | None:
        """The column's policy; None where the truck does not say (an error, unless a sink has a lossless form)."""
        return dict(self.unfit).get(column)

    def renames(self, present: Collection[str]) -> list[tuple[str, str]]:
        """The old and the new names of columns to rename where a table has these, in an order that works.

        A column whose new name is taken stays what it is: its rows come again.
        """
        columns, renames = set(present), []
        due = {c.name: c.was_name for c in self.source.columns if c.was_name}
        while moves := [(old, new) for new, old in due.items() if old in columns and new not in columns]:
            old, new = moves[0]
            columns ^= {old, new}
            del due[new]
            renames.append((old, new))
        return renames
