"""Finds the columns of `{{ rows }}` that a statement uses: only those are sent.

PostgreSQL's planner plans the statement over a relation that it cannot simplify, and its plan names the columns that
any step needs. As a safeguard, the statement is then parsed over a relation of just those columns: if that fails, all
columns are sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

from trucker.pg.connection import PgConnection
from trucker.postgres.source_query.query import InputStatement, parameters_relation
from trucker.postgres.source_query.result import Field, describe, stream
from trucker.postgres.source_query.types import InputColumn
from trucker.table import quote_identifier

_COLUMN: Final = re.compile(r'"\*VALUES\*(?:_\d+)?"\.(?:column(\d+)|\*)')


def used_columns(
    connection: PgConnection, source: InputStatement, input_columns: Sequence[InputColumn], fields: Sequence[Field]
) -> frozenset[str]:
    """The names of the columns that the statement needs, or of all. `fields` are the columns of its result."""
    everything = frozenset(one.name for one in input_columns)
    try:
        with connection.transaction(force_rollback=True):
            numbers = set(_numbers(_plan(connection, source.text(_opaque(input_columns)))))
            used = everything if 0 in numbers else frozenset(input_columns[number - 1].name for number in numbers)
            fewer = [one for one in input_columns if one.name in used] or list(input_columns[-1:])
            same = describe(connection, source.text(parameters_relation(fewer))) == list(fields)
    except psycopg.Error:
        return everything
    return used if same else everything


def _opaque(input_columns: Sequence[InputColumn]) -> str:
    """Rows that the planner does not simplify: a single row would be folded into constants, hence two."""
    nulls = ", ".join(f"null::{one.type}" for one in input_columns)
    names = ", ".join(quote_identifier(one.name) for one in input_columns)
    return f"(values ({nulls}), ({nulls})) as r({names})"


def _plan(connection: PgConnection, statement: str) -> Any:
    (answer,) = stream(connection, f"explain (verbose, format json) {statement}", [])
    return json.loads(answer.column(0)[0].as_py())


def _numbers(plan: Any) -> Iterator[int]:
    """The columns that a plan names, from 1; 0 is all of them.

    A scan below another node may return more columns than that node uses, so the scan's own output is ignored.
    """
    if isinstance(plan, str):
        yield from (int(match[1] or 0) for match in _COLUMN.finditer(plan))
    elif isinstance(plan, list):
        for part in plan:
            yield from _numbers(part)
    elif isinstance(plan, dict):
        is_child_scan = plan.get("Node Type") == "Values Scan" and plan.get("Parent Relationship") in ("Outer", "Inner")
        for key, part in plan.items():
            if not (is_child_scan and key == "Output"):
                yield from _numbers(part)
