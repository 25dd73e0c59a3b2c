"""An input.sql that is fit to run: what the driver hands to executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Final

from trucker.change import DELETE, INSERT, UPDATE, Column, TableId
from trucker.config.sql_files import SqlFile
from trucker.config.sql_lexer import OTHER, Statement, tokens
from trucker.config.sql_template import RenderedSql
from trucker.postgres.source_query.types import InputColumn

ORDER: Final = (DELETE, UPDATE, INSERT)
"""In which the operations of a run come where each runs by itself."""

# Stands for `{{ rows }}` until it is known whether it is parameters or a chunk. No text of a file has such characters.
ROWS: Final = "\ue000rows\ue001"


@dataclass(frozen=True, slots=True)
class InputStatement:
    """The one statement of a file, with `ROWS` where the rows go. `sql` is the whole file.

    `uses_rows` is whether they go anywhere but into a comment or a text: a template may leave them out for some.
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
        """The file over this relation, and where in it the statement begins: what an error's place is found by."""
        before = self.sql.text.count(ROWS, 0, self.statement.offset)
        return self.sql.replaced(ROWS, relation), self.statement.offset + before * (len(relation) - len(ROWS))


@dataclass(frozen=True, slots=True)
class Variant:
    """The file for some operations. `fields` are its result's columns; `operation` is one of them, or -1."""

    source: InputStatement
    fields: tuple[str, ...]
    operation: int


@dataclass(frozen=True, slots=True)
class PostgresQuery:
    """An input.sql that is fit to run for one table. `columns` are its result's, without `operation`.

    `given` are the columns of `{{ rows }}`, the last of them `operation`, and `used` those that it looks at: the others
    do not travel. `variants` has the statement for each operation, which may be the same one. `by_operation` says that
    it runs for each by itself. `timeout` is how many seconds a statement may take.
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
        """The columns that travel, in the order of the parameters."""
        return tuple(one for one in self.given if one.name in self.used)


def parameters_relation(given: Sequence[InputColumn], used: Set[str] | None = None) -> str:
    """Rows as a relation `r`: those columns that are used (all) from parameters in their order, the others NULL.

    None is ever left out: SQL may count columns by their place.
    """
    numbers = count(1)
    columns = [one.parameter(next(numbers)) if used is None or one.name in used else one.null for one in given]
    return f"(select {', '.join(columns)}) as r"
