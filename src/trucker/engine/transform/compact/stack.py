"""Several parts of one table as one; a column is concatenated when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import Changes, Mask, TableSchema

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stack:
    """Parts of the same shape, in order."""

    parts: Sequence[Changes]

    def __len__(self) -> int:
        return len(self.op)

    @property
    def schema(self) -> TableSchema:
        return self.parts[-1].schema

    @cached_property
    def op(self) -> npt.NDArray[np.uint8]:
        return np.concatenate([part.op for part in self.parts])

    @cached_property
    def old_kind(self) -> npt.NDArray[np.uint8]:
        return np.concatenate([part.old_kind for part in self.parts])

    def new(self, name: str) -> pa.Array:
        return pa.concat_arrays([part.new.column(name) for part in self.parts])

    def old(self, name: str) -> pa.Array:
        return pa.concat_arrays([part.old.column(name) for part in self.parts])

    def either(self, name: str) -> pa.Array:
        """The new cells, then the old ones: row i's old cell is at `len(self) + i`."""
        return pa.concat_arrays(
            [part.new.column(name) for part in self.parts] + [part.old.column(name) for part in self.parts]
        )

    def unchanged(self, name: str) -> Mask | None:
        """Which new cells were not sent; None where all were."""
        if not any(name in part.unchanged for part in self.parts):
            return None
        return np.concatenate([part.unchanged.get(name, np.zeros(len(part), np.bool_)) for part in self.parts])

    def built(
        self,
        rows: RowNumbers,
        op: npt.NDArray[np.uint8],
        new: Sequence[pa.Array],
        old: Sequence[pa.Array],
        old_kind: npt.NDArray[np.uint8],
        unchanged: dict[str, Mask],
    ) -> Changes:
        """A value of these columns; transaction and ordinal of row i are those of row `rows[i]` here."""
        names = list(self.schema.names)
        return Changes(
            self.schema,
            op,
            pa.RecordBatch.from_arrays(list(new), names=names),
            pa.RecordBatch.from_arrays(list(old), names=names),
            old_kind,
            unchanged,
            np.concatenate([part.commit_lsn for part in self.parts])[rows],
            np.concatenate([part.commit_time for part in self.parts])[rows],
            np.concatenate([part.xid for part in self.parts])[rows],
            np.concatenate([part.ordinal for part in self.parts])[rows],
        )


def pick(cells: pa.Array, places: RowNumbers) -> pa.Array:
    """The cells at these places, NULL where a place is negative."""
    nowhere = places < 0
    if not nowhere.any():
        return cells.take(pa.array(places))
    if nowhere.all():
        return pa.nulls(len(places), pa.string())
    return cells.take(pa.array(np.where(nowhere, 0, places), mask=nowhere))
