"""librdkafka's settings, its log, and what it reports on the side.

The library reports lost connections, refused log-ins and messages that were not delivered by callbacks, which run
inside `poll`; `Reports` keeps them for the caller to ask. No object here refers to a client, so that one that is no
longer used goes at once, with its threads and its queue.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any, Final

from confluent_kafka import KafkaError

from trucker.adapters.kafka import KafkaConnection

log = logging.getLogger("trucker.sink")

REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
"""The broker does not accept who we are, or we not who it is."""

# Messages of a transaction that another one of it has made fail.
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_QUEUE_MESSAGES: Final = 50_000
_QUEUE_KIB: Final = 64 * 1024
_LARGEST_MESSAGE: Final = 60 * 1024 * 1024
_SAME_LINE_SECONDS: Final = 60.0


class LibraryLog:
    """librdkafka's log lines, as records of trucker's. A line that comes again within a minute is a detail, and so is
    all that is less than an error: what matters of it is in the error that follows."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection.name
        self._secrets = [
            secret.get_secret_value()
            for secret in (connection.password, connection.key_pass)
            if secret is not None and secret.get_secret_value()
        ]
        self._seen: dict[str, float] = {}

    def log(self, level: int, text: str, *arguments: Any, **_: Any) -> None:
        line = self.without_secrets(text % arguments if arguments else text)
        again = re.sub(r"\d+", "#", line)
        now = time.monotonic()
        last = self._seen.get(again)
        fresh = level >= logging.ERROR and (last is None or now - last > _SAME_LINE_SECONDS)
        if fresh:
            self._seen[again] = now
        log.log(
            logging.WARNING if fresh else logging.DEBUG,
            "message of the library",
            extra={"connection": self._connection, "text": line},
        )

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text


class Reports:
    """What the callbacks of one client were told."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        self.undelivered: list[tuple[KafkaError, str]] = []
        """Why a message was not delivered, and its topic; the first few."""

    def on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self.refusal = error

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and error.code() not in _PURGED and len(self.undelivered) < 16:
            self.undelivered.append((error, message.topic() or ""))


def client_settings(connection: KafkaConnection) -> dict[str, Any]:
    """What every client of the connection is made with."""
    settings: dict[str, Any] = {
        "client.id": f"trucker-{connection.name}",
        "reconnect.backoff.max.ms": 1000,
        "socket.connection.setup.timeout.ms": int(min(connection.timeout, 30) * 1000),
        "log.connection.close": False,
        **connection.settings,
        "bootstrap.servers": ",".join(connection.servers),
        "security.protocol": connection.security,
    }
    if connection.security.startswith("sasl"):
        settings |= _login(connection)
    if connection.security.endswith("ssl"):
        tls = connection.tls
        named = {"ssl.ca": tls.authority, "ssl.certificate": tls.certificate, "ssl.key": tls.key}
        settings |= {f"{name}.location": str(path) for name, path in named.items() if path is not None}
        if connection.key_pass is not None:
            settings["ssl.key.password"] = connection.key_pass.get_secret_value()
    return settings


def _login(connection: KafkaConnection) -> dict[str, Any]:
    password = connection.password.get_secret_value() if connection.password is not None else None
    names = ("sasl.username", "sasl.password")
    if connection.sasl == "OAUTHBEARER":
        names = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
    given = {name: value for name, value in zip(names, (connection.user, password), strict=True) if value is not None}
    return {"sasl.mechanism": connection.sasl, **given}


def producer_settings(connection: KafkaConnection, transactional_id: str) -> dict[str, Any]:
    """The order of a key holds, as its partition follows from it; events without a key are all in one partition."""
    return {
        "linger.ms": 5,
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KIB,
        "message.max.bytes": _LARGEST_MESSAGE,
        **client_settings(connection),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": int(connection.transaction_timeout * 1000),
        "enable.idempotence": True,
        "partitioner": "murmur2",
        "delivery.report.only.error": True,
    }


def reader_settings(connection: KafkaConnection, isolation: str) -> dict[str, Any]:
    """Of a consumer of one partition, which commits no offset and joins no group."""
    unknown = ("linger.ms", "compression", "queue.buffering", "batch.", "message.timeout", "retries")
    settings = {name: value for name, value in client_settings(connection).items() if not name.startswith(unknown)}
    return {
        **settings,
        "group.id": f"trucker-{connection.name}",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 20,
    }
