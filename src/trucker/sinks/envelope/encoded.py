"""What an envelope makes of changes: events, by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trucker.change import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from trucker.sinks.envelope.row_shapes import Indices
from trucker.sinks.event import EVENT_OPERATIONS

_CODES: Final = np.zeros(256, np.uint8)
for _op, _name in ((INSERT, "insert"), (UPDATE, "update"), (DELETE, "delete"), (TRUNCATE, "truncate")):
    _CODES[_op] = EVENT_OPERATIONS.index(_name)


@dataclass(frozen=True, slots=True)
class EncodedChanges:
    """Events in order. `changes` has a row for each event, `change` the number of the change that it was given for.

    `suffix` tells an event's id from those of the change's other events. Where the driver is to say an event's place in
    its transaction, that goes between `value` and `tail`.
    """

    changes: Changes
    change: Indices
    operation: npt.NDArray[np.uint8]
    value: pa.LargeStringArray
    key: pa.LargeStringArray
    suffix: pa.LargeStringArray
    tail: pa.LargeStringArray | None = None


def operation_codes(op: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The numbers of operations in `EVENT_OPERATIONS`."""
    codes: npt.NDArray[np.uint8] = _CODES[op]
    return codes
