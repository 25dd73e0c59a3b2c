"""The Kafka sink against the public suite, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.json_lines import written
from fixtures.kafka import Place, needs_kafka
from trucker.change import TableId
from trucker.sinks.base import Sink, Workspace
from trucker.sinks.kafka.sink import KafkaSink
from trucker.testing.suites.sink_suite import ChangeSinkSuite, Written

pytestmark = needs_kafka


class TestKafkaSink(ChangeSinkSuite):
    @pytest.fixture(autouse=True)
    def destination(self, kafka: Place, tmp_path: Path) -> None:
        self.place = kafka
        self.folder = tmp_path

    def make_sink(self, project: str = "suite") -> Sink:
        connection = self.place.connection(
            partitions=1, positions_topic=None, transactional_id=None, name=self.place.prefix
        )
        return KafkaSink(connection, Workspace(project, self.folder / project))

    def written(self, table: TableId) -> list[Written]:
        topic = f"{self.place.prefix}.{table.schema.replace(' ', '_')}.{table.name}"
        values = [message.value() or b"" for message in self.place.messages(topic)]
        return written(b"".join(value + b"\n" for value in values), table)
