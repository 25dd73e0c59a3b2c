"""The memory sink passes the suite that it is the oracle of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from trucker.change import TableId
from trucker.config.sql.sql_files import SqlFile
from trucker.errors import SinkError
from trucker.sinks.base import Sink
from trucker.sinks.target import Target
from trucker.testing.handmade import schema_of
from trucker.testing.memory import MemorySink, drop_store, store
from trucker.testing.memory_table import MemoryTable
from trucker.testing.suites.changed_tables_suite import ChangedTablesSuite
from trucker.testing.suites.sink_suite import ITEMS, target_of


class TestMemorySink(ChangedTablesSuite):
    @pytest.fixture(autouse=True)
    def destination(self) -> Iterator[None]:
        self.name = uuid4().hex
        yield
        drop_store(self.name)

    def make_sink(self, project: str = "suite") -> Sink:
        return MemorySink(self.name, project)

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        held = store(self.name).tables.get(table)
        return held.rows if held else []

    def put_foreign_row(self, table: TableId) -> None:
        held = store(self.name).tables[table]
        held.rows.append(dict.fromkeys(held.columns) | {"id": "77"})

    def drop_table(self, table: TableId) -> None:
        del store(self.name).tables[table]

    def make_table(self, target: Target) -> None:
        store(self.name).tables[target.table] = MemoryTable.like(target.source)

    def drop_column(self, table: TableId, column: str) -> None:
        held = store(self.name).tables[table]
        held.columns = tuple(name for name in held.columns if name != column)
        for row in held.rows:
            del row[column]

    def add_column(self, table: TableId, column: str) -> None:
        store(self.name).tables[table].widen(schema_of(table, {column: "text"}, []))

    def forget_identities(self) -> None:
        store(self.name).identities.clear()

    def test_it_runs_no_sql(self) -> None:
        sink = self.committer()
        with pytest.raises(SinkError, match="cannot run SQL"):
            sink.prepare(replace(target_of(ITEMS), statement=SqlFile("output.sql", "output.sql", "select 1")))
