"""Which columns of `{{ rows }}` a statement looks at: only those need to travel.

PostgreSQL's planner knows. It is asked to plan the statement over a relation that it cannot look through, and its plan
names the columns that any step needs. To be sure, the statement is parsed over a relation of just those: if a column
that it names were missing there, it would be an error, and all columns are handed over.
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
    connection: PgConnection, source: InputStatement, given: Sequence[InputColumn], fields: Sequence[Field]
) -> frozenset[str]:
    """The names of those that the statement needs, or of all. `fields` is what it gives."""
    everything = frozenset(one.name for one in given)
    try:
        with connection.transaction(force_rollback=True):
            numbers = set(_numbers(_plan(connection, source.text(_opaque(given)))))
            used = everything if 0 in numbers else frozenset(given[number - 1].name for number in numbers)
            fewer = [one for one in given if one.name in used] or list(given[-1:])
            same = describe(connection, source.text(parameters_relation(fewer))) == list(fields)
    except psycopg.Error:
        return everything
    return used if same else everything


def _opaque(given: Sequence[InputColumn]) -> str:
    """Rows that the planner takes as they are: of a single one, or of a table, it would know too much."""
    nulls = ", ".join(f"null::{one.type}" for one in given)
    names = ", ".join(quote_identifier(one.name) for one in given)
    return f"(values ({nulls}), ({nulls})) as r({names})"


def _plan(connection: PgConnection, statement: str) -> Any:
    (answer,) = stream(connection, f"explain (verbose, format json) {statement}", [])
    return json.loads(answer.column(0)[0].as_py())


def _numbers(plan: Any) -> Iterator[int]:
    """The columns that a plan names, from 1; 0 is all of them.

    A scan beneath another step may give more than that step asks for, so that its own list does not count.
    """
    if isinstance(plan, str):
        yield from (int(found[1] or 0) for found in _COLUMN.finditer(plan))
    elif isinstance(plan, list):
        for part in plan:
            yield from _numbers(part)
    elif isinstance(plan, dict):
        asked = plan.get("Node Type") == "Values Scan" and plan.get("Parent Relationship") in ("Outer", "Inner")
        for key, part in plan.items():
            if not (asked and key == "Output"):
                yield from _numbers(part)
