"""Changes written by hand, for tests: rows are dicts of text, as PostgreSQL would have written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from trucker.change import (
    DELETE,
    INSERT,
    NO_OLD,
    OLD_FULL,
    OLD_KEY,
    TRUNCATE,
    UPDATE,
    Changes,
    Column,
    CopiedRows,
    Lsn,
    TableId,
    TableSchema,
)

TextRow = Mapping[str, str | None]

ANY_LSN: Final = Lsn(1)

_OIDS: Final = {"integer": 23, "bigint": 20, "text": 25, "numeric": 1700, "json": 114, "boolean": 16}


@dataclass(frozen=True, slots=True)
class Change:
    """One change. Columns that `new` and `unchanged` leave out are NULL."""

    op: int
    new: TextRow | None = None
    old: TextRow | None = None
    unchanged: Sequence[str] = ()


def insert(new: TextRow) -> Change:
    return Change(INSERT, new)


def update(new: TextRow, old: TextRow | None = None, unchanged: Sequence[str] = ()) -> Change:
    """`old` is the key before, where it moved, or the whole row (FULL); `unchanged` names what was not sent."""
    return Change(UPDATE, new, old, unchanged)


def delete(old: TextRow) -> Change:
    return Change(DELETE, None, old)


def truncate() -> Change:
    return Change(TRUNCATE)


def schema_of(table: TableId, columns: Mapping[str, str], key: Sequence[str] = ()) -> TableSchema:
    """A table from `{name: type}`; a type that ends in ` not null` is."""
    described = []
    for name, text in columns.items():
        type_name = text.removesuffix(" not null")
        described.append(
            Column(name, _OIDS.get(type_name, 0), type_name=type_name, not_null=text.endswith(" not null"))
        )
    return TableSchema(table, tuple(described), tuple(key))


def changes_of(
    schema: TableSchema, changes: Sequence[Change], *, lsn: Lsn = ANY_LSN, xid: int = 700, time: int = 0
) -> Changes:
    """These changes, as of one transaction whose commit record is at `lsn`."""
    count = len(changes)
    unchanged = {
        name: np.array([name in change.unchanged for change in changes], np.bool_)
        for name in schema.names
        if any(name in change.unchanged for change in changes)
    }
    return Changes(
        schema,
        np.array([change.op for change in changes], np.uint8),
        rows_of(schema, [change.new for change in changes]),
        rows_of(schema, [change.old for change in changes]),
        np.array([_old_kind(schema, change.old) for change in changes], np.uint8),
        unchanged,
        np.full(count, lsn, np.uint64),
        np.full(count, time, np.int64),
        np.full(count, xid, np.uint32),
        np.arange(count, dtype=np.int64),
    )


def output_rows_of(schema: TableSchema, rows: Sequence[tuple[int, TextRow, int]], *, lsn: Lsn = ANY_LSN) -> Changes:
    """Rows for output.sql, each with its operation and the number of its run: deletes have theirs in `new`, too."""
    changes = changes_of(schema, [Change(op, row) for op, row, _ in rows], lsn=lsn)
    return replace(changes, ordinal=np.array([run for _, _, run in rows], np.int64))


def copied_rows_of(schema: TableSchema, rows: Sequence[TextRow], *, lsn: Lsn = ANY_LSN) -> CopiedRows:
    """These rows as `COPY … (FORMAT csv, FORCE_QUOTE *)` gives them."""
    lines = [",".join(_csv(row.get(name)) for name in schema.names) for row in rows]
    return CopiedRows(schema, "".join(f"{line}\n" for line in lines).encode(), len(rows), lsn)


def rows_of(schema: TableSchema, rows: Sequence[TextRow | None]) -> pa.RecordBatch:
    """One string column per column; a missing row or cell is NULL."""
    names = list(schema.names)
    cells = [pa.array([None if row is None else row.get(name) for row in rows], pa.string()) for name in names]
    return pa.RecordBatch.from_arrays(cells, names=names)


def _old_kind(schema: TableSchema, old: TextRow | None) -> int:
    if old is None:
        return NO_OLD
    return OLD_FULL if not schema.key or set(old) > set(schema.key) else OLD_KEY


def _csv(cell: str | None) -> str:
    return "" if cell is None else '"' + cell.replace('"', '""') + '"'
