"""The data that moves through trucker: positions, tables and columnar changes.

Everything else meets in these types; this module imports nothing of trucker's but errors.

Cells are text exactly as PostgreSQL wrote it (pgoutput and COPY share the same output functions) until
a step needs their type. SQL NULL is Arrow null; "not sent because it did not change" (TOAST) is a mask
beside the column, never a NULL (I7).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from trucker.lsn import ZERO
from trucker.lsn import Lsn as Lsn
from trucker.table import Column as Column
from trucker.table import Key as Key
from trucker.table import Partitions as Partitions
from trucker.table import SchemaChanges as SchemaChanges
from trucker.table import TableId as TableId
from trucker.table import TableSchema as TableSchema
from trucker.table import quote_identifier as quote_identifier

INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
OPERATIONS: Final = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}

NO_OLD: Final = 0
OLD_KEY: Final = ord("K")
OLD_FULL: Final = ord("O")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction a run of frames begins inside of. `ordinal` is the number of changes before the run."""

    xid: int
    commit_lsn: Lsn
    commit_time: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Frames:
    """A run of pgoutput messages as they came, the change log's unit of reading.

    Message i is `payload[starts[i]:starts[i + 1]]`. `relations` holds, by oid, the Relation message in
    force before the first frame for every relation the run touches, so that a run can be decoded alone.
    """

    payload: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    relations: Mapping[int, bytes] = field(default_factory=dict)
    transaction: OpenTransaction | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one table by column; row i of every array is change i, in commit order.

    `new` and `old` have one string column per column of `schema`. `new` is null in deletes and truncates.
    `old` is null where `old_kind` is NO_OLD, and has only the key where it is OLD_KEY.
    `unchanged[name]` marks the rows whose new value of that column was not sent; a name that is absent has none.
    `commit_lsn` is the LSN of the commit record (Begin's final LSN): a change is applied at a position P
    exactly when `commit_lsn < P`. `commit_time` is microseconds since 1970 UTC. `ordinal` counts the
    changes inside the transaction, all tables together.

    A compacted value has at most one row per key, truncates first; its updates may change the key
    (`old` then holds the key whose row has the unchanged cells), and such an update may come with a delete of the row
    that had its new key before, see `engine.transform.compact`.
    """

    schema: TableSchema
    op: npt.NDArray[np.uint8]
    new: pa.RecordBatch
    old: pa.RecordBatch
    old_kind: npt.NDArray[np.uint8]
    unchanged: Mapping[str, Mask]
    commit_lsn: npt.NDArray[np.uint64]
    commit_time: npt.NDArray[np.int64]
    xid: npt.NDArray[np.uint32]
    ordinal: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: Mask | npt.NDArray[np.int64]) -> Changes:
        """The chosen rows (a mask, or indices in the order wanted)."""
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        chosen = pa.array(indices, pa.int64())
        return Changes(
            self.schema,
            self.op[indices],
            self.new.take(chosen),
            self.old.take(chosen),
            self.old_kind[indices],
            {name: mask[indices] for name, mask in self.unchanged.items() if mask[indices].any()},
            self.commit_lsn[indices],
            self.commit_time[indices],
            self.xid[indices],
            self.ordinal[indices],
        )

    def only(self, names: Sequence[str]) -> Changes:
        """The same changes with just these columns."""
        schema = self.schema.only(names)
        kept_names = list(schema.names)
        return replace(
            self,
            schema=schema,
            new=self.new.select(kept_names),
            old=self.old.select(kept_names),
            unchanged={name: mask for name, mask in self.unchanged.items() if name in kept_names},
        )

    def reshaped(self, schema: TableSchema) -> Changes:
        """The same changes in another shape of the table: columns dropped, or added after these changes were made.

        A column that these changes do not have gets its `missing_value` in whole rows, as the source shows for rows
        older than the column; in updates of keyed rows it is unchanged, so that the destination keeps its value.
        """
        if self.schema.names == schema.names:
            return self if self.schema == schema else replace(self, schema=schema)
        updates = self.op == UPDATE
        whole, full = self.op == INSERT, self.old_kind == OLD_FULL
        if not schema.key:
            whole = whole | updates
        unchanged = {name: mask for name, mask in self.unchanged.items() if name in schema.names}
        new, old = [], []
        for column in schema.columns:
            if column.name in self.schema.names:
                new.append(self.new.column(column.name))
                old.append(self.old.column(column.name))
                continue
            new.append(constant_cells(column.missing_value, whole))
            old.append(constant_cells(column.missing_value, full))
            if schema.key and updates.any():
                unchanged[column.name] = updates
        names = list(schema.names)
        return replace(
            self,
            schema=schema,
            new=pa.RecordBatch.from_arrays(new, names=names),
            old=pa.RecordBatch.from_arrays(old, names=names),
            unchanged=unchanged,
        )

    @classmethod
    def inserts(cls, schema: TableSchema, rows: pa.RecordBatch, lsn: Lsn = ZERO) -> Changes:
        """Rows of a snapshot, as inserts."""
        count = rows.num_rows
        return cls(
            schema,
            np.full(count, INSERT, np.uint8),
            rows,
            null_rows(schema, count),
            np.zeros(count, np.uint8),
            {},
            np.full(count, lsn, np.uint64),
            np.zeros(count, np.int64),
            np.zeros(count, np.uint32),
            np.arange(count, dtype=np.int64),
        )

    @classmethod
    def deletes(cls, schema: TableSchema, names: Sequence[str], keys: Sequence[Key], lsn: Lsn) -> Changes:
        """Deletes of the rows with these keys, which are values of the columns `names`."""
        count = len(keys)
        columns = dict(zip(names, zip(*keys, strict=True), strict=True))
        cells = [pa.array(columns.get(name, [None] * count), pa.string()) for name in schema.names]
        return replace(
            cls.inserts(schema, null_rows(schema, count), lsn),
            op=np.full(count, DELETE, np.uint8),
            old=pa.RecordBatch.from_arrays(cells, names=list(schema.names)),
            old_kind=np.full(count, OLD_KEY, np.uint8),
        )

    @classmethod
    def concat(cls, parts: Sequence[Changes]) -> Changes:
        """One value from several of the same schema, in the given order."""
        if len(parts) == 1:
            return parts[0]
        names = sorted({name for part in parts for name in part.unchanged})
        return cls(
            parts[0].schema,
            np.concatenate([part.op for part in parts]),
            _concat_rows([part.new for part in parts]),
            _concat_rows([part.old for part in parts]),
            np.concatenate([part.old_kind for part in parts]),
            {
                name: np.concatenate([part.unchanged.get(name, np.zeros(len(part), np.bool_)) for part in parts])
                for name in names
            },
            np.concatenate([part.commit_lsn for part in parts]),
            np.concatenate([part.commit_time for part in parts]),
            np.concatenate([part.xid for part in parts]),
            np.concatenate([part.ordinal for part in parts]),
        )

    def to_ipc(self) -> bytes:
        """These changes as one Arrow IPC stream."""
        arrays: list[pa.Array] = [
            pa.array(self.op),
            pa.array(self.old_kind),
            pa.array(self.commit_lsn),
            pa.array(self.commit_time),
            pa.array(self.xid),
            pa.array(self.ordinal),
            *self.new.columns,
            *self.old.columns,
            *(pa.array(mask) for mask in self.unchanged.values()),
        ]
        metadata = {"schema": self.schema.to_json(), "unchanged": json.dumps(list(self.unchanged))}
        names = [str(i) for i in range(len(arrays))]
        batch = pa.RecordBatch.from_arrays(arrays, names=names).replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def from_ipc(cls, data: bytes | pa.Buffer) -> Changes:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        metadata = batch.schema.metadata
        schema = TableSchema.from_json(metadata[b"schema"].decode())
        fixed: list[Any] = [batch.column(i).to_numpy(zero_copy_only=False) for i in range(6)]
        width = len(schema.columns)
        new, old = batch.columns[6 : 6 + width], batch.columns[6 + width : 6 + 2 * width]
        masks = batch.columns[6 + 2 * width :]
        names = list(schema.names)
        unchanged = {
            name: mask.to_numpy(zero_copy_only=False)
            for name, mask in zip(json.loads(metadata[b"unchanged"]), masks, strict=True)
        }
        op, old_kind, commit_lsn, commit_time, xid, ordinal = fixed
        return cls(
            schema,
            op,
            pa.RecordBatch.from_arrays(new, names=names),
            pa.RecordBatch.from_arrays(old, names=names),
            old_kind,
            unchanged,
            commit_lsn,
            commit_time,
            xid,
            ordinal,
        )


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Snapshot rows as COPY wrote them: `FORMAT csv, FORCE_QUOTE *`, UTF-8, whole rows.

    A sink that can pass the bytes on does; any other uses `to_changes()`.
    """

    schema: TableSchema
    csv: bytes
    rows: int
    lsn: Lsn = ZERO

    def to_changes(self) -> Changes:
        return Changes.inserts(self.schema, parse_copy_csv(self.schema, self.csv), self.lsn)

    def called(self, names: Mapping[str, str]) -> CopiedRows:
        """The same rows with columns under other names."""
        return replace(self, schema=self.schema.called(names))


class RawCopy(Iterator[bytes]):
    """The output of COPY as it arrives; `rows` is set at its end."""

    rows: int | None = None

    @abstractmethod
    def close(self) -> None:
        """Leave the rest of it unread."""


class UnreadRows(Iterator["Changes | CopiedRows"]):
    """Rows of a snapshot that are still at the source. Iterating reads them, in pieces, once.

    A sink that can pass COPY's bytes on calls `raw` instead; if the destination refuses them, it may iterate then.
    """

    schema: TableSchema

    @abstractmethod
    def raw(self, names: Sequence[str], *, binary: bool) -> RawCopy:
        """COPY's output of these columns, in PostgreSQL's binary format or as text. One at a time."""


def parse_copy_csv(schema: TableSchema, data: bytes) -> pa.RecordBatch:
    """COPY's CSV text into one string column per column; quoted is a value, unquoted and empty is NULL."""
    if not data:
        return null_rows(schema, 0)
    names = list(schema.names)
    table = pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(data) + 1, 1024)),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    combined = table.combine_chunks()
    batches = combined.to_batches()
    return batches[0] if batches else null_rows(schema, 0)


def null_rows(schema: TableSchema, count: int) -> pa.RecordBatch:
    """`count` rows of nothing but NULL."""
    names = list(schema.names)
    return pa.RecordBatch.from_arrays([pa.nulls(count, pa.string())] * len(names), names=names)


def constant_cells(text: str | None, rows: Mask) -> pa.Array:
    """`text` in the marked rows, NULL in the others."""
    if text is None or not rows.any():
        return pa.nulls(len(rows), pa.string())
    return pa.array([text], pa.string()).take(pa.array(np.zeros(len(rows), np.int32), mask=~rows))


def _concat_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)


def as_changes(parts: Iterator[Changes | CopiedRows]) -> Iterator[Changes]:
    """Every part as `Changes`, for sinks that do not use COPY's bytes."""
    for part in parts:
        yield part.to_changes() if isinstance(part, CopiedRows) else part
