"""The sink passes the suite that trucker's own sinks pass."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trucker_sqlite.adapter import SqliteConnection
from trucker_sqlite.sink import SqliteSink
from trucker_sqlite.table import table_name

from trucker.change import TableId, quote_identifier
from trucker.sinks.base import Sink, Workspace
from trucker.testing.suites.table_suite import TableSinkSuite


class TestSqliteSink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> Sink:
        connection = SqliteConnection(name="out", adapter="sqlite", path=self.folder / "out.db")
        return SqliteSink(connection, Workspace(project, self.folder / "spool" / project))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        name = quote_identifier(table_name(table))
        with closing(sqlite3.connect(self.folder / "out.db")) as database:
            if not database.execute(f"PRAGMA table_info({name})").fetchall():
                return []
            cursor = database.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in cursor.description]
            return [
                {key: None if cell is None else str(cell) for key, cell in zip(names, row, strict=True)}
                for row in cursor
            ]

    def put_foreign_row(self, table: TableId) -> None:
        with closing(sqlite3.connect(self.folder / "out.db")) as database, database:
            database.execute(f"INSERT INTO {quote_identifier(table_name(table))} (id) VALUES (77)")
