"""Events as messages: headers, and how large the brokers find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trucker.lsn import Lsn
from trucker.sinks.event import EVENT_OPERATIONS, NO_TABLE, Events

KafkaHeaders = list[tuple[str, str | bytes | None]]

_BATCH_BYTES: Final = 61
# Attributes, and the differences of time and offset from the batch's, of the only record of a batch.
_RECORD_BYTES: Final = 3


def headers(events: Events) -> Iterator[KafkaHeaders]:
    """`trucker.sinks.event.event_headers` of each event, made by column."""
    shown: KafkaHeaders = [("trucker-table", str(table)) for table in events.tables]
    operations: KafkaHeaders = [("trucker-operation", operation) for operation in EVENT_OPERATIONS]
    fixed: dict[tuple[int, int, int], KafkaHeaders] = {}
    places = zip(events.table.tolist(), events.operation.tolist(), events.commit_lsn.tolist(), strict=True)
    named = zip(events.ordinal.tolist(), events.id.to_pylist(), strict=True)
    for place, (ordinal, name) in zip(places, named, strict=True):
        first = fixed.get(place)
        if first is None:
            table, operation, lsn = place
            first = [] if events.tables[table] == NO_TABLE else [shown[table]]
            first += [operations[operation], ("trucker-lsn", str(Lsn(lsn)))]
            fixed[place] = first
        yield [*first, ("trucker-ordinal", str(ordinal)), ("trucker-id", name)]


def batch_size(value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, str]]) -> int:
    """The bytes of a batch that holds this message alone and is not compressed: what `max.message.bytes` limits."""
    record = _RECORD_BYTES + _field(key) + _field(value) + _varint(len(headers))
    record += sum(_field(name.encode()) + _field(text.encode()) for name, text in headers)
    return _BATCH_BYTES + _varint(record) + record


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """The bytes of a length: seven bits each, and one bit for the sign."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
