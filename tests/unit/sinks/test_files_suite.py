"""The files sink against the public suite: lines and Parquet in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fixtures.json_lines import written
from trucker.adapters.files import FilesConnection, FileType
from trucker.change import TableId
from trucker.errors import SinkError
from trucker.sinks.base import Workspace
from trucker.sinks.files.sink import FilesSink
from trucker.testing.handmade import delete, insert, truncate, update
from trucker.testing.suites.sink_suite import BAG, ITEMS, ChangeSinkSuite, Written, target_of


class TestFilesOfLines(ChangeSinkSuite):
    file_type = FileType.JSON

    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> FilesSink:
        connection = FilesConnection(
            name="files",
            adapter="files",
            location=self.folder / "files",
            file_type=self.file_type,
            rotate_bytes=1,  # a file for each delivery
        )
        return FilesSink(connection, Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        files = sorted((self.folder / "files").glob("[!_]*/*/*.jsonl"))
        return written(b"".join(file.read_bytes() for file in files), table)

    def test_projects_do_not_see_each_other(self) -> None:
        """A location is one project's: another is refused, not mixed in."""
        self.started(target_of(ITEMS))
        with pytest.raises(SinkError, match="belongs to project 'suite'"):
            self.committer("another").open()
        assert set(self.committer().open()) == {"main"}


class TestParquetFiles(TestFilesOfLines):
    """An update that changes the key is a delete and an insert."""

    file_type = FileType.PARQUET

    def written(self, table: TableId) -> list[Written]:
        files = sorted((self.folder / "files").glob("[!_]*/*/*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return [_written(row) for row in rows if (row["_schema"], row["_table"]) == (table.schema, table.name)]

    def test_every_change_in_order(self) -> None:
        items = target_of(ITEMS)
        sink = self.started(items)
        self.change(
            sink,
            items,
            insert({"id": "1", "name": "a", "qty": "1", "note": "x"}),
            update({"id": "1", "name": "b", "qty": "2"}, unchanged=["note"]),
            update({"id": "2", "name": "b", "qty": "2", "note": None}, old={"id": "1"}),
            delete({"id": "2"}),
            truncate(),
        )
        nothing = dict.fromkeys(("name", "qty", "note"))
        assert self.written(ITEMS.table) == [
            Written("insert", {"id": "1", "name": "a", "qty": "1", "note": "x"}),
            Written("update", {"id": "1", "name": "b", "qty": "2"}),
            Written("delete", None, {"id": "1", **nothing}),
            Written("insert", {"id": "2", "name": "b", "qty": "2", "note": None}),
            Written("delete", None, {"id": "2", **nothing}),
            Written("truncate"),
        ]

    def test_a_full_old_row(self) -> None:
        """It is what a delete has; of an update the new row alone is there."""
        bag = target_of(BAG)
        sink = self.started(bag)
        old: dict[str, str | None] = {"a": "1", "b": None}
        self.change(sink, bag, update({"a": "2", "b": ""}, old=old), delete({"a": "2", "b": ""}))
        assert self.written(BAG.table) == [
            Written("update", {"a": "2", "b": ""}),
            Written("delete", None, {"a": "2", "b": ""}),
        ]


def _written(row: dict[str, Any]) -> Written:
    operation, unsent = row["_operation"], row["_unsent"] or ()
    cells = {
        name: None if cell is None else str(cell)
        for name, cell in row.items()
        if not name.startswith("_") and name not in unsent
    }
    if operation == "truncate":
        assert not any(cells.values())
        return Written(operation)
    return Written(operation, None, cells) if operation == "delete" else Written(operation, cells)
