"""What an error of the library means for a truck. No message of a row is in it: brokers do not quote them."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from trucker.adapters.kafka import KafkaConnection
from trucker.errors import DataError, SinkError, SinkRefused, SinkUnavailable
from trucker.sinks.kafka.library import REFUSALS, LibraryLog

RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Write, Describe and DescribeConfigs on the topics of events, Read too on "
    "that of positions, and with create_topics Create on both",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Create on the cluster, or create the topics with create_topics: false",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write and Describe on the transactional id",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read on the consumer group trucker-<connection>",
}
FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
TOO_LARGE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
)
NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
UNFIT_TOPIC: Final = frozenset(
    {KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_REPLICATION_FACTOR}
)
AWAY: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
    }
)


class KafkaFailures:
    """The errors of one connection."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._where = f"connection {connection.name}"
        self._clean = LibraryLog(connection).without_secrets

    def of(self, error: KafkaError, doing: str, topic: str = "") -> SinkError:
        """What `doing` failed with."""
        code, words = error.code(), self._clean(f"{error.name()}: {error.str()}")
        what = f"{self._where}: {doing} failed ({words})"
        if code in REFUSALS:
            return self.refused(error)
        if code in RIGHTS:
            named = f" for topic {topic}" if topic else ""
            return SinkRefused(
                f"{self._where}: the brokers do not permit {doing}{named} ({error.name()})",
                remedy=f"grant {self._user}: {RIGHTS[code]}; trucker retries",
                code="TRK723",
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return SinkError(
                f"{self._where}: the brokers permit less than transaction_timeout, which is "
                f"{self._connection.transaction_timeout:g} seconds",
                remedy="set transaction_timeout to at most the brokers' transaction.max.timeout.ms, or raise that",
                code="TRK726",
            )
        if code in NO_TOPIC:
            return self.no_topic(topic)
        if code in UNFIT_TOPIC:
            return SinkError(
                f"{what}, topic {topic}", remedy="name another topic, or other partitions and replicas", code="TRK724"
            )
        if code == KafkaError.INVALID_RECORD:
            return self.keyless(topic)
        if code in TOO_LARGE:
            return DataError(
                f"{self._where}: topic {topic} does not take a batch of messages, as it is too large",
                remedy=f"raise max.message.bytes of topic {topic}, or set batch.size in settings to no more than that",
                code="TRK725",
            )
        if code == KafkaError._INVALID_ARG:
            return self.wrong_settings(error)
        return SinkUnavailable(what, remedy=self.remedy(code), code="TRK720" if code in AWAY else "TRK729")

    @property
    def _user(self) -> str:
        return f"user {self._connection.user}" if self._connection.user else "the client's user"

    @staticmethod
    def remedy(code: int) -> str:
        if code in AWAY:
            return "none needed if the brokers come back; otherwise check servers and security"
        return "none needed if it passes: trucker settles the transaction and retries; otherwise see the brokers' log"

    def refused(self, error: KafkaError) -> SinkRefused:
        return SinkRefused(
            f"{self._where}: a broker refuses the connection ({self._clean(f'{error.name()}: {error.str()}')})",
            remedy="check security, sasl, user, pass and tls of the connection; trucker retries, and reads files of "
            "secrets again",
            code="TRK721",
        )

    def away(self, doing: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._where}: no broker has answered for {self._connection.timeout:g} seconds, {doing}",
            remedy=self.remedy(KafkaError._TIMED_OUT),
            code="TRK720",
        )

    def fenced(self, transactional_id: str) -> SinkError:
        return SinkError(
            f"{self._where}: another process has taken over transactional id {transactional_id}",
            remedy="stop the other process, then restart trucker; two projects need different transactional_id",
            code="TRK722",
        )

    def expired(self) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._where}: the brokers ended a transaction that took longer than transaction_timeout "
            f"({self._connection.transaction_timeout:g} seconds)",
            remedy="raise transaction_timeout, and with it the brokers' transaction.max.timeout.ms if it is lower",
            code="TRK726",
        )

    def no_topic(self, topic: str) -> SinkError:
        connection = self._connection
        partitions = f" --partitions {connection.partitions}" if connection.partitions else ""
        replication = f" --replication-factor {connection.replication}" if connection.replication else ""
        return SinkError(
            f"{self._where}: there is no topic {topic}",
            remedy=f"run: kafka-topics.sh --bootstrap-server {connection.servers[0]} --create --topic {topic}"
            f"{partitions}{replication}  (or write create_topics: true)",
            code="TRK724",
        )

    def keyless(self, topic: str) -> SinkError:
        return SinkError(
            f"{self._where}: topic {topic} does not take events without a key, as it is compacted",
            remedy="set the topic's cleanup.policy to delete: truncates and tables without a key have none",
            code="TRK724",
        )

    def unusable_name(self, topic: str, table: str) -> SinkError:
        return SinkError(
            f"{self._where}: table {table} would go to topic {topic!r}, which is not a name that a topic can have",
            remedy="write a `topic` of letters, digits, ., _ and -, at most 249; in templates `replace` helps",
            code="TRK724",
        )

    def positions_taken(self, topic: str, table: str) -> SinkError:
        return SinkError(
            f"{self._where}: table {table} would go to topic {topic}, which is that of positions",
            remedy="name another `topic`, or another positions_topic",
            code="TRK724",
        )

    def too_large(self, topic: str, event: str, size: int, limit: int) -> DataError:
        return DataError(
            f"{self._where}: event {event} is a message of {size} bytes, and topic {topic} takes {limit}",
            remedy=f"raise max.message.bytes of topic {topic}, or leave the large column out (`exclude` in rules)",
            code="TRK725",
        )

    def wrong_settings(self, error: KafkaError) -> SinkError:
        return SinkError(
            f"{self._where}: the library does not accept the settings ({self._clean(error.str())})",
            remedy="correct settings of the connection",
            code="TRK728",
        )
