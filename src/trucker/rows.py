"""Rows between the steps of a truck: the input and the result of a query.

A relation of rows has, for each column of the table, the new value under its own name and the old one as
`old__<name>`; a truck that keeps every change has the position as well. Cells are PostgreSQL's text, as in `change`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import Column, Mask
from trucker.table import OLD as OLD
from trucker.table import OPERATION as OPERATION

POSITION: Final = (
    Column("commit_lsn", 3220, type_name="pg_lsn"),
    Column("commit_time", 1184, type_name="timestamp with time zone"),
    Column("xid", 20, type_name="bigint"),
    Column("ordinal", 20, type_name="bigint"),
)
"""The position of a change, for trucks with `compact: none`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with the operation of each, which is not a column here. Names are unique.

    `run` is the number of each row's run, the rows of one statement; rows are in its order.
    """

    columns: tuple[Column, ...]
    cells: pa.RecordBatch
    op: npt.NDArray[np.uint8]
    run: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.op)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def take(self, rows: Mask | npt.NDArray[np.int64]) -> Rows:
        """The chosen rows (a mask, or indices in the order wanted)."""
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Rows(self.columns, self.cells.take(pa.array(indices)), self.op[indices], self.run[indices])


def concat_rows(parts: Sequence[Rows]) -> Rows | None:
    """One value from several with the same columns, in the given order; None from none."""
    if not parts:
        return None
    return Rows(
        parts[0].columns,
        pa.concat_batches([part.cells for part in parts]),
        np.concatenate([part.op for part in parts]),
        np.concatenate([part.run for part in parts]),
    )
