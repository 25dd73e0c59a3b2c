"""Topics: whether they are there, what they take, and making them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, ResourceType

from trucker.adapters.kafka import KafkaConnection
from trucker.errors import SinkError, SinkUnavailable
from trucker.sinks.kafka.failure import NO_TOPIC, KafkaFailures
from trucker.sinks.kafka.library import LibraryLog, Reports, client_settings
from trucker.sinks.kafka.patience import Patience

T = TypeVar("T")

LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OF_POSITIONS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 * 1024 * 1024),
}
_OF_ADMIN: Final = ("bootstrap", "broker.", "client", "debug", "log", "reconnect", "sasl", "security", "socket", "ssl")
_BROKER_DECIDES: Final = -1


class Topics:
    """The topics of a cluster. Knows those that it has seen."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._failures = KafkaFailures(connection)
        self._reports = Reports()
        self._there: set[str] = set()
        self._configured: dict[str, Mapping[str, str]] = {}
        settings: dict[str, Any] = {
            name: value for name, value in client_settings(connection).items() if name.startswith(_OF_ADMIN)
        }
        settings["error_cb"] = self._reports.on_error
        try:
            self._client = AdminClient(settings, logger=LibraryLog(connection))
        except KafkaException as error:
            raise self._failures.wrong_settings(error.args[0]) from None

    def cluster(self) -> int:
        """How many brokers there are; raises where none can be reached."""
        described = self._answer(
            lambda: self._client.describe_cluster(request_timeout=self._connection.timeout), "connecting"
        )
        return len(described.nodes)

    def ensure(self, topic: str, *, positions: bool = False) -> None:
        """Have the topic, or raise."""
        if topic in self._there:
            return
        if not self.look(topic, positions=positions):
            if not self._connection.create_topics:
                raise self._failures.no_topic(topic)
            self._create(topic, positions=positions)
        self._there.add(topic)

    def refusal(self, topic: str, *, positions: bool = False) -> SinkError | None:
        """What `ensure` would raise; creates nothing."""
        try:
            if not self.look(topic, positions=positions):
                if not self._connection.create_topics:
                    return self._failures.no_topic(topic)
                self._create(topic, positions=positions, validate=True)
        except SinkUnavailable as error:
            if error.code != "TRK723":
                raise
            return error
        except SinkError as error:
            return error
        return None

    def look(self, topic: str, *, positions: bool = False) -> bool:
        """Whether the topic is there. Raises where it may not be written, or does not keep positions."""
        collection = TopicCollection([topic])

        def describe() -> Future[Any]:
            futures = self._client.describe_topics(
                collection, include_authorized_operations=True, request_timeout=self._connection.timeout
            )
            future: Future[Any] = futures[topic]
            return future

        try:
            described = self._answer(describe, "looking for topics", topic, absent=True)
        except KafkaException:
            return False
        allowed = described.authorized_operations
        needed = {AclOperation.WRITE, AclOperation.READ} if positions else {AclOperation.WRITE}
        if allowed and AclOperation.ALL not in allowed and not needed <= {*allowed}:
            raise self._failures.of(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "writing", topic)
        if positions:
            self._refuse_forgetful(topic)
        return True

    def _refuse_forgetful(self, topic: str) -> None:
        """Positions that are deleted by age would have everything copied again."""
        policy = self._configuration(topic).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise SinkError(
                f"connection {self._connection.name}: topic {topic} loses positions, as its cleanup.policy is {policy}",
                remedy=f"run: kafka-configs.sh --bootstrap-server {self._connection.servers[0]} --alter --topic "
                f"{topic} --add-config cleanup.policy=compact",
                code="TRK727",
            )

    def limit(self, topic: str, *, anew: bool = False) -> int | None:
        """The largest batch that the topic takes, in bytes; None where that may not be asked."""
        if anew:
            self._configured.pop(topic, None)
        text = self._known(topic).get("max.message.bytes")
        return int(text) if text else None

    def needs_keys(self, topic: str) -> bool:
        """Whether the topic is compacted, and refuses a whole transaction for one message without a key."""
        return "compact" in self._known(topic).get("cleanup.policy", "")

    def _known(self, topic: str) -> Mapping[str, str]:
        if topic not in self._configured:
            self._configured[topic] = self._configuration(topic)
        return self._configured[topic]

    def _configuration(self, topic: str) -> Mapping[str, str]:
        """What is known of the topic's configuration: nothing without the right to ask."""
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def describe() -> Future[Any]:
            futures = self._client.describe_configs([resource], request_timeout=self._connection.timeout)
            future: Future[Any] = futures[resource]
            return future

        try:
            entries = self._answer(describe, "reading a topic's configuration", topic, absent=True)
        except KafkaException:
            return {}
        except SinkUnavailable as error:
            if error.code != "TRK723":
                raise
            return {}
        return {name: entry.value for name, entry in entries.items()}

    def _create(self, topic: str, *, positions: bool, validate: bool = False) -> None:
        connection = self._connection
        partitions = 1 if positions else connection.partitions or _BROKER_DECIDES
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=connection.replication or _BROKER_DECIDES,
            config=_OF_POSITIONS if positions else connection.topic_settings,
        )

        def create() -> Future[Any]:
            futures = self._client.create_topics(
                [new], request_timeout=connection.timeout, operation_timeout=connection.timeout, validate_only=validate
            )
            future: Future[Any] = futures[topic]
            return future

        self._answer(create, "creating topics", topic, there=True)

    def _answer(self, ask: Any, doing: str, topic: str = "", *, absent: bool = False, there: bool = False) -> Any:
        """What the brokers answer. `absent`: a topic that is not there is a `KafkaException`; `there`: one that is
        there already is as good."""
        patience = Patience(self._connection.timeout + 1)
        self._reports.refusal = None
        future = ask()
        while not future.done():
            self._client.poll(0.02)
            if self._reports.refusal is not None:
                raise self._failures.refused(self._reports.refusal)
            if patience.over:
                raise self._failures.away(doing)
        try:
            return future.result()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if there and reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return None
            if absent and reason.code() in NO_TOPIC:
                raise
            if self._reports.refusal is not None:
                raise self._failures.refused(self._reports.refusal) from None
            raise self._failures.of(reason, doing, topic) from None
