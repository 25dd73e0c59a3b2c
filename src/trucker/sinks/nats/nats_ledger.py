"""The ledger of a stream: a value of a key-value bucket beside it.

    bucket  trucker_<stream>                  (nats kv get trucker_app ledger)
    key     ledger
    value   {"format":1,"project":…,"connection":…,"positions":{…},"tables":[…],
             "stream":{"name":…,"created":…,"last":1042},"unfinished":[[901,950]]}

`last` is the stream's last sequence when the ledger was stored: what is behind it was written by a delivery that was
not finished. `unfinished` has the ranges of sequences of such deliveries in which there are events that may come again,
because their trucks' positions are not past them yet. A large value is compressed (zlib).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from trucker.errors import SinkError
from trucker.sinks.ledger import Ledger
from trucker.sinks.ledger_file import ledger_from_json, ledger_to_json
from trucker.sinks.nats.nats_errors import OTHER_LEDGER

FORMAT: Final = 1
KEY: Final = "ledger"
_COMPRESS: Final = 256 * 1024

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StreamLedger:
    """What is stored. `created` and `last` are empty before anything was written."""

    ledger: Ledger = field(default_factory=Ledger)
    created: str = ""
    last: int = 0
    unfinished: tuple[Range, ...] = ()


def bucket_of(stream: str) -> str:
    return f"trucker_{stream}"


def ledger_stream(stream: str) -> str:
    """The stream beneath the bucket."""
    return f"KV_{bucket_of(stream)}"


def ledger_subject(stream: str) -> str:
    return f"$KV.{bucket_of(stream)}.{KEY}"


def to_value(stored: StreamLedger, *, project: str, connection: str, stream: str) -> bytes:
    content = {
        "format": FORMAT,
        "project": project,
        "connection": connection,
        **ledger_to_json(stored.ledger),
        "stream": {"name": stream, "created": stored.created, "last": stored.last},
        "unfinished": [list(each) for each in stored.unfinished],
    }
    value = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.compress(value, 3) if len(value) > _COMPRESS else value


def from_value(value: bytes, *, project: str, connection: str, stream: str) -> StreamLedger:
    """What a value says. Raises `SinkError` where it is damaged, or another project's or connection's."""
    content = _content(value, stream)
    if content["format"] != FORMAT:
        raise SinkError(
            f"the ledger of stream {stream} (bucket {bucket_of(stream)}) was written by another version of trucker",
            remedy="use the version that wrote it, or another stream",
            code=OTHER_LEDGER,
        )
    for what, expected in (("project", project), ("connection", connection)):
        if content[what] != expected:
            raise SinkError(
                f"stream {stream} belongs to {what} {content[what]!r}, not to {expected!r}",
                remedy="use a separate stream for each project and connection, or set the name or unique_id back",
                code=OTHER_LEDGER,
            )
    state = content["stream"]
    unfinished = tuple((int(first), int(last)) for first, last in content["unfinished"])
    return StreamLedger(ledger_from_json(content), str(state["created"]), int(state["last"]), unfinished)


def _content(value: bytes, stream: str) -> dict[str, Any]:
    try:
        content = json.loads(value if value.startswith(b"{") else zlib.decompress(value))
        if isinstance(content, dict) and {"format", "project", "connection", "stream", "unfinished"} <= content.keys():
            return content
    except (ValueError, zlib.error):
        pass
    raise SinkError(
        f"the ledger of stream {stream} is damaged: key {KEY} of bucket {bucket_of(stream)} is not a ledger",
        remedy=f"restore it (nats kv history {bucket_of(stream)} {KEY}), or remove the bucket and the stream: trucker "
        "then copies its tables again",
        code=OTHER_LEDGER,
    )
