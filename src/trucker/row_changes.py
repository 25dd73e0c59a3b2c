"""Changes one by one, with Python values: for programs and sinks that process rows.

    for change in row_changes(changes):
        print(change.operation, change.table, change.new)

Columns are converted as a whole, which is much faster than cell by cell; a sink that can work on columns should.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from trucker.change import DELETE, NO_OLD, OLD_KEY, OPERATIONS, TRUNCATE, Changes
from trucker.lsn import Lsn
from trucker.table import Column, TableId
from trucker.types import Kind, Unfit, column_kind

RowValues = dict[str, Any]

UnfitOf = Callable[[str], Unfit | None]
"""The policy of a column, by name."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change of one row.

    `operation` is `insert`, `update`, `delete` or `truncate`. `new` is the row after the change without the columns in
    `unsent`, which have not changed and were not sent; None for a delete or a truncate. `old` is the row before, or its
    key, where PostgreSQL sent it. `(commit_lsn, ordinal)` is the only key of a change that is stable over restarts.
    `snapshot` says that the row was read by a copy of its table: `commit_lsn` is then the copy's position, and
    `commit_time` and `xid` mean nothing.
    """

    table: TableId
    operation: str
    new: RowValues | None
    old: RowValues | None
    unsent: frozenset[str]
    commit_lsn: Lsn
    ordinal: int
    commit_time: datetime
    xid: int = 0
    snapshot: bool = False


def row_changes(
    changes: Changes, *, typed: bool = True, unfit: UnfitOf | None = None, snapshot: bool = False
) -> Iterator[RowChange]:
    """The changes in their order. With `typed` false every value is PostgreSQL's text.

    A value that the Python type cannot hold (a date before Christ, `infinity`) stays text, unless `unfit` has another
    policy for its column: `text` leaves the whole column text, `null` gives None, and `error` raises ValueError, which
    names the column.
    """
    names, key = changes.schema.names, set(changes.schema.key)
    new, old = (_columns(changes, rows, typed, unfit) for rows in (changes.new, changes.old))
    masks = changes.unchanged
    for i, op in enumerate(changes.op.tolist()):
        unsent = frozenset(name for name, mask in masks.items() if mask[i]) if masks else frozenset[str]()
        kind = changes.old_kind[i]
        old_names = names if kind != OLD_KEY else tuple(name for name in names if name in key)
        yield RowChange(
            changes.schema.table,
            OPERATIONS[op],
            None if op in (DELETE, TRUNCATE) else {name: new[name][i] for name in names if name not in unsent},
            None if kind == NO_OLD else {name: old[name][i] for name in old_names},
            unsent,
            Lsn(int(changes.commit_lsn[i])),
            int(changes.ordinal[i]),
            _EPOCH + timedelta(microseconds=int(changes.commit_time[i])),
            int(changes.xid[i]),
            snapshot,
        )


def _columns(changes: Changes, rows: Any, typed: bool, unfit: UnfitOf | None) -> dict[str, list[Any]]:
    columns = {}
    for number, column in enumerate(changes.schema.columns):
        texts = rows.column(number).to_pylist()
        policy = unfit(column.name) if unfit else None
        columns[column.name] = _values(column, texts, policy) if typed and policy is not Unfit.TEXT else texts
    return columns


def _values(column: Column, texts: list[str | None], unfit: Unfit | None) -> list[Any]:
    kind = column_kind(column)
    convert = _CONVERT.get(kind.kind)
    if kind.array:
        return [None if text is None else _array(text, convert or str) for text in texts]
    if convert is None:
        return texts
    if unfit is None:
        return [None if text is None else _value(text, convert) for text in texts]
    return [None if text is None else _fitting(text, convert, column, unfit) for text in texts]


def _fitting(text: str, convert: Callable[[str], Any], column: Column, unfit: Unfit) -> Any:
    try:
        return convert(text)
    except ValueError:
        if unfit is Unfit.NULL:
            return None
    raise ValueError(f"column {column.name} has a value that Python's type cannot hold")


def _value(text: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(text)
    except ValueError:
        return text


def _boolean(text: str) -> bool:
    return text == "t"


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


_CONVERT: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.SMALLINT: int,
    Kind.INTEGER: int,
    Kind.BIGINT: int,
    Kind.REAL: float,
    Kind.DOUBLE: float,
    Kind.NUMERIC: Decimal,
    Kind.BOOLEAN: _boolean,
    Kind.BYTES: _bytes,
    Kind.DATE: date.fromisoformat,
    Kind.TIME: time.fromisoformat,
    Kind.TIMESTAMP: datetime.fromisoformat,
    Kind.TIMESTAMPTZ: datetime.fromisoformat,
    Kind.UUID: UUID,
    Kind.JSON: json.loads,
}


def _array(text: str, convert: Callable[[str], Any]) -> list[Any]:
    """PostgreSQL's text of an array, of any number of dimensions, as lists; its bounds are left out."""
    stack: list[list[Any]] = [[]]
    place = text.index("{")
    while place < len(text):
        sign = text[place]
        place += 1
        if sign == "{":
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif sign == "}":
            stack.pop()
        elif sign == '"':
            letters = []
            while (letter := text[place]) != '"':
                place += letter == "\\"
                letters.append(text[place])
                place += 1
            place += 1
            stack[-1].append(_value("".join(letters), convert))
        elif sign not in ",;":
            end = place
            while text[end] not in ",}":
                end += 1
            plain = text[place - 1 : end]
            stack[-1].append(None if plain == "NULL" else _value(plain, convert))
            place = end
    array: list[Any] = stack[0][0]
    return array
