"""Handlers and batchers against the public suite: at least once, and with a position of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.handlers import FullJournal, KeepingShelf, Shelf, connection_of, journal, shelf
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.python import python_sink
from trucker.table import TableId
from trucker.testing.suites.sink_suite import ITEMS, ODD_NAMES, ChangeSinkSuite, Written, insert, schema_of, target_of
from trucker.testing.suites.table_suite import TableSinkSuite, item

TRUCKS = ("main", "other", *(f"truck {name}" for name in ODD_NAMES))


class TestHandler(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> Sink:
        connection = connection_of(FullJournal, *TRUCKS, settings={"path": self.folder / "journal"})
        return python_sink(connection, Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        return [
            Written(entry["call"], _texts(entry["new"]), _texts(entry["old"]))
            for entry in journal(self.folder / "journal")
            if entry["table"] == str(table) and entry["call"] != "refresh"
        ]


class TestBatcher(TableSinkSuite):
    kind: type = Shelf

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> Sink:
        connection = connection_of(self.kind, *TRUCKS, settings={"path": self.folder / "shelf"})
        return python_sink(connection, Workspace(project, self.folder / project))

    def rows(self, table: TableId) -> list[dict[str, str | None]]:
        return shelf(self.folder / "shelf", table)

    def put_foreign_row(self, table: TableId) -> None:
        other = Shelf(self.folder / "shelf")
        other.open()
        other.upsert(table, [{"id": 77}])
        other.close()

    def test_a_new_column(self) -> None:
        """A batcher has no tables to alter: rows have the columns that they came with."""
        items = target_of(ITEMS)
        sink = self.filled(items, item(1))
        columns = {"id": "integer not null", "name": "text", "qty": "integer", "note": "text", "size": "text"}
        wider = target_of(schema_of(ITEMS.table, columns, ["id"]))
        sink.prepare(wider)
        self.change(sink, wider, insert({**item(2), "size": "xl"}))
        self.holds(items, item(1), {**item(2), "size": "xl"})

    def test_a_strict_table_has_the_columns_of_the_rows(self) -> None:
        """Nor any that could lack a column: any row is taken."""


class TestKeepingBatcher(TestBatcher):
    """Its position is in its own database."""

    kind = KeepingShelf

    def test_nothing_is_stored_in_the_state_folder(self) -> None:
        sink = self.filled(target_of(ITEMS), item(1))
        sink.close()
        assert not list(self.folder.rglob("*.json"))


def _texts(row: dict[str, object] | None) -> dict[str, str | None] | None:
    return row and {name: None if value is None else str(value) for name, value in row.items()}
