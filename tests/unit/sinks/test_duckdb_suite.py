"""The DuckDB sink against the public suite."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import TableId
from trucker.sinks.base import Workspace
from trucker.sinks.duckdb import DuckDBSink
from trucker.sinks.duckdb.types import duckdb_type
from trucker.sinks.target import Target
from trucker.testing.suites.changed_tables_suite import ChangedTablesSuite


class TestDuckDBSink(ChangedTablesSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.sinks: list[DuckDBSink] = []

    def make_sink(self, project: str = "suite") -> DuckDBSink:
        connection = DuckDBConnection(name="duck", adapter="duckdb", path=self.folder / "data.duckdb")
        self.sinks.append(DuckDBSink(connection, Workspace(project, self.folder / project)))
        return self.sinks[-1]

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

    def _execute(self, statement: str) -> None:
        """As another process would, which has to wait until trucker lets go of the file."""
        for sink in self.sinks:
            sink._session.close()
        with duckdb.connect(str(self.folder / "data.duckdb")) as connection:
            connection.execute(statement)

    def drop_table(self, table: TableId) -> None:
        self._execute(f"DROP TABLE data.{table.quoted}")

    def make_table(self, target: Target) -> None:
        columns = ", ".join(f'"{c.name}" {duckdb_type(c, None)}' for c in target.source.columns)
        self._execute(f"CREATE TABLE data.{target.table.quoted} ({columns})")

    def drop_column(self, table: TableId, column: str) -> None:
        self._execute(f'ALTER TABLE data.{table.quoted} DROP COLUMN "{column}"')

    def add_column(self, table: TableId, column: str) -> None:
        self._execute(f'ALTER TABLE data.{table.quoted} ADD COLUMN "{column}" VARCHAR')

    def forget_identities(self) -> None:
        self._execute("DROP TABLE data.trucker.identities")


class TestDuckDBSinkWithLargeUpdates(TestDuckDBSink):
    """The same, with rows rewritten as those of a very large batch are."""

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trucker.sinks.duckdb.apply.LARGE", 0)
