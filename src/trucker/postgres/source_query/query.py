"""A prepared input.sql, which the driver sends to executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Final

from trucker.change import DELETE, INSERT, UPDATE, Column, TableId
from trucker.config.sql.sql_files import SqlFile
from trucker.config.sql.sql_lexer import OTHER, Statement, tokens
from trucker.config.sql.sql_template import RenderedSql
from trucker.postgres.source_query.types import InputColumn

ORDER: Final = (DELETE, UPDATE, INSERT)
"""The order of a run's operations where each has its own statement."""

# Stands for `{{ rows }}` until it is known whether it is parameters or a chunk. No text of a file has such characters.
ROWS: Final = "\ue000rows\ue001"


@dataclass(frozen=True, slots=True)
class InputStatement:
    """The one statement of a file, with `ROWS` where the rows go. `sql` is the whole file.

    `uses_rows`: `ROWS` is used outside comments and strings; a template may omit it for some operations.
    """

    sql: RenderedSql
    statement: Statement
    uses_rows: bool

    @classmethod
    def of(cls, sql: RenderedSql, statement: Statement) -> InputStatement:
        uses = any(token.kind == OTHER and token.text == ROWS[0] for token in tokens(statement.text))
        return cls(sql, statement, uses)

    def text(self, relation: str) -> str:
        """The statement over this relation."""
        return self.statement.text.replace(ROWS, relation)

    def whole(self, relation: str) -> tuple[RenderedSql, int]:
        """The file over this relation, and the statement's offset in it, to compute the place of an error."""
        earlier = self.sql.text.count(ROWS, 0, self.statement.offset)
        return self.sql.replaced(ROWS, relation), self.statement.offset + earlier * (len(relation) - len(ROWS))


@dataclass(frozen=True, slots=True)
class Variant:
    """The file for some operations. `fields` are its result's columns; `operation` is one of them, or -1."""

    source: InputStatement
    fields: tuple[str, ...]
    operation: int


@dataclass(frozen=True, slots=True)
class PostgresQuery:
    """An input.sql prepared for one table. `columns` are its result's, without `operation`.

    `given` are the columns of `{{ rows }}`, the last of them `operation`; only those in `used` are sent. `variants` has
    the statement for each operation, which may be the same one. `by_operation`: it runs for each operation separately.
    `timeout` is how many seconds a statement may take.
    """

    file: SqlFile
    table: TableId
    columns: tuple[Column, ...]
    given: tuple[InputColumn, ...]
    used: frozenset[str]
    variants: Mapping[int, Variant]
    by_operation: bool
    timeout: float | None

    @property
    def relation(self) -> str:
        """`{{ rows }}` made of parameters, one for each of `sent`."""
        return parameters_relation(self.given, self.used)

    @property
    def sent(self) -> tuple[InputColumn, ...]:
        """The columns that are sent, in the order of the parameters."""
        return tuple(one for one in self.given if one.name in self.used)


def parameters_relation(input_columns: Sequence[InputColumn], used: Set[str] | None = None) -> str:
    """Rows as a relation `r`: the used columns (all by default) from parameters in their order, the others NULL.

    No column is left out: SQL may refer to columns by position.
    """
    numbers = count(1)
    columns = [one.parameter(next(numbers)) if used is None or one.name in used else one.null for one in input_columns]
    return f"(select {', '.join(columns)}) as r"
