"""output.sql in a DuckDB file: the suite, and what is its own."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from trucker.config.models import DuckDBConnection
from trucker.sinks.base import Workspace
from trucker.sinks.duckdb import DuckDBSink
from trucker.testing.output_suite import OutputSqlSuite


class TestDuckDBOutputSql(OutputSqlSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> DuckDBSink:
        connection = DuckDBConnection(name="duck", adapter="duckdb", path=self.folder / "data.duckdb")
        return DuckDBSink(connection, Workspace(project, self.folder / project))

    def execute(self, *statements: str) -> None:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            found = connection.execute(statement).fetchall()
        return [tuple(None if cell is None else str(cell) for cell in row) for row in found]

    def leftovers(self) -> int:
        return len(list((self.folder / "suite").glob("*")))
