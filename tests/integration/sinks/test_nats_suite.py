"""The NATS sink against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.jetstream import messages
from fixtures.json_lines import written
from trucker.adapters.nats import NatsConnection
from trucker.change import TableId
from trucker.errors import SinkError
from trucker.sinks.base import Workspace
from trucker.sinks.nats.sink import NatsSink
from trucker.testing.jetstream import JetStreamServer
from trucker.testing.suites.sink_suite import ITEMS, ChangeSinkSuite, Written, target_of


class TestNatsSink(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def _destination(self, tmp_path: Path, shared_nats: JetStreamServer, stream_name: str) -> None:
        self.folder, self.server, self.stream = tmp_path, shared_nats, stream_name

    def make_sink(self, project: str = "suite") -> NatsSink:
        connection = NatsConnection(
            name="bus",
            adapter="nats",
            servers=(self.server.url,),
            stream=self.stream,
            subject=f"{self.stream}.{{{{ schema }}}}.{{{{ table }}}}",
        )
        return NatsSink(connection, Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        events = messages(self.server.url, self.stream)
        assert len({event.headers["Nats-Msg-Id"] for event in events}) == len(events)
        return written(b"".join(event.value + b"\n" for event in events), table)

    def test_projects_do_not_see_each_other(self) -> None:
        """A stream is one project's: another is refused, not mixed in."""
        self.started(target_of(ITEMS))
        with pytest.raises(SinkError, match="belongs to project 'suite'"):
            self.committer("another").open()
        assert set(self.committer().open()) == {"main"}
