"""Topics of a Kafka cluster as a destination."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from trucker.abilities import Abilities
from trucker.adapters.json_types import TYPES
from trucker.config.adapter import Adapter
from trucker.config.events import EventConnection
from trucker.config.model import Model, Text
from trucker.config.name_template import NameTemplate
from trucker.config.values import ProjectPath, Seconds, Texts, refuse

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]

# Settings of the library that would break what trucker promises, or that hold a secret, and what to use instead.
_BY_KEY: Final = {
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    "security.protocol": "security",
    "sasl.mechanism": "sasl",
    "sasl.mechanisms": "sasl",
    "sasl.username": "user",
    "sasl.password": "pass",
    "sasl.oauthbearer.client.secret": "pass",
    "ssl.ca.location": "tls.authority",
    "ssl.certificate.location": "tls.certificate",
    "ssl.key.location": "tls.key",
    "ssl.key.password": "key_pass",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout",
}
_HELD: Final = frozenset(
    {
        "acks",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "partitioner",
        "request.required.acks",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.key.pem",
        "ssl.keystore.password",
        "test.mock.num.brokers",
    }
)


class BrokerTls(Model):
    """The certificates of a connection whose `security` is `ssl` or `sasl_ssl`. A broker's certificate and its host
    name are always verified."""

    authority: ProjectPath | None = Field(
        default=None, description="The certificate authority to trust; by default those of the system."
    )
    certificate: ProjectPath | None = Field(default=None, description="The client's certificate.")
    key: ProjectPath | None = Field(default=None, description="The client's private key.")


class KafkaConnection(EventConnection):
    """Topics of a Kafka cluster as a destination: an event per change, in a transaction with the position."""

    adapter: Literal["kafka"] = Field(description="The kind of store.")
    servers: Texts = Field(description="Brokers to ask first, `host:port` each; one that answers is enough.")
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="Whether connections are encrypted (`ssl`) and log in (`sasl`)."
    )
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = Field(
        default="PLAIN", description="How to log in, with `security: sasl_…`."
    )
    user: Text | None = Field(default=None, description="The user to log in as; the client's id with OAUTHBEARER.")
    password: SecretStr | None = Field(
        default=None,
        validation_alias="pass",
        serialization_alias="pass",
        description="The password; the client's secret with OAUTHBEARER.",
    )
    tls: BrokerTls = Field(default=BrokerTls(), description="Certificates, with `security: ssl` or `sasl_ssl`.")
    key_pass: SecretStr | None = Field(default=None, description="The passphrase of the private key `tls.key`.")
    topic: NameTemplate = Field(
        default="{{ schema }}.{{ table }}",
        description="The topic of a table's events: a template with `schema`, `table` and `truck`.",
    )
    transaction_topic: NameTemplate = Field(
        default="trucker.transactions.{{ truck }}",
        description="The topic of events that mark transactions, with `transactions: true`: a template with `truck`.",
    )
    create_topics: bool = Field(
        default=True, description="Create topics that are missing; `false` refuses a table whose topic is."
    )
    partitions: int | None = Field(
        default=None, ge=1, description="Partitions of a topic that trucker creates; by default the broker decides."
    )
    replication: int | None = Field(
        default=None, ge=1, description="Replicas of a topic that trucker creates; by default the broker decides."
    )
    topic_settings: dict[str, str] = Field(
        default={}, description="Settings of topics that trucker creates, such as `max.message.bytes`."
    )
    transactional_id: Text | None = Field(
        default=None,
        description="The producer's transactional id; `trucker.<project>.<connection>` by default. A process with the "
        "same id ends an earlier one's transactions.",
    )
    positions_topic: Topic | None = Field(
        default=None,
        description="The compacted topic of positions; `trucker.positions.<project>.<connection>` by default.",
    )
    transaction_timeout: Seconds = Field(
        default=900.0,
        ge=10,
        description="How long one transaction may take, which has at least a whole transaction of the source; at most "
        "the brokers' `transaction.max.timeout.ms`.",
    )
    timeout: Seconds = Field(
        default=30.0, ge=1, description="How long to wait for a broker before an error is reported, and retried."
    )
    settings: dict[str, str | int | float | bool] = Field(
        default={}, description="Other settings of librdkafka, such as `compression.type: zstd`."
    )

    @field_validator("settings")
    @classmethod
    def _free(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in settings:
            if name in _BY_KEY:
                raise refuse(f"{name} has a key of its own", remedy=f"write `{_BY_KEY[name]}:` of the connection")
            if name in _HELD:
                raise refuse(f"{name} is not free to set", remedy=f"remove {name}")
        return settings

    @model_validator(mode="after")
    def _login(self) -> KafkaConnection:
        if self.security.startswith("sasl") and self.sasl not in ("OAUTHBEARER", "GSSAPI"):
            if self.user is None or self.password is None:
                raise refuse(f"security: {self.security} needs a user and a password", remedy="write user: and pass:")
        elif not self.security.startswith("sasl") and (self.user is not None or self.password is not None):
            raise refuse(
                f"user and pass are not used with security: {self.security}",
                remedy="write security: sasl_ssl or sasl_plaintext, or remove them",
            )
        return self


KAFKA: Final = Adapter(
    name="kafka",
    connection=KafkaConnection,
    sink="trucker.sinks.kafka.sink:KafkaSink",
    abilities=Abilities(
        every_change=True,
        dead_letters=True,
        guarantee="exactly once for consumers that read committed messages: whole transactions, in order per key",
    ),
    driver="confluent_kafka",
    install='pip install "trucker[kafka]"',
    types=TYPES,
)
