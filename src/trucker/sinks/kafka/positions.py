"""The ledger as records of a compacted topic with one partition.

    key    {"truck":"orders"}                                       value  {"project":"shop","lsn":"0/16B3748"}
    key    {"truck":"orders","schema":"public","table":"item"}      value  {"project":"shop","phase":"streaming", …}

Each transaction writes the records that differ from those before, so that it costs what it changes; one without a value
removes. The last committed record of a key counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from trucker.adapters.kafka import KafkaConnection
from trucker.errors import SinkError, SinkUnavailable
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.kafka.failure import KafkaFailures
from trucker.sinks.kafka.library import LibraryLog, Reports, reader_settings
from trucker.sinks.kafka.patience import Patience
from trucker.sinks.ledger import Entry, Ledger
from trucker.table import TableId

PARTITION: Final = 0
_AT_ONCE: Final = 1000
# `consume` waits so long for so many.
_TOGETHER_SECONDS: Final = 0.05

PositionRecord = tuple[bytes, bytes | None]
"""A key and its value."""


def records(project: str, before: Ledger, after: Ledger) -> Iterator[PositionRecord]:
    """What to write so that the topic holds `after` where it held `before`."""
    for truck in sorted({*before.positions, *after.positions}):
        lsn = after.positions.get(truck)
        if lsn != before.positions.get(truck):
            yield _json({"truck": truck}), None if lsn is None else _json({"project": project, "lsn": str(lsn)})
    if after.entries is before.entries:
        return
    for truck_table in sorted({*before.entries, *after.entries}):
        entry = after.entries.get(truck_table)
        if entry != before.entries.get(truck_table):
            truck, table = truck_table
            key = _json({"truck": truck, "schema": table.schema, "table": table.name})
            yield key, None if entry is None else _json({"project": project, **_entry_json(entry)})


def ledger_of(stored: Iterable[PositionRecord], project: str, topic: str) -> Ledger:
    """The ledger that the records of the topic, in their order, make."""
    latest = dict(stored)
    positions: dict[str, Lsn] = {}
    entries: dict[tuple[str, TableId], Entry] = {}
    for key, value in latest.items():
        if value is None:
            continue
        try:
            name, content = json.loads(key), json.loads(value)
            owner = content["project"]
            if "table" in name:
                entries[name["truck"], TableId(name["schema"], name["table"])] = _entry(content)
            else:
                positions[name["truck"]] = Lsn.parse(content["lsn"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SinkError(
                f"topic {topic} has a record that is no position of this version of trucker",
                remedy="use the version that wrote it, or name another positions_topic and run `trucker reset`",
                code="TRK727",
            ) from None
        if owner != project:
            raise SinkError(
                f"topic {topic} has the positions of project {owner!r}, not of {project!r}",
                remedy="name another positions_topic, or set unique_id back",
                code="TRK727",
            )
    return Ledger(positions, entries)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "phase": entry.phase.value,
        "lsn": str(entry.lsn),
        "target": [entry.target.schema, entry.target.name] if entry.target else None,
        "snapshot": entry.snapshot,
    }


def _entry(content: Mapping[str, Any]) -> Entry:
    target = TableId(*content["target"]) if content["target"] else None
    return Entry(Phase(content["phase"]), Lsn.parse(content["lsn"]), target, content["snapshot"])


class PositionsReader:
    """Reads all committed records of the topic, up to what was there when it was asked.

    Where the end of a transaction is still open there, `settle` is called: it has to have it committed or aborted.
    """

    def __init__(self, connection: KafkaConnection, topic: str, settle: Callable[[], None] | None = None) -> None:
        self._connection = connection
        self._topic = topic
        self._settle = settle
        self._failures = KafkaFailures(connection)

    def read(self) -> list[PositionRecord]:
        end = self._end()
        return self._committed(end) if end else []

    def _consumer(self, isolation: str) -> tuple[Consumer, Reports]:
        reports = Reports()
        settings = {**reader_settings(self._connection, isolation), "error_cb": reports.on_error}
        try:
            return Consumer(settings, logger=LibraryLog(self._connection)), reports
        except KafkaException as error:
            raise self._failures.wrong_settings(error.args[0]) from None

    def _end(self) -> int:
        """Where the partition ends, transactions included that may be under way."""
        consumer, reports = self._consumer("read_uncommitted")
        try:
            patience = Patience(self._connection.timeout)
            while True:
                try:
                    partition = TopicPartition(self._topic, PARTITION)
                    _, end = consumer.get_watermark_offsets(partition, timeout=patience.slice)
                    return int(end)
                except KafkaException as error:
                    consumer.poll(0)
                    self._bear(error.args[0], reports, patience)
        finally:
            consumer.close()

    def _bear(self, error: KafkaError, reports: Reports, patience: Patience) -> None:
        """Raise, unless the error may pass in the time that is left."""
        if reports.refusal is not None:
            raise self._failures.refused(reports.refusal)
        if not isinstance(reason := self._failures.of(error, "reading positions", self._topic), SinkUnavailable):
            raise reason
        if reason.code == "TRK723" or patience.over:
            raise reason

    def _committed(self, end: int) -> list[PositionRecord]:
        consumer, reports = self._consumer("read_committed")
        taken: list[PositionRecord] = []
        patience = Patience(self._connection.timeout)
        reached = 0
        try:
            consumer.assign([TopicPartition(self._topic, PARTITION, 0)])
            while reached < end:
                for message in consumer.consume(_AT_ONCE, timeout=_TOGETHER_SECONDS):
                    error = message.error()
                    if error is None:
                        taken.append((message.key() or b"", message.value()))
                        patience = Patience(self._connection.timeout)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        reached = message.offset() or 0
                    else:
                        self._bear(error, reports, patience)
                if reports.refusal is not None:
                    raise self._failures.refused(reports.refusal)
                if 0 < reached < end and self._settle is not None:
                    settle, self._settle = self._settle, None
                    settle()
                    patience = Patience(self._connection.timeout)
                if reached < end and patience.over:
                    raise SinkUnavailable(
                        f"connection {self._connection.name}: the end of topic {self._topic} cannot be read, as when "
                        "another producer has a transaction open in it",
                        remedy="none needed: the brokers end such a transaction after its timeout, and trucker retries",
                        code="TRK720",
                    )
            return taken
        finally:
            consumer.close()
