"""Tables of other stores that a truck looks values up in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from trucker.table import Column, TableId


class Lookup(Protocol):
    """Reads tables of one connection, in the driver; made with the connection. Safe in several threads.

    With `as_text` every cell is PostgreSQL's text, in what is asked and in what is read. Otherwise cells have Arrow's
    types; the framework casts what is read to those of the columns.
    """

    as_text: ClassVar[bool]

    def columns(self, table: TableId) -> tuple[Column, ...]:
        """The columns of a table or view, by PostgreSQL's names of their types."""

    def check(self, table: TableId, columns: Sequence[Column], keys: Sequence[Column]) -> None:
        """Raise where values of the keys' types cannot be looked up in the columns of their names. Reads no rows."""

    def read(
        self, table: TableId, columns: Sequence[Column], keys: Sequence[Column], values: pa.Table, most: int
    ) -> pa.Table | pa.RecordBatch:
        """The rows that have one of the `values` in the keys' columns; without keys all rows. `values` has a column for
        each key. More rows than `most` are an error."""

    def close(self) -> None:
        """Give connections back."""
