"""The search for refused rows (`transactional.isolation`) in a PostgreSQL server: no row goes back to the driver."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final

import psycopg

from trucker.errors import DataError
from trucker.sinks.letters import Letter
from trucker.sinks.postgres import failure
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.text_stage import TextStage, letter_stage
from trucker.sinks.sql.examination import parents_first
from trucker.sinks.sql.staged_text import DELETE_ROW
from trucker.sinks.target import Target
from trucker.sinks.transactional.isolation import Check, Isolation, TrialRow, TrialRows
from trucker.table import TableId

Describe = Callable[[Session, Target], DestinationTable]

# Trucks that are committed together share a transaction, and the names of temporary tables in it.
_numbers: Final = itertools.count()


class PostgresIsolation(Isolation):
    """The rows of one truck in the session's transaction."""

    failures: ClassVar[type[Exception]] = psycopg.Error

    def __init__(
        self, session: Session, truck: str, describe: Describe, stored: Sequence[Letter], most: int | None
    ) -> None:
        super().__init__(truck, stored, most)
        self._session = session
        self._describe = describe

    def execute(self, statement: str) -> object:
        return self._session.run(statement)

    def check_constraints(self) -> None:
        self._session.run("set constraints all immediate")

    def passes(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and failure.passing(error)

    def refuses_row(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and failure.of_data(error)

    def blaming(self, target: Target) -> AbstractContextManager[None]:
        return failure.blaming(target)

    def explain(self, rows: TrialRows, row: TrialRow, error: Exception) -> DataError:
        assert isinstance(rows, TextStage)
        assert isinstance(error, psycopg.Error)
        columns: tuple[str, ...] = ()
        if (error.sqlstate or "").startswith("22") and row.kind != DELETE_ROW:
            said = self._try(lambda: _column_of(rows, row))
            self._session.run("drop table if exists pg_temp.t_unfit")
            error, columns = said if isinstance(said, psycopg.Error) else error, tuple(row.cells)
        table = rows.target.table
        reason = failure.explain(error, f"table {table}", table=table, columns=columns)
        assert isinstance(reason, DataError)
        return reason

    def places(self, targets: Sequence[Target]) -> Mapping[TableId, int]:
        tables = sorted({target.table for target in targets})
        rows = self._session.run(
            """select w.n, v.n from unnest($1::text[]) with ordinality w(name, n)
            join pg_constraint c on c.conrelid = to_regclass(w.name) and c.contype = 'f'
            join unnest($1::text[]) with ordinality v(name, n) on c.confrelid = to_regclass(v.name)
            where w.n <> v.n""",
            [table.quoted for table in tables],
        )
        parents: dict[TableId, set[TableId]] = defaultdict(set)
        for child, parent in rows:
            parents[tables[child - 1]].add(tables[parent - 1])
        return {table: place for place, table in enumerate(parents_first(tables, parents))}

    def stage_letters(self, letters: Sequence[Letter]) -> TrialRows:
        table = self._describe(self._session, letters[0].as_target())
        return letter_stage(self._session, letters, table, f"p_letters_{next(_numbers)}")


def _column_of(rows: TextStage, row: TrialRow) -> Check:
    rows.column_of(row)
    return lambda: None
