"""Trucker's own envelope: a line of `json_lines` for each change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trucker.change import Changes
from trucker.sinks.envelope.encoded import EncodedChanges, operation_codes
from trucker.sinks.envelope.json_lines import lines
from trucker.sinks.envelope.json_text import JsonTemplate, RowCells
from trucker.sinks.envelope.row_shapes import RowShape, by_shape, key_columns
from trucker.sinks.target import Target


@dataclass(frozen=True, slots=True)
class TruckerEnvelope:
    """Values end in `end`; `keyed`: events have keys."""

    end: str
    keyed: bool

    def encode(self, changes: Changes, target: Target, *, snapshot: bool) -> EncodedChanges:
        """The events of the changes."""
        count = len(changes)
        value = lines(changes, target, snapshot=snapshot, end=self.end)
        key = _keys(changes, target) if self.keyed else pa.nulls(count, pa.large_string())
        suffix = pa.nulls(0, pa.large_string())
        return EncodedChanges(changes, np.arange(count), operation_codes(changes.op), value, key, suffix)


def _keys(changes: Changes, target: Target) -> pa.LargeStringArray:
    """JSON of each row's key, null where there is none: after the change, of a delete before it."""
    if not changes.schema.key or not len(changes):
        return pa.nulls(len(changes), pa.large_string())

    def encode(part: Changes, shape: RowShape) -> list[pa.LargeStringArray]:
        if not (shape.has_new or shape.has_old):
            return [pa.nulls(len(part), pa.large_string())]
        line = JsonTemplate()
        cells = RowCells(part.old if shape.key_from_old(part.schema) else part.new, target)
        line.row(key_columns(part.schema), cells)
        return [line.join(len(part))]

    return by_shape(changes, encode)[0]
