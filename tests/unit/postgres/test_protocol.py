"""The walsender's frames."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.wal import message
from trucker.lsn import Lsn
from trucker.postgres.replication.protocol import (
    EPOCH,
    HEARTBEAT,
    ProtocolError,
    heartbeat_content,
    message_of,
    parse_keepalive,
    start_replication,
    status_update,
)

LSNS = st.integers(0, 2**64 - 1)


def test_lsn_text() -> None:
    assert str(Lsn.parse("16/B374D848")) == "16/B374D848"
    assert Lsn.parse("16/B374D848") == 0x16B374D848


@given(LSNS, st.integers(0, 2**50), st.booleans())
def test_keepalive(lsn: int, clock: int, reply: bool) -> None:
    found = parse_keepalive(struct.pack(">cQqB", b"k", lsn, clock, reply))
    assert (found.wal_end, found.sent_at, found.reply) == (lsn, clock + EPOCH, reply)


@given(st.binary(max_size=40))
def test_anything_else_is_refused_with_a_name(data: bytes) -> None:
    if len(data) != 18 or data[:1] != b"k":
        with pytest.raises(ProtocolError):
            parse_keepalive(data)
    if len(data) <= 25 or data[:1] != b"w":
        with pytest.raises(ProtocolError):
            message_of(data)


def test_message_of_a_frame() -> None:
    assert message_of(memoryview(b"w" + bytes(24) + b"B...")) == b"B..."


@given(LSNS)
def test_status_update(lsn: int) -> None:
    data = status_update(Lsn(lsn), EPOCH + 5)
    assert struct.unpack(">cQQQqB", data) == (b"r", lsn, lsn, lsn, 5, 0)
    assert len(data) == 34


def test_names_are_quoted_for_the_command() -> None:
    command = start_replication("slot", Lsn.parse("1/2A"), 'it\'s "mine"')
    assert command == (
        b'START_REPLICATION SLOT "slot" LOGICAL 1/2A '
        b"(proto_version '1', publication_names '\"it''s \"\"mine\"\"\"', messages 'true')"
    )


def test_heartbeats_are_distinguished_from_other_messages() -> None:
    assert heartbeat_content(message(5, HEARTBEAT, b"12.5")) == b"12.5"
    assert heartbeat_content(message(5, HEARTBEAT, b"12.5", transactional=True)) is None
    assert heartbeat_content(message(5, HEARTBEAT + "x", b"12.5")) is None
    assert heartbeat_content(message(5, "other")) is None
    assert heartbeat_content(b"B") is None
