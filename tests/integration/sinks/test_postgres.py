"""PostgreSQL as a destination passes the suite, on an older and on the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.pg import Database, new_database
from fixtures.postgres_sink import read_rows
from trucker.change import TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.postgres import PostgresSink
from trucker.sinks.postgres.session import close_idle
from trucker.testing.server import Server
from trucker.testing.table_suite import TableSinkSuite


class TestPostgresSink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def fresh(self, any_server: Server) -> Iterator[None]:
        for database in new_database(any_server, "destination"):
            self.database: Database = database
            yield
            close_idle(self.database.connection)

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        return read_rows(self.database, table)

    def put_foreign_row(self, table: TableId) -> None:
        self.database.execute(f"insert into {table.quoted} (id) values (77)")
