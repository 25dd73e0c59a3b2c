"""The ids of events, by column (`trucker.sinks.event.Event` says what they are)."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import TRUNCATE, Changes
from trucker.sinks.batch import Work
from trucker.sinks.envelope.encoded import EncodedChanges
from trucker.sinks.envelope.json_text import lsn_text


def event_ids(encoded: EncodedChanges, work: Work, first: int) -> pa.LargeStringArray:
    """The id of each event. `first` is the number of the first of these changes in its part."""
    changes = encoded.changes
    if work.batch.snapshot:
        prefix = f"{work.batch.snapshot}/{work.target.source.table}/{work.part}/"
        names = _joined(prefix, pa.array(first + encoded.change).cast(pa.large_string()))
    else:
        names = _joined(lsn_text(changes.commit_lsn), "/", pa.array(changes.ordinal).cast(pa.large_string()))
        displaced = changes.xid == 0
        if displaced.any():
            names = pc.if_else(pa.array(displaced), _joined(names, "/", _digests(changes)), names)
        truncates = changes.op == TRUNCATE
        if truncates.any():  # the tables of one statement have one place
            names = pc.if_else(pa.array(truncates), _joined(names, f"/{work.target.source.table}"), names)
    return _joined(names, encoded.suffix) if len(encoded.suffix) else names


def _digests(changes: Changes) -> pa.LargeStringArray:
    """A digest of each change's operation and cells. Rows of SQL alone come here, which take longer to make."""
    cells = [pa.array(changes.op.astype(np.int16)).cast(pa.string()), *changes.new.columns, *changes.old.columns]
    texts = pc.binary_join_element_wise(*cells, "\x1f", null_handling="replace", null_replacement="\x00")
    data = texts.cast(pa.binary()).to_pylist()
    return pa.array([blake2b(text, digest_size=8).hexdigest() for text in data], pa.large_string())


def _joined(*parts: str | pa.Array) -> pa.LargeStringArray:
    pieces = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))
