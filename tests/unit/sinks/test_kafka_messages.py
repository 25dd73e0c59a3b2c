"""What the Kafka sink makes without a broker: the records of its ledger, headers, names, settings, and errors."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trucker.adapters.kafka import KafkaConnection
from trucker.errors import DataError, SinkError, SinkRefused, SinkUnavailable
from trucker.lsn import Lsn
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Phase
from trucker.sinks.event import EVENT_OPERATIONS, NO_TABLE, Events, event_headers
from trucker.sinks.kafka.failure import KafkaFailures
from trucker.sinks.kafka.library import LibraryLog, client_settings, producer_settings, reader_settings
from trucker.sinks.kafka.message import batch_size, headers
from trucker.sinks.kafka.positions import ledger_of, records
from trucker.sinks.kafka.sink import KafkaSink
from trucker.sinks.ledger import Entry, Ledger
from trucker.table import TableId


def connection(**more: Any) -> KafkaConnection:
    return KafkaConnection.model_validate({"name": "stream", "adapter": "kafka", "servers": "h:9092", **more})


def sink(project: str = "shop", **more: Any) -> KafkaSink:
    return KafkaSink(connection(**more), Workspace(project, Path("unused")))


# -- the ledger --------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "ž.\n", '"'])
lsns = st.integers(0, 2**64 - 1).map(Lsn)
tables = st.builds(TableId, names, names)
entries = st.builds(
    Entry, st.sampled_from(Phase), lsns, st.none() | tables, st.sampled_from(["", "first-1", "first-2#9"])
)
ledgers = st.builds(
    Ledger, st.dictionaries(names, lsns), st.dictionaries(st.tuples(names, tables), entries, max_size=4)
)


@given(st.lists(ledgers, max_size=5))
def test_the_last_records_of_the_topic_are_the_ledger(history: list[Ledger]) -> None:
    """Whatever is compacted away: only the last record of a key counts."""
    stored: list[tuple[bytes, bytes | None]] = []
    before = Ledger()
    for after in history:
        stored += records("shop", before, after)
        before = after
    assert ledger_of(stored, "shop", "t") == before
    assert ledger_of(list(dict(stored).items()), "shop", "t") == before


@given(ledgers)
def test_a_ledger_that_stays_writes_nothing(ledger: Ledger) -> None:
    assert list(records("shop", ledger, Ledger(dict(ledger.positions), dict(ledger.entries)))) == []


@pytest.mark.parametrize("value", [b"", b"x", b"[]", b"{}", b'{"project":"shop","lsn":7}', b'{"project":"shop"}'])
def test_a_record_of_somebody_else_is_refused(value: bytes) -> None:
    with pytest.raises(SinkError, match="no position of this version") as caught:
        ledger_of([(b'{"truck":"orders"}', value)], "shop", "t")
    assert caught.value.code == "TRK727"


# -- messages ----------------------------------------------------------------------------------------------------------


def test_headers_made_by_column_are_those_of_each_event() -> None:
    count = len(EVENT_OPERATIONS) * 2
    events = Events(
        pa.array(["{}"] * count, pa.large_string()),
        pa.array([None] * count, pa.large_string()),
        pa.array([f"0/A/{number}" for number in range(count)], pa.large_string()),
        (TableId("public", "a"), TableId("s", "b"), NO_TABLE),
        np.arange(count, dtype=np.int32) % 3,
        (np.arange(count) % len(EVENT_OPERATIONS)).astype(np.uint8),
        np.repeat(np.array([10, 2**40], np.uint64), count // 2),
        np.arange(count, dtype=np.int64) - 1,
        False,
    )
    assert list(headers(events)) == [event_headers(event) for event in events.rows()]


@pytest.mark.parametrize(("length", "size"), [(0, 68), (1, 69), (63, 132), (64, 134), (8191, 8262), (8192, 8264)])
def test_the_size_of_a_message_counts_its_lengths(length: int, size: int) -> None:
    assert batch_size(b"x" * length, None, []) == size


# -- names and settings ------------------------------------------------------------------------------------------------


def test_names_are_of_project_and_connection() -> None:
    assert sink().transactional_id == "trucker.shop.stream"
    assert sink().positions_topic == "trucker.positions.shop.stream"
    assert sink().topic_of("orders", TableId("public", "item")) == "public.item"
    assert sink().topic_of("orders", NO_TABLE) == "trucker.transactions.orders"
    assert sink(topic="a.{{ truck }}.{{ table | upper }}").topic_of("o", TableId("public", "item")) == "a.o.ITEM"


def test_events_and_positions_do_not_share_a_topic() -> None:
    with pytest.raises(SinkError, match="which is that of positions") as caught:
        sink(positions_topic="public.item").topic_of("orders", TableId("public", "item"))
    assert caught.value.code == "TRK724"


def test_a_project_whose_name_is_no_topic_has_positions_of_its_own() -> None:
    one, other = (sink(project).positions_topic for project in ("my shop", "my/shop"))
    assert one != other
    assert one.startswith("trucker.positions.my_shop.stream.")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"settings": {"acks": "1"}}, "acks is not free to set"),
        ({"settings": {"sasl.password": "x"}}, "has a key of its own"),
        ({"security": "sasl_ssl"}, "needs a user and a password"),
        ({"user": "u", "pass": "p"}, "not used with security"),
        ({"topic": "{{ nothing }}"}, "cannot be used"),
        ({"topic": "{{ table"}, "cannot be used"),
        ({"positions_topic": "a b"}, "pattern"),
    ],
)
def test_settings_that_make_no_sense_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        connection(**more)


def test_secrets_are_in_the_clients_settings_and_nowhere_else() -> None:
    given_ = connection(
        security="sasl_ssl", user="u", key_pass="hidden-key", tls={"key": "k.pem"}, **{"pass": "hidden"}
    )
    settings = client_settings(given_)
    assert (settings["sasl.password"], settings["ssl.key.password"]) == ("hidden", "hidden-key")
    assert "hidden" not in f"{given_!r} {given_}"
    assert KafkaConnection.secret_keys() == {"pass": "password", "key_pass": "key_pass"}
    oauth = connection(security="sasl_ssl", sasl="OAUTHBEARER", user="u", **{"pass": "hidden"})
    assert client_settings(oauth)["sasl.oauthbearer.client.secret"] == "hidden"


def test_free_settings_do_not_undo_what_trucker_needs() -> None:
    settings = producer_settings(connection(settings={"linger.ms": 50, "compression.type": "zstd"}), "id")
    assert (settings["linger.ms"], settings["compression.type"]) == (50, "zstd")
    assert settings["enable.idempotence"] is True
    assert "compression.type" not in reader_settings(
        connection(settings={"compression.type": "zstd"}), "read_committed"
    )


def test_a_sink_travels_before_it_is_opened() -> None:
    again: KafkaSink = pickle.loads(pickle.dumps(sink()))
    assert again.positions_topic == sink().positions_topic


# -- errors and log lines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected", "kind"),
    [
        (KafkaError._TRANSPORT, "TRK720", SinkUnavailable),
        (KafkaError._TIMED_OUT, "TRK720", SinkUnavailable),
        (KafkaError._AUTHENTICATION, "TRK721", SinkRefused),
        (KafkaError._SSL, "TRK721", SinkRefused),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TRK723", SinkRefused),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "TRK723", SinkRefused),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "TRK724", SinkError),
        (KafkaError.POLICY_VIOLATION, "TRK724", SinkError),
        (KafkaError.INVALID_RECORD, "TRK724", SinkError),
        (KafkaError.MSG_SIZE_TOO_LARGE, "TRK725", DataError),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, "TRK726", SinkError),
        (KafkaError._INVALID_ARG, "TRK728", SinkError),
        (KafkaError.INVALID_TXN_STATE, "TRK729", SinkUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, "TRK729", SinkUnavailable),
    ],
)
def test_each_error_has_a_code_and_a_next_step(code: int, expected: str, kind: type[SinkError]) -> None:
    error = KafkaFailures(connection()).of(KafkaError(code), "sending", "a")
    assert (error.code, type(error)) == (expected, kind)
    assert error.remedy
    assert "connection stream" in error.message


def test_log_lines_of_the_library_have_no_secret_and_do_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="trucker.sink")
    log = LibraryLog(connection(security="sasl_plaintext", user="u", **{"pass": "hidden"}))
    for number in range(3):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "x", f"password hidden refused after {number} ms")
    log.log(logging.INFO, "a detail")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, *[logging.DEBUG] * 3]
    assert "hidden" not in "".join(json.dumps(str(record.__dict__)) for record in caplog.records)
