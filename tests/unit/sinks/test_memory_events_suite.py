"""The stream of events in memory against the public suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.json_lines import written
from trucker.sinks.base import Sink, Workspace
from trucker.table import TableId
from trucker.testing.memory_events import MemoryEventSink
from trucker.testing.suites.sink_suite import ChangeSinkSuite, Written


class TestMemoryEventSink(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        yield
        MemoryEventSink.streams.pop(str(tmp_path), None)

    def make_sink(self, project: str = "suite") -> Sink:
        return MemoryEventSink(str(self.folder), Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        trucks = MemoryEventSink.streams[str(self.folder)].events.values()
        values = [event.value for events in trucks for event in events if event.value is not None]
        return written(b"".join(value + b"\n" for value in values), table)
