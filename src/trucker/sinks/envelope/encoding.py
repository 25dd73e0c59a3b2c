"""From changes to events: the envelopes by name, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from trucker.sinks.batch import Work
from trucker.sinks.envelope.json_lines import lines
from trucker.sinks.envelope.json_text import JsonTemplate, RowCells, lsn_text
from trucker.sinks.envelope.row_shapes import RowNumbers, RowShape, by_shape, key_columns
from trucker.sinks.target import Target

_CODES: Final = np.zeros(256, np.uint8)
for _number, _op in enumerate((INSERT, UPDATE, DELETE, TRUNCATE)):
    _CODES[_op] = _number


@dataclass(frozen=True, slots=True)
class EncodedChanges:
    """The events of some changes, in order. `change` is the number of the change that an event tells; `suffix` is what
    tells its id from those of the change's other events."""

    change: RowNumbers
    operation: npt.NDArray[np.uint8]
    value: pa.LargeStringArray
    suffix: tuple[str, ...] = ()


def encode(changes: Changes, target: Target, *, snapshot: bool, end: str) -> EncodedChanges:
    """Each change as an event; values end in `end`."""
    value = lines(changes, target, snapshot=snapshot, end=end)
    return EncodedChanges(np.arange(len(changes)), _CODES[changes.op], value)


def row_keys(changes: Changes, target: Target) -> pa.LargeStringArray:
    """JSON of each row's key, null where there is none: after the change, of a delete before it."""
    if not changes.schema.key:
        return pa.nulls(len(changes), pa.large_string())

    def keys(part: Changes, shape: RowShape) -> list[pa.LargeStringArray]:
        if not (shape.has_new or shape.has_old):
            return [pa.nulls(len(part), pa.large_string())]
        line = JsonTemplate()
        line.constant("{")
        line.members(
            key_columns(part.schema), RowCells(part.old if shape.key_from_old(part.schema) else part.new, target)
        )
        line.constant("}")
        return [line.join(len(part))]

    return by_shape(changes, keys)[0]


def event_ids(changes: Changes, encoded: EncodedChanges, work: Work, first: int) -> pa.LargeStringArray:
    """The id of each event (`Event`). `first` is the number of the first of these rows in its part."""
    if work.batch.snapshot:
        prefix = f"{work.batch.snapshot}/{work.target.source.table}/{work.part}/"
        names = _joined(prefix, pa.array(np.arange(first, first + len(changes))).cast(pa.large_string()))
    else:
        names = _joined(lsn_text(changes.commit_lsn), "/", pa.array(changes.ordinal).cast(pa.large_string()))
        displaced = changes.xid == 0
        if displaced.any():
            names = pc.if_else(pa.array(displaced), _joined(names, "/", _digests(changes)), names)
    if len(encoded.change) != len(changes):
        names = names.take(pa.array(encoded.change))
    return _joined(names, pa.array(encoded.suffix, pa.large_string())) if encoded.suffix else names


def _digests(changes: Changes) -> pa.LargeStringArray:
    """A digest of each change's operation and cells. Rows of SQL alone come here, which are slower to make."""
    cells = [pa.array(changes.op).cast(pa.string()), *changes.new.columns, *changes.old.columns]
    texts = pc.binary_join_element_wise(*cells, "\x1f", null_handling="replace", null_replacement="\x00")
    return pa.array(
        [blake2b(text, digest_size=8).hexdigest() for text in texts.cast(pa.binary()).to_pylist()], pa.large_string()
    )


def _joined(*parts: str | pa.Array) -> pa.LargeStringArray:
    pieces = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))
