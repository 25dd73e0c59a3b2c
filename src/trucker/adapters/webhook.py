"""An HTTP endpoint as a destination: each event, or an array of them, is a POST request."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, TypeAdapter, WithJsonSchema, field_validator, model_validator

from trucker.abilities import Abilities
from trucker.adapters.json_types import TYPES
from trucker.config.adapter import Adapter, read_secret
from trucker.config.events import EventConnection
from trucker.config.model import MIB, Model
from trucker.config.name_template import NameTemplate, name_of
from trucker.config.values import Bytes, ProjectPath, Seconds, refuse
from trucker.table import TableId

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN: Final = ("webhook-", "trucker-")
_FIXED: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_STANDARD: Final = "whsec_"
_TEMPLATE: Final = TypeAdapter(NameTemplate)
_SOME_TABLE: Final = TableId("public", "items")


def _header_lines(value: Any) -> Any:
    """A mapping, or lines `Name: value`, which is what a file of headers has."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        return value
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    if not all(colon for _, colon, _ in pairs):
        raise refuse("the headers are not lines of the form Name: value", remedy="write one header in each line")
    return {name.strip(): content.strip() for name, _, content in pairs}


Headers = Annotated[
    dict[str, SecretStr],
    BeforeValidator(_header_lines),
    WithJsonSchema({"type": ["object", "string"], "additionalProperties": {"type": "string"}, "title": "headers"}),
]


class WebhookBatch(Model):
    """How many events a request has."""

    rows: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="With 1 each request has one event. With more it has a JSON array of at most so many.",
    )
    bytes: Bytes = Field(default=MIB, gt=0, description="The most bytes of an array; a larger event goes alone.")


class WebhookTimeouts(Model):
    """How long to wait for the receiver."""

    connect: Seconds = Field(default=5.0, gt=0, description="For a connection, with its TLS handshake.")
    read: Seconds = Field(default=30.0, gt=0, description="For the answer to a request.")
    retry: Seconds = Field(
        default=10.0,
        ge=0,
        description="For how long a request is repeated, with growing pauses, before the batch is given back. Trucker "
        "tries that again for as long as it takes; the events that were taken are not sent again.",
    )


