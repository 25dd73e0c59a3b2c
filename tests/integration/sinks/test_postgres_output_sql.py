"""output.sql at a PostgreSQL destination: the suite, on an older and on the newest version, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.pg import Database, new_database
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.session import close_idle
from trucker.testing.output_suite import OutputSqlSuite
from trucker.testing.server import Server


class TestPostgresOutputSql(OutputSqlSuite):
    @pytest.fixture(autouse=True)
    def fresh(self, any_server: Server) -> Iterator[None]:
        for database in new_database(any_server, "destination"):
            self.database: Database = database
            yield
            close_idle(self.database.connection)

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        found = self.database.query(statement)
        return [tuple(None if cell is None else str(cell) for cell in row) for row in found]

    def leftovers(self) -> int:
        (found,) = self.database.query(
            "select count(*) from pg_tables where schemaname = 'trucker' and tablename ~ '^[sc]_'"
        )
        return int(found[0])
