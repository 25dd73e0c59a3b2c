"""The walsender's frames, from bytes to values and back; no socket here.

Inside CopyData, all numbers big-endian, clocks in µs since 2000-01-01:

    from the server                                  to the server
    'w' XLogData                                     'r' Standby status update
    0   1   'w'                                      0   1   'r'
    1   8   LSN of the data                          1   8   LSN written
    9   8   LSN of the WAL's end                     9   8   LSN flushed: what the slot may forget
    17  8   the server's clock                       17  8   LSN applied
    25  …   one message of the plug-in               25  8   the client's clock
                                                     33  1   1: please answer
    'k' Keep-alive
    0   1   'k'
    1   8   LSN up to which everything has been sent
    9   8   the server's clock
    17  1   1: please answer

A logical message (pgoutput 'M'), as heartbeats are:

    0   1   'M'
    1   1   flags: 1 transactional
    2   8   LSN
    10  …   prefix, zero-ended; then its length (4) and the content
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from trucker.lsn import Lsn

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
XLOG_HEADER: Final = 25
EPOCH: Final = 946_684_800_000_000
HEARTBEAT: Final = "trucker.heartbeat"

# Longer than wal_sender_timeout's default: by then the server has noticed that our own old connection is dead.
SLOT_SECONDS: Final = 90.0

_KEEPALIVE = struct.Struct(">xQqB")
_STATUS = struct.Struct(">cQQQqB")
_HEARTBEAT_START = b"M\x00"
_HEARTBEAT_PREFIX = HEARTBEAT.encode() + b"\0"


class ProtocolError(ValueError):
    """Bytes that are no frame of the walsender's."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Everything up to `wal_end` has been sent. `sent_at` is the server's clock, µs since 1970."""

    wal_end: Lsn
    sent_at: int
    reply: bool


def parse_keepalive(frame: bytes | memoryview) -> Keepalive:
    """A keep-alive; `ProtocolError` for anything else."""
    if len(frame) != _KEEPALIVE.size or frame[0] != KEEPALIVE:
        raise ProtocolError(f"a frame of {len(frame)} bytes that is neither data nor a keep-alive")
    wal_end, sent_at, reply = _KEEPALIVE.unpack(frame)
    return Keepalive(Lsn(wal_end), sent_at + EPOCH, bool(reply))


def message_of(frame: bytes | memoryview) -> bytes:
    """The plug-in's message inside an XLogData frame; `ProtocolError` where there is none."""
    if len(frame) <= XLOG_HEADER or frame[0] != XLOG_DATA:
        raise ProtocolError(f"a frame of {len(frame)} bytes that contains no message")
    return bytes(frame[XLOG_HEADER:])


def status_update(lsn: Lsn, now: int, *, reply: bool = False) -> bytes:
    """Everything below `lsn` is written, flushed and applied; `now` is µs since 1970."""
    return _STATUS.pack(b"r", lsn, lsn, lsn, now - EPOCH, reply)


def heartbeat_content(message: bytes) -> bytes | None:
    """What one of trucker's heartbeats carries; None for any other message."""
    if not message.startswith(_HEARTBEAT_START) or not message.startswith(_HEARTBEAT_PREFIX, 10):
        return None
    return message[10 + len(_HEARTBEAT_PREFIX) + 4 :]


def start_replication(slot: str, start: Lsn, publication: str) -> bytes:
    """The command that begins the stream at `start`, or where the slot is if that is later."""
    # The option's value is a list of SQL identifiers, which then becomes a SQL string.
    names = _literal(_identifier(publication))
    return (
        f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL {start} "
        f"(proto_version '1', publication_names {names}, messages 'true')"
    ).encode()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