class WebhookSsl(Model):
    """TLS, for a url that begins with https. The receiver's certificate is always verified."""

    root_certificate: ProjectPath | None = Field(
        default=None, description="The certificate authorities to trust, as PEM, instead of the system's."
    )
    certificate: ProjectPath | None = Field(default=None, description="The client's certificate, as PEM.")
    key: ProjectPath | None = Field(
        default=None, description="The client's private key, as PEM, where the certificate's file does not have it."
    )

    @model_validator(mode="after")
    def _key_of_certificate(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise refuse("ssl has a key without a certificate", key="key", remedy="add certificate, or remove key")
        return self


class WebhookConnection(EventConnection):
    """An HTTP endpoint that gets each event as a POST request, at least once."""

    adapter: Literal["webhook"] = Field(description="The kind of store.")
    url: SecretStr = Field(
        description="Where to send: an http or https URL. `{{ schema }}`, `{{ table }}` and `{{ truck }}` in it stand "
        "for those of each event."
    )
    headers: Headers = Field(
        default={},
        description="More headers of each request. `headers_path` reads them from a file of lines `Name: value`.",
    )
    secret: SecretStr | None = Field(
        default=None,
        description="The key of the signature, `whsec_…` or any text; none, and requests are not signed. With several, "
        "separated by blanks, there is a signature by each: for the time in which a receiver changes to another.",
    )
    batch: WebhookBatch = Field(default=WebhookBatch(), description="How many events a request has.")
    parallel: int = Field(
        default=4,
        ge=1,
        le=256,
        description="How many requests are under way at once. Events of one key wait for each other.",
    )
    timeouts: WebhookTimeouts = Field(default=WebhookTimeouts(), description="How long to wait for the receiver.")
    ssl: WebhookSsl = Field(default=WebhookSsl(), description="Certificates.")

    @field_validator("url")
    @classmethod
    def _http(cls, value: SecretStr) -> SecretStr:
        template = _TEMPLATE.validate_python(value.get_secret_value())
        text = name_of(template, _SOME_TABLE, "truck")
        try:
            parts = urlsplit(text)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable or re.search(r"[\x00-\x20\x7f-\U0010ffff]", text):
            raise refuse("this is not the URL of an endpoint", remedy="write it as https://host/path")
        if parts.username is not None or parts.password is not None:
            raise refuse(
                "the url has a user and a password",
                remedy="write them as a header, in headers_path: Authorization: Basic …",
            )
        if parts.fragment:
            raise refuse("the url has a fragment, which is never sent", remedy="remove what is behind the #")
        if "{{" in template and template.partition("{{")[0].count("/") < len(("//", "/")) + 1:
            raise refuse("only the path of the url can differ from table to table", remedy="write the host out")
        return value

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, content in value.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(content.get_secret_value()):
                raise refuse("a header has a character that HTTP does not allow", remedy="write printable ASCII")
            if name.lower() in _FIXED or name.lower().startswith(_OWN):
                raise refuse(
                    "a header has a name that trucker gives itself",
                    remedy=f"choose a name that does not begin with {' or '.join(_OWN)}",
                )
        return value

    @field_validator("secret")
    @classmethod
    def _keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            signing_keys(value)
        return value

    @model_validator(mode="after")
    def _one_place_for_transactions(self) -> Self:
        if self.transactions and "{{" in self.url.get_secret_value():
            raise refuse(
                "the marks of transactions belong to no table, and the url differs from table to table",
                key="transactions",
                remedy="remove transactions, or write one url for all tables",
            )
        return self

    def refreshed(self) -> Self:
        """With its secrets, the headers among them, as their files hold them now."""
        file = self._secret_files.get("headers")
        others = self.model_copy()
        others._secret_files = {key: path for key, path in self._secret_files.items() if key != "headers"}
        fresh = super(WebhookConnection, others).refreshed()
        text = read_secret(file) if file is not None else None
        try:  # of files that are being written nothing counts
            lines: dict[str, str] = _header_lines(text) if text is not None else {}
            headers = self._sendable({name: SecretStr(content) for name, content in lines.items()})
            read = {"url": self._http(fresh.url), "secret": self._keys(fresh.secret)}
        except ValueError:
            return self
        return self.model_copy(update=read if text is None else {**read, "headers": headers})

    @property
    def origin(self) -> str:
        """Scheme, host and port: all of the URL that a message shows."""
        parts = urlsplit(self.url.get_secret_value().partition("{{")[0])
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}"

    @property
    def place(self) -> str:
        """Which receiver, for a message; never with a secret in it."""
        return f"connection {self.name} ({self.origin})"


def signing_keys(secret: SecretStr) -> list[bytes]:
    """The keys that a secret holds: base64 behind `whsec_`, or the text itself."""
    keys = []
    for text in secret.get_secret_value().split():
        if not text.startswith(_STANDARD):
            keys.append(text.encode())
            continue
        try:
            encoded = text.removeprefix(_STANDARD)
            keys.append(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except binascii.Error:
            raise refuse("the secret begins with whsec_ and is not base64", remedy="copy the whole secret") from None
    if not keys or not all(keys):
        raise refuse("the secret is empty", remedy="write a secret of 24 to 64 random bytes, or remove it")
    return keys


WEBHOOK: Final = Adapter(
    name="webhook",
    connection=WebhookConnection,
    sink="trucker.sinks.webhook.sink:WebhookSink",
    abilities=Abilities(
        every_change=True,
        dead_letters=True,
        exactly_once=False,
        guarantee="at least once, in order per key: after a crash events may come again, with the same ids",
    ),
    driver="urllib3",
    install="run: pip install 'trucker[webhook]'",
    types=TYPES,
)
