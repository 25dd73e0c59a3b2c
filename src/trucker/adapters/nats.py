"""A stream of NATS JetStream as a destination."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from trucker.abilities import Abilities
from trucker.adapters.json_types import TYPES
from trucker.config.adapter import Adapter
from trucker.config.events import EventConnection
from trucker.config.model import MIB, Model, Text
from trucker.config.name_template import NameTemplate
from trucker.config.values import Bytes, ProjectPath, Seconds, Texts, refuse

_STREAM_NAME: Final = r"^[A-Za-z0-9_-]{1,200}$"
_SCHEMES: Final = ("nats", "tls")
_WAYS: Final = ("user", "token", "nkey", "creds")

Subject = Annotated[str, Field(pattern=r"^[^\s.*>]+(\.[^\s.*>]+)*$")]


class Retention(StrEnum):
    """How long a stream has its messages."""

    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class StreamSettings(Model):
    """The stream that events go to. `stream: app` is short for `stream: {name: app}`.

    A stream that is there already is not changed; all but the name is for the one that trucker creates.
    """

    shorthand: ClassVar[str | None] = "name"

    name: str = Field(pattern=_STREAM_NAME, description="The stream: letters, digits, `_` and `-`.")
    subjects: Texts | None = Field(
        default=None,
        description="The subjects that it takes; by default the fixed beginning of `subject`, and all behind it.",
    )
    storage: Literal["file", "memory"] = Field(default="file", description="Where it has its messages.")
    replicas: int = Field(default=1, ge=1, le=5, description="How many servers of a cluster have it.")
    retention: Retention = Field(
        default=Retention.LIMITS,
        description="`limits`: messages stay until a limit is reached. `interest` and `workqueue` remove what "
        "consumers have taken; after a crash trucker cannot read that again.",
    )
    discard: Literal["old", "new"] = Field(
        default="old", description="What happens at a limit: the oldest messages go, or trucker waits."
    )
    max_age: Seconds | None = Field(default=None, gt=0, description="How long a message stays.")
    max_bytes: Bytes | None = Field(default=None, gt=0, description="How large the stream may become.")
    max_messages: int | None = Field(default=None, gt=0, description="How many messages it may have.")
    duplicate_window: Seconds = Field(
        default=120.0, ge=0.1, description="How long the server recognizes the id of a message (`Nats-Msg-Id`)."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class NatsTls(Model):
    """TLS to the server. With any of these keys, or a server `tls://…`, the connection is encrypted and the server's
    certificate is verified."""

    root_certificate: ProjectPath | None = Field(
        default=None, description="The certificate authority to trust; by default those of the system."
    )
    certificate: ProjectPath | None = Field(default=None, description="The client's certificate.")
    key: ProjectPath | None = Field(default=None, description="The client's private key.")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise refuse("the connection has a key without its certificate", key="certificate")
        return self


class NatsConnection(EventConnection):
    """A stream of NATS JetStream (server 2.10 or later) as a destination: one message per change, exactly once."""

    adapter: Literal["nats"] = Field(description="The kind of store.")
    servers: Texts = Field(
        default=("nats://localhost:4222",),
        description="`nats://host:port`, or `tls://…`; one, or several of a cluster, which are tried in turn.",
    )
    stream: StreamSettings = Field(description="The stream that events go to, by its name or with its settings.")
    subject: NameTemplate = Field(
        description="The subject of an event: a template of `{{ schema }}`, `{{ table }}` (of the destination table) "
        "and `{{ truck }}`. What NATS does not allow in a name is written as `%` and two hexadecimal digits per byte.",
    )
    transaction_subject: Subject | None = Field(
        default=None,
        description="The subject of marks of transactions (`transactions: true`); by default the fixed beginning of "
        "`subject` and `transactions`.",
    )
    user: Text | None = Field(default=None, description="The user to log in as.")
    password: SecretStr = Field(
        default=SecretStr(""), validation_alias="pass", serialization_alias="pass", description="The password."
    )
    token: SecretStr | None = Field(default=None, description="A token, instead of user and password.")
    nkey: SecretStr | None = Field(default=None, description="The seed of an nkey (`SU…`), to log in with it.")
    creds: SecretStr | None = Field(
        default=None,
        description="The content of a credentials file (JWT and seed); `creds_path` names the file.",
    )
    tls: NatsTls | None = Field(default=None, description="TLS certificates.")
    in_flight: int = Field(
        default=4096, ge=1, le=100_000, description="The most messages that are sent and not yet acknowledged."
    )
    in_flight_bytes: Bytes = Field(default=32 * MIB, ge=MIB, description="The most bytes of such messages.")
    timeout: Seconds = Field(default=10.0, ge=1, description="How long to wait for an answer from the server.")

    @field_validator("servers")
    @classmethod
    def _addresses(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            try:
                parts = urlsplit(server)
                usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.path in ("", "/")
                secret = parts.username is not None or parts.password is not None
                parts.port  # noqa: B018  (raises where it is not a port)
            except ValueError:
                usable = secret = False
            if secret:
                raise refuse(
                    "the address has a user or a password in it", remedy="use the keys user and pass, or token"
                )
            if not usable:
                raise refuse("this is not the address of a server", remedy="write nats://host:4222 or tls://host:4222")
        return servers

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        ways = [way for way in _WAYS if getattr(self, way) is not None]
        if len(ways) > 1:
            raise refuse(f"the connection has {' and '.join(ways)}", key=ways[1], remedy=f"remove all but {ways[0]}")
        if not fixed_beginning(self.subject) and (self.stream.subjects is None or self.transaction_subject is None):
            raise refuse(
                "the subject does not begin with a fixed name and a dot",
                key="subject",
                remedy='write one, such as "app.{{ schema }}.{{ table }}"',
            )
        return self

    @property
    def stream_subjects(self) -> tuple[str, ...]:
        """The subjects of a stream that trucker creates."""
        return self.stream.subjects or (f"{fixed_beginning(self.subject)}.>",)

    @property
    def mark_subject(self) -> str:
        """The subject of marks of transactions."""
        return self.transaction_subject or f"{fixed_beginning(self.subject)}.transactions"


def fixed_beginning(template: str) -> str:
    """The whole tokens before the first expression of a subject's template: `app.{{ table }}` → `app`."""
    head, expression, _ = template.partition("{")
    return ".".join(head.split(".")[:-1]) if expression else template


NATS: Final = Adapter(
    name="nats",
    connection=NatsConnection,
    sink="trucker.sinks.nats.sink:NatsSink",
    abilities=Abilities(
        every_change=True,
        dead_letters=True,
        guarantee="exactly once, in commit order, whatever the stream's duplicate window",
    ),
    driver="nats",
    install='pip install "trucker[nats]"',
    types=TYPES,
)
