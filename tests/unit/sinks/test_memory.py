"""The memory sink passes the suite that it is the oracle of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from trucker.change import TableId
from trucker.config.sql_files import SqlFile
from trucker.errors import SinkError
from trucker.sinks.base import Sink
from trucker.testing.memory import MemorySink, drop_store, store
from trucker.testing.sink_suite import ITEMS, target_of
from trucker.testing.table_suite import TableSinkSuite


class TestMemorySink(TableSinkSuite):
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

    def test_it_runs_no_sql(self) -> None:
        sink = self.make_sink()
        with pytest.raises(SinkError, match="runs no SQL"):
            sink.prepare(replace(target_of(ITEMS), statement=SqlFile("output.sql", "output.sql", "select 1")))
