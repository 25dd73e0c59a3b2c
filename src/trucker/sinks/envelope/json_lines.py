"""Changes as JSON, one line per change, made by column: trucker's own envelope, version 1.

    {"operation":"update","schema":"public","table":"orders","commit_lsn":"0/16B3748",
     "commit_time":"2026-01-31T12:00:00.123456Z","xid":741,"ordinal":0,"new":{…},"old":{…},"key":{…},
     "unchanged":["body"]}

`new` is null in deletes and truncates. `old` is what PostgreSQL sent of the row before: the key, the whole row (replica
identity FULL) or null. `key` is the row's key after the change (before it, in a delete), null where the table has none.
`ordinal` is the place of the change in its transaction, all tables counted together.
`unchanged` is there only when a value was not sent because it did not change; such a column is absent from `new`.
`json_null` and `old_json_null` are there only when a json column of `new` or `old` holds JSON's own null: they name it,
because a column without a value looks the same.
A row of a snapshot is an insert with `"snapshot":true` and the snapshot's LSN; it has no time, no xid and no ordinal.

What cells look like is said in `json_text`. Rows alike in shape (operation, kind of old row, columns not sent) share
one template of constants and cells, which Arrow joins; no step is done per row in Python.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from trucker.change import OLD_FULL, OPERATIONS, Changes
from trucker.sinks.envelope.json_text import JsonTemplate, RowCells, lsn_text, quoted, time_text
from trucker.sinks.envelope.row_shapes import RowShape, by_shape, key_columns
from trucker.sinks.target import Target


def lines(
    changes: Changes, target: Target | None = None, *, snapshot: bool = False, end: str = "\n"
) -> pa.LargeStringArray:
    """One line per change, in their order, each with its `end`.

    `target` gives the name to show, if not the source's, and the policy for numbers that JSON cannot express.
    """
    if not len(changes):
        return pa.array([], pa.large_string())
    named = target or Target("", changes.schema, changes.schema.table)

    def encode(part: Changes, shape: RowShape) -> list[pa.LargeStringArray]:
        return [_shape_lines(part, shape, named, snapshot, end)]

    return by_shape(changes, encode)[0]


def _shape_lines(part: Changes, shape: RowShape, target: Target, snapshot: bool, end: str) -> pa.LargeStringArray:
    schema, table = part.schema, target.table
    line = JsonTemplate()
    line.constant(f'{{"operation":"{OPERATIONS[shape.op]}","schema":{quoted(table.schema)}')
    line.constant(f',"table":{quoted(table.name)},"commit_lsn":"')
    line.cells(_transactions(part, snapshot))
    line.constant(',"ordinal":')
    if snapshot:
        line.constant("null")
    else:
        line.cells(pa.array(part.ordinal).cast(pa.large_string()))
    sent = shape.sent(schema)
    old_columns = schema.columns if shape.old_kind == OLD_FULL else key_columns(schema)
    new, old = RowCells(part.new, target), RowCells(part.old, target)
    line.item("new", sent if shape.has_new else None, new)
    line.item("old", old_columns if shape.has_old else None, old)
    key = key_columns(schema) if schema.key and (shape.has_new or shape.has_old) else None
    line.item("key", key, old if shape.key_from_old(schema) else new)
    if shape.unchanged and shape.has_new:
        line.constant(f',"unchanged":{json.dumps(shape.unchanged, ensure_ascii=False, separators=(",", ":"))}')
    line.json_nulls("json_null", sent if shape.has_new else (), new)
    line.json_nulls("old_json_null", old_columns if shape.has_old else (), old)
    line.constant("}" + end)
    return line.join(len(part))


def _transactions(changes: Changes, snapshot: bool) -> pa.Array:
    """What a line says of its transaction, from the LSN on; made once for all lines of one that follow each other."""
    lsn, time, xid = changes.commit_lsn, changes.commit_time, changes.xid
    new = np.ones(len(changes), np.bool_)
    new[1:] = (lsn[1:] != lsn[:-1]) | (time[1:] != time[:-1]) | (xid[1:] != xid[:-1])
    line = JsonTemplate()
    line.cells(lsn_text(lsn[new]))
    if snapshot:
        line.constant('","commit_time":null,"xid":null,"snapshot":true')
    else:
        line.constant('","commit_time":"')
        line.cells(time_text(time[new]))
        line.constant('","xid":')
        line.cells(pa.array(xid[new]).cast(pa.large_string()))
    texts = line.join(int(np.count_nonzero(new)))
    return texts if len(texts) == len(changes) else texts.take(pa.array(np.cumsum(new) - 1))
