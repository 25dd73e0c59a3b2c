"""Decodes runs of messages into columns; the package's docstring has the wire format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from trucker.change import Changes, Column, Frames, Lsn, Mask, TableId, TableSchema, null_rows
from trucker.errors import SourceError
from trucker.pgoutput.chunk import DecodedChunk, RelationChunk
from trucker.pgoutput.relation import Relation
from trucker.pgoutput.run import MessageRun
from trucker.pgoutput.tuples import CHUNK_ROWS
from trucker.pgoutput.wire import Offsets

# Arrow's string columns have 32-bit offsets; no Changes may hold more text than that.
_SPAN_BYTES = 1 << 30

Renames = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""The columns' names in a shape, and the names to give them."""

ShapeKeys = Mapping[tuple[Column, ...], tuple[str, ...]]
"""The columns of a shape as the stream describes them, and the names of its key."""


def decode(
    frames: Frames,
    keys: Mapping[TableId, tuple[str, ...]],
    *,
    after: Mapping[TableId, Lsn] | None = None,
    renames: Mapping[TableId, Renames] | None = None,
    shape_keys: Mapping[TableId, ShapeKeys] | None = None,
) -> list[Changes]:
    """The changes of the tables in `keys`, by table and shape, in the order of their first change.

    `keys[table]` are the columns that identify a row at the destination; empty means the whole row does. Rows whose
    `commit_lsn` is below `after[table]` are left out.

    `renames[table]` has, for the columns' names in a shape, their new names; `keys` are new names. `shape_keys[table]`
    are the keys of shapes whose key differs.
    """
    run = MessageRun(frames)
    decoding = _Decoding(run, keys, after or {}, renames or {}, shape_keys or {})
    tables = [each for relation, entries in run.by_relation() for each in decoding.table(relation, entries)]
    tables.sort(key=lambda each: each[0])
    return [changes for _, changes in tables]


class _Decoding:
    """One call of `decode`."""

    def __init__(
        self,
        run: MessageRun,
        keys: Mapping[TableId, tuple[str, ...]],
        after: Mapping[TableId, Lsn],
        renames: Mapping[TableId, Renames],
        shape_keys: Mapping[TableId, ShapeKeys],
    ) -> None:
        self.run, self.keys, self.after, self.renames, self.shape_keys = run, keys, after, renames, shape_keys
        self.transactions, self.transaction_of, self.number_of = run.transactions()

    def table(self, relation: Relation, entries: Offsets) -> Iterator[tuple[int, Changes]]:
        """The changes of one shape of one table, each with its first entry; normally one."""
        key = self.keys.get(relation.table)
        if key is None:
            return
        key = self.shape_keys.get(relation.table, {}).get(relation.columns, key)
        if relation.table in self.renames:
            relation = _renamed(relation, self.renames[relation.table])
        schema = _schema(relation, key)
        entries = self._later_than(self.after.get(relation.table), entries)
        for span in self._spans(entries):
            parts = [
                RelationChunk(self.run, relation, schema, span[at : at + CHUNK_ROWS]).decoded()
                for at in range(0, len(span), CHUNK_ROWS)
            ]
            parts = [part for part in parts if len(part.entries)]
            if parts:
                yield int(parts[0].entries[0]), self._changes(schema, parts)

    def _later_than(self, lsn: Lsn | None, entries: Offsets) -> Offsets:
        if lsn is None:
            return entries
        commits = self.transactions.commit_lsn[self.transaction_of[self.run.entries[entries]]]
        return entries[commits >= np.uint64(lsn)]

    def _spans(self, entries: Offsets) -> Iterator[Offsets]:
        """The entries cut so that no part is too large for Arrow; a message itself is always below 1 GB."""
        if len(self.run.payload) <= _SPAN_BYTES:
            yield entries
            return
        messages = self.run.entries[entries]
        place = self.run.starts[messages] // _SPAN_BYTES
        yield from np.split(entries, np.flatnonzero(np.diff(place)) + 1)

    def _changes(self, schema: TableSchema, parts: list[DecodedChunk]) -> Changes:
        entries = np.concatenate([part.entries for part in parts])
        messages = self.run.entries[entries]
        transaction = self.transaction_of[messages]
        names = list(schema.names)
        counts = [len(part.entries) for part in parts]
        olds = [part.old for part in parts]
        return Changes(
            schema,
            np.concatenate([part.op for part in parts]),
            _batch(names, [part.new for part in parts], counts),
            null_rows(schema, len(entries)) if not any(olds) else _batch(names, olds, counts),
            np.concatenate([part.old_kind for part in parts]),
            _masks(parts, counts),
            self.transactions.commit_lsn[transaction],
            self.transactions.commit_time[transaction],
            self.transactions.xid[transaction],
            self.number_of[messages] - self.transactions.first[transaction],
        )


def _renamed(relation: Relation, renames: Renames) -> Relation:
    names = tuple(column.name for column in relation.columns)
    new_names = dict(zip(names, dict(renames).get(names, names), strict=True))
    columns = tuple(replace(column, name=new_names[column.name]) for column in relation.columns)
    return replace(relation, columns=columns, key_columns=tuple(new_names[name] for name in relation.key_columns))


def _schema(relation: Relation, key: tuple[str, ...]) -> TableSchema:
    schema = TableSchema(relation.table, relation.columns, key)
    missing = set(key) - set(schema.names)
    if missing:
        raise SourceError(
            f"the stream does not contain key column {min(missing)} of table {relation.table}",
            remedy="publish every column of the key; if a key column was renamed, run: trucker reset --truck NAME",
            code="TRK251",
        ).of_table(relation.table)
    return schema


def _batch(names: list[str], parts: list[list[pa.Array]], counts: list[int]) -> pa.RecordBatch:
    if len(parts) == 1:
        return pa.RecordBatch.from_arrays(parts[0], names=names)
    filled = [part or [pa.nulls(count, pa.string())] * len(names) for part, count in zip(parts, counts, strict=True)]
    return pa.RecordBatch.from_arrays([pa.concat_arrays(column) for column in zip(*filled, strict=True)], names=names)


def _masks(parts: list[DecodedChunk], counts: list[int]) -> dict[str, Mask]:
    if len(parts) == 1:
        return parts[0].unchanged
    names = dict.fromkeys(name for part in parts for name in part.unchanged)
    return {
        name: np.concatenate(
            [part.unchanged.get(name, np.zeros(count, np.bool_)) for part, count in zip(parts, counts, strict=True)]
        )
        for name in names
    }
