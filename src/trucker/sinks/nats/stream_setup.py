"""The stream of a connection and the bucket beside it: how they are created, and what is wrong with one that is
there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trucker.adapters.nats import NatsConnection, Retention, StreamSettings
from trucker.errors import SinkError
from trucker.finding import Finding, Level
from trucker.sinks.nats.nats_errors import OTHER_STREAM, UNTAKEN
from trucker.sinks.nats.nats_ledger import StreamLedger, bucket_of, ledger_stream
from trucker.sinks.nats.nats_session import StreamStatus
from trucker.sinks.nats.subjects import is_taken

_NANOSECONDS = 1_000_000_000


def stream_config(connection: NatsConnection) -> dict[str, Any]:
    """The stream that trucker creates."""
    settings = connection.stream
    return {
        "name": settings.name,
        "subjects": [*connection.stream_subjects, *_marks(connection)],
        "storage": settings.storage,
        "num_replicas": settings.replicas,
        "retention": settings.retention.value,
        "discard": settings.discard,
        "max_age": int((settings.max_age or 0) * _NANOSECONDS),
        "max_bytes": settings.max_bytes or -1,
        "max_msgs": settings.max_messages or -1,
        "duplicate_window": int(_window(settings) * _NANOSECONDS),
        "allow_direct": True,
        "description": f"changes of PostgreSQL, written by trucker; its ledger is in bucket {bucket_of(settings.name)}",
    }


def bucket_config(stream: StreamStatus) -> dict[str, Any]:
    """The bucket of the ledger: as safe as the stream is."""
    name = str(stream.config["name"])
    return {
        "name": ledger_stream(name),
        "subjects": [f"$KV.{bucket_of(name)}.>"],
        "storage": stream.config.get("storage", "file"),
        "num_replicas": stream.config.get("num_replicas", 1),
        "max_msgs_per_subject": 5,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "description": f"how far trucker has got in stream {name}",
    }


def is_behind(stored: StreamLedger, stream: StreamStatus | None) -> bool:
    """Whether the stream that the ledger counts messages of ends before the last of them."""
    return stream is not None and stream.created == stored.created and stream.last < stored.last


def different_stream(stored: StreamLedger, stream: StreamStatus | None, name: str) -> SinkError | None:
    """Why the stream is not the one that the ledger counts messages of."""
    same = stream is not None and stream.created == stored.created and not is_behind(stored, stream)
    if same or not stored.created:
        return None
    if stream is None:
        what = "was deleted"
    elif stream.created != stored.created:
        what = "was deleted and created again"
    else:
        what = f"has lost messages: it ends at {stream.last}, and trucker has written up to {stored.last}"
    return SinkError(
        f"stream {name} {what}, so that changes are missing in it",
        remedy=f"restore it; or remove what trucker stored of it (nats kv rm {bucket_of(name)}), then `trucker run`, "
        "which copies its tables again",
        code=OTHER_STREAM,
    )


def untaken(name: str, subjects: Sequence[str], subject: str) -> SinkError | None:
    """Why the stream does not take messages of a subject."""
    if is_taken(subjects, subject):
        return None
    return SinkError(
        f"stream {name} does not take the subject {subject}",
        remedy=f"run: nats stream edit {name} --subjects='{','.join([*subjects, subject])}'; or change `subject` of "
        "the connection",
        code=UNTAKEN,
    )


def differences(connection: NatsConnection, stream: StreamStatus) -> Iterator[Finding]:
    """In what a stream that is there differs from what the connection says, and what follows."""
    subject = f"connection {connection.name}"
    config, settings = stream.config, connection.stream
    given = {_KEYS[key]: key for key in settings.model_fields_set if key in _KEYS}
    expected = stream_config(connection)
    other = sorted(key for key, setting in given.items() if config.get(key) != expected[key] and setting)
    if other:
        names = ", ".join(given[key] for key in other)
        yield Finding(
            Level.WARNING,
            subject,
            f"stream {settings.name} is there and has other settings than the connection: {names}",
            f"trucker does not change it; run `nats stream edit {settings.name}`, or correct the connection",
        )
    if config.get("retention") != Retention.LIMITS.value or config.get("max_msgs_per_subject", -1) > 0:
        yield Finding(
            Level.WARNING,
            subject,
            f"stream {settings.name} removes messages that consumers have taken, or older ones of a subject: after a "
            "crash those of the batch that was interrupted come again",
            "use a stream with retention limits, and none per subject, where events must come exactly once",
        )


_KEYS: Mapping[str, str] = {
    "storage": "storage",
    "replicas": "num_replicas",
    "retention": "retention",
    "discard": "discard",
    "max_age": "max_age",
    "max_bytes": "max_bytes",
    "max_messages": "max_msgs",
    "duplicate_window": "duplicate_window",
}


def _window(settings: StreamSettings) -> float:
    """The server wants it no longer than the age of messages."""
    return min(settings.duplicate_window, settings.max_age or settings.duplicate_window)


def _marks(connection: NatsConnection) -> list[str]:
    subject = connection.mark_subject
    return [] if is_taken(connection.stream_subjects, subject) or not connection.transactions else [subject]
