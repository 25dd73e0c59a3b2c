"""Reads changes from a file of JSON lines for `trucker try`, in the form that `trucker peek` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trucker.change import (
    DELETE,
    NO_OLD,
    OLD_FULL,
    OLD_KEY,
    OPERATIONS,
    UPDATE,
    Changes,
    TableId,
    TableSchema,
)
from trucker.errors import ConfigError, Place
from trucker.file_errors import reason_and_remedy

_CODES = {name: code for code, name in OPERATIONS.items()}


def given_changes(path: Path, tables: Mapping[TableId, TableSchema]) -> dict[TableId, list[Changes]]:
    """The file's changes of these tables, in order, as if each line were a transaction.

    A line is `{"operation": "insert", "table": "orders", "schema": "public", "new": {…}, "old": {…}}`; values are
    PostgreSQL's text, or JSON's numbers and booleans. Raises a ConfigError with the line that cannot be read.
    """
    changes: dict[TableId, list[Changes]] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line, parse_int=str, parse_float=str)
            table = TableId(str(raw.get("schema", "public")), str(raw["table"]))
            code = _CODES[raw["operation"]]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise _unreadable(
                path, number, f"{error} is missing" if isinstance(error, KeyError) else "the line is not JSON"
            ) from None
        if table not in tables:
            raise _unreadable(path, number, f"the truck does not read {table}")
        changes.setdefault(table, []).append(_change(tables[table], code, raw, number))
    return changes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason, remedy = reason_and_remedy(error, path)
        raise ConfigError(
            f"the file cannot be read: {reason}", place=Place(str(path)), remedy=remedy, code="TRK101"
        ) from None
    except ValueError:
        raise ConfigError(
            "the file is not UTF-8 text", place=Place(str(path)), remedy="save it as UTF-8", code="TRK101"
        ) from None


def _unreadable(path: Path, line: int, why: str) -> ConfigError:
    return ConfigError(
        f"the line is not a change: {why}",
        place=Place(str(path), line, 1),
        remedy='write {"operation": "insert", "schema": "public", "table": "…", "new": {…}, "old": {…}},'
        " as trucker peek prints",
        code="TRK139",
    )


def _change(schema: TableSchema, code: int, raw: Mapping[str, Any], number: int) -> Changes:
    new, old = raw.get("new") or {}, raw.get("old") or {}
    unsent = frozenset(raw.get("unchanged", ()))
    kind = NO_OLD if not old else OLD_FULL if set(old) > set(schema.key) else OLD_KEY
    return Changes(
        schema,
        np.array([code], np.uint8),
        _row(schema, {} if code == DELETE else new),
        _row(schema, old),
        np.array([kind], np.uint8),
        {name: np.array([True]) for name in unsent if code == UPDATE and name in schema.names},
        np.array([number], np.uint64),
        np.zeros(1, np.int64),
        np.zeros(1, np.uint32),
        np.zeros(1, np.int64),
    )


def _row(schema: TableSchema, cells: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array([_cell(cells.get(name))], pa.string()) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    return json.dumps(value)
