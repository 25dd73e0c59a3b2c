"""The example of a sink without transactions against the public suite."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trucker.sinks.base import Sink, Workspace
from trucker.sinks.merging import DELETED, VERSION
from trucker.table import TableId
from trucker.testing.suites.table_suite import TableSinkSuite
from trucker.testing.versioned_sink import VersionedConnection, VersionedSink


class TestVersionedSink(TableSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> Sink:
        connection = VersionedConnection(name="store", adapter="versioned", path=self.folder / "store")
        return VersionedSink(connection, Workspace(project, self.folder / "spool" / project))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        connection = VersionedConnection(name="store", adapter="versioned", path=self.folder / "store")
        return VersionedSink(connection, Workspace("reader", self.folder)).rows(table)

    def put_foreign_row(self, table: TableId) -> None:
        row = pa.table({"id": ["77"], VERSION: [0], DELETED: [False]})
        pq.write_table(row, self.folder / "store" / f"{table.schema}.{table.name}" / "000001.parquet")
