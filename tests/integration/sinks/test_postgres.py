"""PostgreSQL as a destination passes the suite, on the oldest and the newest version at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from fixtures.pg import Database, new_database
from trucker.change import TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.postgres import PostgresSink
from trucker.testing.server import Server
from trucker.testing.table_suite import TableSinkSuite


class TestPostgresSink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def fresh(self, any_server: Server) -> Iterator[None]:
        for database in new_database(any_server, "destination"):
            self.database: Database = database
            yield
            self.make_sink().close()

    def make_sink(self, project: str = "suite") -> Sink:
        return PostgresSink(self.database.connection, Workspace(project, Path("unused")))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        with self.database.connect() as connection:
            name = sql.Identifier(table.schema, table.name)
            found = connection.execute(
                "select a.attname::text from pg_attribute a where a.attrelid = to_regclass(%s)"
                " and a.attnum > 0 order by a.attnum",
                [table.quoted],
            ).fetchall()
            if not found:
                return []
            names = [row[0] for row in found]
            cells = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(one)) for one in names)
            query = sql.SQL("select {} from {}").format(cells, name)
            return [dict(zip(names, row, strict=True)) for row in connection.execute(query).fetchall()]

    def put_foreign_row(self, table: TableId) -> None:
        self.database.execute(f"insert into {table.quoted} (id) values (77)")
