"""The ledger of a stream as a value."""

from __future__ import annotations

import json
import re

import pytest

from trucker.errors import SinkError
from trucker.lsn import Lsn
from trucker.sinks.batch import Phase
from trucker.sinks.ledger import Entry, Ledger
from trucker.sinks.nats.nats_ledger import StreamLedger, from_value, to_value
from trucker.table import TableId

WHERE = {"project": "p", "connection": "bus", "stream": "app"}


def ledger(tables: int) -> StreamLedger:
    entries = {
        ("main", TableId("public", f"t{n}")): Entry(Phase.STREAMING, Lsn(n), TableId("a", "é"), "first-1#7")
        for n in range(tables)
    }
    return StreamLedger(Ledger({"main": Lsn(5)}, entries), "2026-11-19T00:00:00Z", 1042, ((901, 950),))


@pytest.mark.parametrize("tables", [0, 2, 5000])
def test_a_value_is_read_as_it_was_written(tables: int) -> None:
    value = to_value(ledger(tables), **WHERE)
    assert len(value) < 300_000
    assert from_value(value, **WHERE) == ledger(tables)


def test_a_value_can_be_looked_at() -> None:
    content = json.loads(to_value(ledger(1), **WHERE))
    assert content["positions"] == {"main": "0/5"}
    assert content["stream"] == {"name": "app", "created": "2026-11-19T00:00:00Z", "last": 1042}


@pytest.mark.parametrize("value", [b"", b"{]", b"[]", b'{"format":1}', b"\x78\x9c\x00"])
def test_a_damaged_value_is_refused(value: bytes) -> None:
    with pytest.raises(SinkError, match="is damaged") as damaged:
        from_value(value, **WHERE)
    assert damaged.value.code == "TRK738"


@pytest.mark.parametrize("other", [{"project": "q"}, {"connection": "rail"}])
def test_a_value_of_another_project_or_connection_is_refused(other: dict[str, str]) -> None:
    with pytest.raises(SinkError, match=re.escape("belongs to")) as foreign:
        from_value(to_value(ledger(1), **WHERE), **{**WHERE, **other})
    assert foreign.value.code == "TRK738"


def test_a_value_of_another_version_is_refused() -> None:
    content = {**json.loads(to_value(ledger(1), **WHERE)), "format": 2}
    with pytest.raises(SinkError, match="another version"):
        from_value(json.dumps(content).encode(), **WHERE)
