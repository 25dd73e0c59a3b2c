"""The DuckDB sink against the public suite."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from trucker.change import TableId
from trucker.config.models import DuckDBConnection
from trucker.sinks.base import Workspace
from trucker.sinks.duckdb import DuckDBSink
from trucker.testing.table_suite import TableSinkSuite


class TestDuckDBSink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> DuckDBSink:
        connection = DuckDBConnection(name="duck", adapter="duckdb", path=self.folder / "data.duckdb")
        return DuckDBSink(connection, Workspace(project, self.folder / project))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            try:
                found = connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM data.{table.quoted}")
            except duckdb.CatalogException:
                return []
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def put_foreign_row(self, table: TableId) -> None:
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            connection.execute(f"INSERT INTO data.{table.quoted} (id) VALUES (77)")


class TestDuckDBSinkWithLargeUpdates(TestDuckDBSink):
    """The same, with rows rewritten as those of a very large batch are."""

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trucker.sinks.duckdb.apply.LARGE", 0)
