"""The stdout sink against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.json_lines import written
from trucker.adapters.stdout import StdoutConnection
from trucker.change import TableId
from trucker.sinks.base import Workspace
from trucker.sinks.lines.stdout import StdoutSink
from trucker.testing.suites.sink_suite import ChangeSinkSuite, Written


class TestStdoutSink(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self.folder = tmp_path
        self.captured = capfdbinary
        self.printed = b""

    def make_sink(self, project: str = "suite") -> StdoutSink:
        return StdoutSink(StdoutConnection(name="out", adapter="stdout"), Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        self.printed += self.captured.readouterr().out
        return written(self.printed, table)
