"""Changes grouped by shape: the rows of one share a template of an envelope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import DELETE, NO_OLD, TRUNCATE, Changes, Column, TableSchema

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowShape:
    """Rows that have the same operation, kind of old row and columns not sent."""

    rows: Indices
    op: int
    old_kind: int
    unchanged: tuple[str, ...]

    @property
    def has_new(self) -> bool:
        return self.op not in (DELETE, TRUNCATE)

    @property
    def has_old(self) -> bool:
        return self.old_kind != NO_OLD and self.op != TRUNCATE

    def sent(self, schema: TableSchema) -> list[Column]:
        """The columns whose new values were sent."""
        return [column for column in schema.columns if column.name not in self.unchanged]

    def key_from_old(self, schema: TableSchema) -> bool:
        """Whether the key is taken from the old row: of deletes, and where it is too large to be sent again when it
        stays."""
        unsent = self.old_kind != NO_OLD and not frozenset(schema.key).isdisjoint(self.unchanged)
        return not self.has_new or unsent


def key_columns(schema: TableSchema) -> list[Column]:
    """The columns of the key, in the table's order."""
    return [column for column in schema.columns if column.name in schema.key]


def row_shapes(changes: Changes) -> list[RowShape]:
    """The shapes that occur; every row is in one."""
    names = [name for name in changes.schema.names if name in changes.unchanged]
    code = changes.op.astype(np.int64) << 8 | changes.old_kind
    masks = np.zeros(len(changes), np.int64)
    for name in names:
        # Renumbered at every column, so that any number of columns fits.
        _, masks = np.unique(masks << 1 | changes.unchanged[name], return_inverse=True)
    _, first, shape = np.unique(masks << 16 | code, return_index=True, return_inverse=True)
    order = np.argsort(shape, kind="stable")
    bounds = np.searchsorted(shape[order], np.arange(len(first) + 1))
    return [
        RowShape(
            order[bounds[i] : bounds[i + 1]],
            int(changes.op[row]),
            int(changes.old_kind[row]),
            tuple(name for name in names if changes.unchanged[name][row]),
        )
        for i, row in enumerate(first)
    ]


def by_shape(
    changes: Changes, encode: Callable[[Changes, RowShape], Sequence[pa.LargeStringArray]]
) -> list[pa.LargeStringArray]:
    """What `encode` makes of the rows of each shape, in the rows' order. There is at least one row."""
    shapes = row_shapes(changes)
    parts = [
        encode(changes if len(shape.rows) == len(changes) else changes.take(shape.rows), shape) for shape in shapes
    ]
    if len(parts) == 1:
        return list(parts[0])
    order = pa.array(np.argsort(np.concatenate([shape.rows for shape in shapes]), kind="stable"))
    return [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]
