"""Trucker's own tables in PostgreSQL, as far as they are those that all SQL databases have (`sinks.sql`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from trucker.sinks.postgres.session import Session
from trucker.sinks.sql.dialect import Dialect

SCHEMA: Final = "trucker"


class PostgresDialect(Dialect[Session]):
    """Letters are numbered by an identity column; their LSN is a pg_lsn, their key and their data are json."""

    def run(self, transaction: Session, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        cursor = transaction.run(_numbered(statement), *values)
        return cursor.fetchall() if cursor.description else []

    def name(self, transaction: Session, table: str) -> str:
        return f"{SCHEMA}.{table}"

    def tables(self, transaction: Session) -> frozenset[str]:
        rows = transaction.run("select tablename::text from pg_tables where schemaname = $1", SCHEMA)
        return frozenset(name for (name,) in rows)

    def new_number(self, transaction: Session) -> str:
        return "DEFAULT"

    def cell(self, column: str) -> str:
        return f"{column}::text"


@lru_cache(maxsize=64)
def _numbered(statement: str) -> str:
    """The statement with $1, $2, … in the places of its question marks."""
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
