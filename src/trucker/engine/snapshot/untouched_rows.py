"""Which rows of chunks the stream has not touched: those that a truck with rules or SQL gets from its copy.

A chunk is read in a snapshot of its own, which is later than the lane's position. What happened in between the stream
brings as well. A row whose key occurs in a change after the position is therefore left out, whether the chunk shows it
as it was before that change or after it: the stream has every change of it. Any other row is as it was at the position.
So the destination never has a row that is newer than the position, rules and SQL get each change with its own
operation and old values, and what is inserted and deleted meanwhile may cancel out.

Keys are compared as texts. The texts that changes have are those that the rows had before and have after them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import NO_OLD, Changes, Mask
from trucker.changelog.reader import LogReader
from trucker.engine.transform.assignment import Assignment
from trucker.errors import SourceError, SourceUnavailable
from trucker.lsn import Lsn
from trucker.pgoutput import decode


def untouched(chunks: Sequence[Changes], assignment: Assignment, log: LogReader, start: Lsn, end: Lsn) -> list[Changes]:
    """The rows of each chunk that no change committed between `start` and `end` is about; the log must have these.

    Reads one block after the other: memory is that of the chunks and of a block (I9)."""
    table, key = assignment.reads.table, assignment.reads.key
    keys = [_keys([chunk.new.column(name) for name in key]) for chunk in chunks]
    touched = [np.zeros(len(chunk), np.bool_) for chunk in chunks]
    renames = {table: assignment.renames} if assignment.renames else None
    for ref in log.blocks(start, end):
        try:
            parts = decode(log.read(ref), {table: key}, after={table: start}, renames=renames)
        except SourceError as error:
            raise SourceUnavailable(
                f"table {table} was altered while it was read: {error.message}",
                remedy="none needed: the chunks are read again",
            ) from None
        for changes in parts:
            changed = _changed_keys(changes)
            for chunk_keys, mask in zip(keys, touched, strict=True):
                mask |= np.asarray(pc.is_in(chunk_keys, value_set=changed))
    return [chunk.take(~mask) if mask.any() else chunk for chunk, mask in zip(chunks, touched, strict=True)]


def _changed_keys(changes: Changes) -> pa.Array:
    """The keys that rows had before the changes and have after them."""
    names = changes.schema.key
    has_old: Mask = changes.old_kind != NO_OLD
    old = [changes.old.column(name) for name in names]
    # A long value of the key that was not sent, because it did not change, is in the old tuple.
    new = [pc.coalesce(changes.new.column(name), cells) for name, cells in zip(names, old, strict=True)]
    return pa.concat_arrays([_keys(new), _keys(old).filter(pa.array(has_old))])


def _keys(cells: Sequence[pa.Array]) -> pa.Array:
    """One text for each key, NULL where a part of it is. The length before each part keeps them apart."""
    if len(cells) == 1:
        return cells[0]
    parts = [part for each in cells for part in (pc.utf8_length(each).cast(pa.string()), each)]
    return pc.binary_join_element_wise(*parts, ":")
