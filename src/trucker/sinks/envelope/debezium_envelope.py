"""Debezium's JSON envelope, as its connector for PostgreSQL writes it without schemas, made by column.

    {"before":null,"after":{…},"source":{"version":"3.6.1.Final","connector":"postgresql","name":"shop","ts_ms":…,
     "snapshot":"false","db":"shop","sequence":"[\\"24169608\\",\\"3\\"]","ts_us":…,"ts_ns":…,"schema":"public",
     "table":"orders","txId":762,"lsn":24169608,"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,
     "op":"u","ts_ms":…,"ts_us":…,"ts_ns":…}

`op` is c, u, d, t, or r for a row of a copy. A delete is followed by a tombstone: a null value with the same key. An
update that changes the key is a delete, a tombstone and an insert. Where it differs from the connector's own:

- `source.lsn` is the LSN of the commit record, and `sequence` that LSN and the ordinal of the change: together they
  order all events. The connector gives the LSN of the change, which is in no order across transactions;
- `before` has null in columns that PostgreSQL did not send, where the connector makes up empty texts and defaults;
- `version` is the connector's that this was compared with.

Values are described in `debezium_values`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from trucker.sinks.envelope.debezium_values import DebeziumCells
from trucker.sinks.envelope.encoded import EncodedChanges
from trucker.sinks.envelope.json_text import JsonTemplate, quoted
from trucker.sinks.envelope.key_moves import split_key_moves
from trucker.sinks.envelope.row_shapes import Indices, RowShape, by_shape, key_columns
from trucker.sinks.event import TOMBSTONE
from trucker.sinks.target import Target

CONNECTOR_VERSION: Final = "3.6.1.Final"
_OPS: Final = {INSERT: "c", UPDATE: "u", DELETE: "d", TRUNCATE: "t"}


@dataclass(frozen=True, slots=True)
class DebeziumEnvelope:
    """`name` and `database` are `source.name` and `source.db`; `placeholder` stands for a value that was not sent.
    `tombstones`: a delete is followed by one. `transactions`: what the driver adds to each event is left open."""

    name: str
    database: str
    placeholder: str
    tombstones: bool
    transactions: bool
    end: str

    def encode(self, changes: Changes, target: Target, *, snapshot: bool) -> EncodedChanges:
        """The events of the changes."""
        split = split_key_moves(changes)
        now = time.time_ns() // 1000
        head, tail, key = self._encoded(split.changes, target, snapshot, now)
        encoded = EncodedChanges(split.changes, split.change, split.operation, head, key, split.suffix, tail)
        return _with_tombstones(encoded) if self.tombstones else encoded

    def _encoded(self, changes: Changes, target: Target, snapshot: bool, now: int) -> list[pa.LargeStringArray]:
        return by_shape(changes, lambda part, shape: self._shape(part, shape, target, snapshot, now))

    def _shape(
        self, part: Changes, shape: RowShape, target: Target, snapshot: bool, now: int
    ) -> list[pa.LargeStringArray]:
        schema = part.schema
        new = DebeziumCells(part.new, target, shape.unchanged, self.placeholder)
        old = DebeziumCells(part.old, target)
        line = JsonTemplate()
        line.constant('{"before":')
        line.row(schema.columns if shape.has_old else None, old)
        line.item("after", schema.columns if shape.has_new else None, new)
        self._source(line, part, target, snapshot, now)
        op = "r" if snapshot else _OPS[shape.op]
        tail = f',"op":"{op}","ts_ms":{now // 1000},"ts_us":{now},"ts_ns":{now * 1000}}}{self.end}'
        if not self.transactions or snapshot:
            line.constant(f',"transaction":null{tail}')
        count = len(part)
        return [line.join(count), pa.array([tail] * count, pa.large_string()), self._keys(part, shape, old, new)]

    def _keys(self, part: Changes, shape: RowShape, old: DebeziumCells, new: DebeziumCells) -> pa.LargeStringArray:
        if not part.schema.key or not (shape.has_new or shape.has_old):
            return pa.nulls(len(part), pa.large_string())
        line = JsonTemplate()
        line.row(key_columns(part.schema), old if shape.key_from_old(part.schema) else new)
        return line.join(len(part))

    def _source(self, line: JsonTemplate, part: Changes, target: Target, snapshot: bool, now: int) -> None:
        times = np.where(part.commit_time == 0, now, part.commit_time)  # rows of copies and of SQL have none
        lsn = _digits(part.commit_lsn)
        line.constant(
            f',"source":{{"version":"{CONNECTOR_VERSION}","connector":"postgresql","name":{quoted(self.name)}'
        )
        line.constant(',"ts_ms":')
        line.cells(_digits(times // 1000))
        line.constant(f',"snapshot":"{str(snapshot).lower()}","db":{quoted(self.database)},"sequence":"[\\"')
        line.cells(lsn)
        line.constant('\\",\\"')
        line.cells(_digits(part.ordinal))
        line.constant('\\"]","ts_us":')
        line.cells(_digits(times))
        line.constant(',"ts_ns":')
        line.cells(_digits(times * 1000))
        line.constant(f',"schema":{quoted(target.table.schema)},"table":{quoted(target.table.name)},"txId":')
        line.cells(pa.array(part.xid, mask=part.xid == 0).cast(pa.large_string()))
        line.constant(',"lsn":')
        line.cells(lsn)
        line.constant(',"xmin":null,"origin":null,"origin_lsn":null}')


def _digits(numbers: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> pa.LargeStringArray:
    return pa.array(numbers).cast(pa.large_string())


def _with_tombstones(encoded: EncodedChanges) -> EncodedChanges:
    """Each delete followed by a null value with the same key."""
    deletes = encoded.changes.op == DELETE
    if not deletes.any():
        return encoded
    rows: Indices = np.repeat(np.arange(len(deletes)), 1 + deletes)
    added = np.zeros(len(rows), np.bool_)
    added[1:] = rows[1:] == rows[:-1]
    chosen = pa.array(rows)
    empty = pa.array(added)
    suffix = pc.if_else(empty, "/tombstone", encoded.suffix.take(chosen)).cast(pa.large_string())
    nothing = pa.scalar(None, pa.large_string())
    return EncodedChanges(
        encoded.changes.take(rows),
        encoded.change[rows],
        np.where(added, TOMBSTONE, encoded.operation[rows]).astype(np.uint8),
        pc.if_else(empty, nothing, encoded.value.take(chosen)),
        encoded.key.take(chosen),
        suffix,
        encoded.tail.take(chosen) if encoded.tail is not None else None,
    )
