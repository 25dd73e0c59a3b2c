"""What the failures of a NATS server mean, and what to do. No message quotes an event."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, Final

import nats.errors

from trucker.errors import SinkError, SinkRefused, SinkUnavailable

UNAVAILABLE: Final = "TRK730"
REFUSED: Final = "TRK731"
FORBIDDEN: Final = "TRK732"
API: Final = "TRK733"
OTHER_STREAM: Final = "TRK734"
UNTAKEN: Final = "TRK735"
TOO_LARGE: Final = "TRK736"
FULL: Final = "TRK737"
OTHER_LEDGER: Final = "TRK738"
OTHER_WRITER: Final = "TRK739"

# Error codes of the server's JetStream API.
NO_STREAM: Final = 10059
NOBODY: Final = -2
"""Ours: nobody has answered a message."""
WRONG_LAST: Final = frozenset({10071, 10164})
_MESSAGE_TOO_LARGE: Final = 10054
_FULL: Final = frozenset({10002, 10023, 10047, 10077, 10028, 10122})
_NO_JETSTREAM: Final = frozenset({10039, 10076})
_PASSING: Final = frozenset({10008, 10009, 10024, 10074})


class NatsApiError(Exception):
    """The server's answer to a request or a message is an error, with its code."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.number = int(answer.get("err_code") or 0)
        self.status = int(answer.get("code") or 0)
        self.description = str(answer.get("description") or "no description")
        super().__init__(self.description)


def unavailable(place: str, reason: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"{place}: {reason}",
        remedy="start the server, or check `servers` of the connection and the network; trucker retries",
        code=UNAVAILABLE,
    )


def refused(place: str, reason: str) -> SinkRefused:
    return SinkRefused(
        f"{place}: the server does not accept the credentials: {reason}",
        remedy="check `user` and `pass`, `token`, `nkey` or `creds` of the connection; a file that a key with _path "
        "names is read again at each attempt",
        code=REFUSED,
    )


def forbidden(place: str, violation: str) -> SinkRefused:
    return SinkRefused(
        f"{place}: the user's rights are not enough: {violation}",
        remedy="allow the user the subjects of the events, $KV.>, $JS.API.> and _INBOX.> (docs/reference/sinks/nats.md "
        "has the exact list); trucker retries",
        code=FORBIDDEN,
    )


def connect_failure(place: str, error: BaseException) -> SinkError:
    """What it means that a connection cannot be made."""
    reason = str(error).removeprefix("nats: ").strip("'\" ")
    low = reason.lower()
    if any(word in low for word in ("authoriz", "authenticat", "expired", "revoked", "credential")):
        return refused(place, reason)
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkRefused(
            f"{place}: the server's certificate is not accepted: {error.verify_message}",
            remedy="set `tls.root_certificate` to the authority that signed it, and use the name that it is for",
            code=REFUSED,
        )
    if isinstance(error, TimeoutError):
        reason = "no answer in time"
    elif isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else error.strerror or type(error).__name__
    elif isinstance(error, nats.errors.NoServersError):
        reason = "no server can be reached"
    return unavailable(place, reason or type(error).__name__)


def api_failure(place: str, error: NatsApiError, stream: str) -> SinkError:
    """What an error of the API or of a message means."""
    said = f"{place}: the server answers: {error.description} (error {error.number})"
    if error.number == NO_STREAM:
        return SinkUnavailable(
            f"{place}: there is no stream {stream}", remedy="none needed: trucker creates it", code=UNTAKEN
        )
    if error.number == NOBODY:
        return SinkUnavailable(
            f"{place}: stream {stream} does not take an event, because it has no leader for now, or not its subject",
            remedy=f"compare its subjects (nats stream info {stream}) with the connection's `subject`; trucker retries",
            code=UNTAKEN,
        )
    if error.number in _FULL:
        return SinkUnavailable(
            f"{place}: stream {stream} has no room: {error.description}",
            remedy=f"raise the limit (nats stream edit {stream} --max-bytes=…), let consumers take messages, or free "
            "disk space; trucker waits, and nothing is lost",
            code=FULL,
        )
    if error.number in WRONG_LAST:
        return SinkUnavailable(
            f"{place}: another program writes to stream {stream}, or an earlier connection's messages came late",
            remedy=f"give stream {stream} to trucker alone, and run one instance of the project; trucker reads the "
            "stream again and retries",
            code=OTHER_WRITER,
        )
    if error.number == _MESSAGE_TOO_LARGE:
        return SinkError(
            f"{place}: an event is larger than stream {stream} takes (max_msg_size)",
            remedy=f"run: nats stream edit {stream} --max-msg-size=-1",
            code=TOO_LARGE,
        )
    if error.number in _NO_JETSTREAM:
        return SinkUnavailable(
            f"{place}: {error.description}",
            remedy="enable JetStream (`jetstream {}` in the server's configuration), and for the account",
            code=API,
        )
    if error.number in _PASSING or error.status == 503:
        return SinkUnavailable(said, remedy="none needed: trucker retries", code=API)
    return SinkError(said, remedy="change what the message names, at the server or in the connection", code=API)
