"""The flat envelope, version 1: the row's columns, and a few more that begin with an underscore, made by column.

    {"id":1,"state":"paid","_operation":"update","_schema":"public","_table":"orders","_lsn":"0/16B3748",
     "_ordinal":0,"_commit_time":"2026-01-31T12:00:00.123456Z","_xid":741,"_snapshot":false,"_unsent":["body"]}

A delete has what PostgreSQL sent of the row: its key, or all columns with replica identity FULL. A truncate has no
columns. An update that changes the key is a delete and an insert. `_unsent` is there only where a value was not sent
because it did not change; such a column is absent. A row of a copy has its snapshot's LSN, and null as `_ordinal`,
`_commit_time` and `_xid`. Values are those of trucker's envelope (`json_text`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trucker.change import OLD_FULL, OPERATIONS, TRUNCATE, Changes
from trucker.errors import SinkError
from trucker.sinks.envelope.encoded import EncodedChanges
from trucker.sinks.envelope.json_text import JsonTemplate, RowCells, in_quotes, lsn_text, quoted, time_text
from trucker.sinks.envelope.key_moves import split_key_moves
from trucker.sinks.envelope.row_shapes import RowShape, by_shape, key_columns
from trucker.sinks.target import Target
from trucker.table import TableSchema

RESERVED = frozenset(
    f"_{name}"
    for name in ("operation", "schema", "table", "lsn", "ordinal", "commit_time", "xid", "snapshot", "unsent", "events")
)
"""The names that the envelope adds to those of the row's columns."""


@dataclass(frozen=True, slots=True)
class FlatEnvelope:
    """Values end in `end`."""

    end: str

    def encode(self, changes: Changes, target: Target, *, snapshot: bool) -> EncodedChanges:
        """The events of the changes."""
        split = split_key_moves(changes)
        value, key = by_shape(split.changes, lambda part, shape: self._shape(part, shape, target, snapshot))
        return EncodedChanges(split.changes, split.change, split.operation, value, key, split.suffix)

    def _shape(self, part: Changes, shape: RowShape, target: Target, snapshot: bool) -> list[pa.LargeStringArray]:
        schema, table, count = part.schema, target.table, len(part)
        cells = RowCells(part.new if shape.has_new else part.old, target)
        columns = shape.sent(schema) if shape.has_new else schema.columns
        if not shape.has_new and shape.old_kind != OLD_FULL:
            columns = key_columns(schema)
        line = JsonTemplate()
        line.constant("{")
        if shape.op != TRUNCATE and columns:
            line.members(columns, cells)
            line.constant(",")
        line.constant(f'"_operation":"{OPERATIONS[shape.op]}","_schema":{quoted(table.schema)}')
        line.constant(f',"_table":{quoted(table.name)},"_lsn":"')
        line.cells(lsn_text(part.commit_lsn))
        line.constant('","_ordinal":')
        if snapshot:
            line.constant('null,"_commit_time":null,"_xid":null,"_snapshot":true')
        else:
            line.cells(pa.array(part.ordinal).cast(pa.large_string()))
            none = part.xid == 0  # rows that SQL returned are of no transaction
            line.constant(',"_commit_time":')
            line.cells(in_quotes(pc.if_else(pa.array(none), None, time_text(part.commit_time))))
            line.constant(',"_xid":')
            line.cells(pa.array(part.xid, mask=none).cast(pa.large_string()))
            line.constant(',"_snapshot":false')
        if shape.unchanged and shape.has_new:
            line.constant(f',"_unsent":{json.dumps(shape.unchanged, ensure_ascii=False, separators=(",", ":"))}')
        line.constant("}" + self.end)
        return [line.join(count), _keys(part, shape, cells)]


def _keys(part: Changes, shape: RowShape, cells: RowCells) -> pa.LargeStringArray:
    if not part.schema.key or not (shape.has_new or shape.has_old):
        return pa.nulls(len(part), pa.large_string())
    line = JsonTemplate()
    line.row(key_columns(part.schema), cells)
    return line.join(len(part))


def name_taken(schema: TableSchema, truck: str) -> SinkError | None:
    """The error for a table that has a column with a name of the envelope's."""
    taken = sorted(RESERVED.intersection(schema.names))
    if not taken:
        return None
    return SinkError(
        f"table {schema.table} has a column {taken[0]}, a name that format flat uses itself",
        remedy=f"in truck {truck} rename the column with a rule (rename), or set format: trucker for the connection",
        code="TRK700",
    )
