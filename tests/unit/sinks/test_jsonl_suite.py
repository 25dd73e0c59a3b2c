"""The JSON-lines sink against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.json_lines import written
from trucker.adapters.jsonl import JsonLinesConnection
from trucker.change import TableId
from trucker.errors import SinkError
from trucker.sinks.base import Workspace
from trucker.sinks.lines.jsonl import JsonLinesSink
from trucker.testing.suites.sink_suite import ITEMS, ChangeSinkSuite, Written, target_of


class TestJsonLinesSink(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> JsonLinesSink:
        connection = JsonLinesConnection(
            name="lines", adapter="jsonl", path=self.folder / "lines", rotate_bytes=1_000_000
        )
        return JsonLinesSink(connection, Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        files = sorted((self.folder / "lines").glob("*/changes-*.jsonl"))
        return written(b"".join(file.read_bytes() for file in files), table)

    def test_projects_do_not_see_each_other(self) -> None:
        """A folder is one project's: another is refused, not mixed in."""
        self.started(target_of(ITEMS))
        with pytest.raises(SinkError, match="belongs to project 'suite'"):
            self.committer("another").open()
        assert set(self.committer().open()) == {"main"}
