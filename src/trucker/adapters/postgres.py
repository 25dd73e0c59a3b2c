"""PostgreSQL: the source, and a destination."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from trucker.abilities import Abilities
from trucker.adapters.postgres_url import PARAMETERS, UrlError, parse_url
from trucker.config.adapter import Adapter, Connection, read_secret
from trucker.config.model import Model, Port, Text
from trucker.config.values import ProjectPath, Seconds, in_project, refuse
from trucker.types import Form, Kind, TypeForms


class Ssl(Model):
    """libpq's TLS settings, for every connection including the replication one. `ssl: require` is short for
    `ssl: {mode: require}`."""

    shorthand: ClassVar[str | None] = "mode"

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer", description="libpq's sslmode."
    )
    root_certificate: Path | None = Field(
        default=None, description="The certificate authority to trust (sslrootcert), or `system`."
    )
    certificate: ProjectPath | None = Field(default=None, description="The client's certificate (sslcert).")
    key: ProjectPath | None = Field(default=None, description="The client's private key (sslkey).")

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("root_certificate")
    @classmethod
    def _authority(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        return path if path is None or str(path) == "system" else in_project(path, info)


class Timeouts(Model):
    """How long trucker waits for a server before it reports an error and retries."""

    connect: Seconds = Field(default=10.0, ge=2, description="For the server to accept a connection.")
    silence: Seconds = Field(
        default=60.0,
        ge=2,
        description="For an answer from the server. After half of this time trucker asks the server for one. A "
        "statement that the server reports as still running may take any time.",
    )
    lock: Seconds = Field(default=30.0, gt=0, description="For a lock that another session holds.")
    statement: Seconds | None = Field(
        default=None, gt=0, description="For one statement of a truck's SQL file; without a value there is no limit."
    )


class PostgresConnection(Connection):
    """A PostgreSQL database (14 or later), as a source or as a destination."""

    adapter: Literal["postgres"] = Field(default="postgres", description="The kind of store.")
    host: Text = Field(default="localhost", description="A host name, an address, or the folder of a Unix socket.")
    port: Port = Field(default=5432, description="The server's port.")
    database: Text = Field(default="postgres", description="The database.")
    user: Text = Field(default="postgres", description="The role to log in as.")
    password: SecretStr = Field(
        default=SecretStr(""), validation_alias="pass", serialization_alias="pass", description="The password."
    )
    ssl: Ssl = Field(default=Ssl(), description="libpq's sslmode, or a mapping with the mode and certificates.")
    url: SecretStr | None = Field(
        default=None,
        repr=False,
        exclude=True,
        description="`postgresql://user:password@host:port/database?sslmode=…`, instead of the keys for its parts.",
    )
    parameters: dict[str, str] = Field(default={}, description="Other libpq settings, such as `options`.")
    timeouts: Timeouts = Field(default=Timeouts(), description="How long to wait for the server.")
    replica_host: Text | None = Field(
        default=None,
        description="A standby of this database to read from. The other replica keys default to the primary's.",
    )
    replica_port: Port | None = Field(default=None, description="The standby's port.")
    replica_database: Text | None = Field(default=None, description="The database on the standby.")
    replica_user: Text | None = Field(default=None, description="The role to log in to the standby as.")
    replica_password: SecretStr | None = Field(
        default=None,
        validation_alias="replica_pass",
        serialization_alias="replica_pass",
        description="The standby's password.",
    )
    publication: Text | None = Field(
        default=None, description="An existing publication to use; trucker does not change it."
    )
    slot: Text | None = Field(
        default=None, description="An existing replication slot to use; trucker does not create or drop it."
    )
    on_slot_loss: Literal["stop", "resnapshot"] = Field(
        default="stop",
        description="When the slot was dropped or invalidated, or the publication was dropped: `stop` stops "
        "the trucks, `resnapshot` copies all tables of this source again. The rows at the destinations stay "
        "readable meanwhile.",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_url_apart(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("url") is None:
            return data
        url = data["url"]
        try:
            parts = parse_url(url.get_secret_value() if isinstance(url, SecretStr) else str(url))
        except UrlError as error:
            raise refuse(str(error), key="url", remedy=_URL_REMEDY) from None
        rest = {key: value for key, value in data.items() if key != "url"}
        aliases = {"password": "pass"}
        both = sorted(
            {aliases.get(key, key) for key in rest} & ({"host", "port", "database", "user", "pass"} | set(parts))
        )
        if both:
            raise refuse(
                f"the connection has both url and {', '.join(both)}",
                key=both[0],
                remedy=f"remove url, or remove {', '.join(both)}",
            )
        return rest | parts

    @field_validator("parameters")
    @classmethod
    def _libpq_parameters(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in PARAMETERS:
                raise refuse(
                    "parameters has a setting that libpq does not know, or that has its own key in the connection",
                    remedy=f"use one of these settings: {', '.join(sorted(PARAMETERS))}",
                )
        return value

    @model_validator(mode="after")
    def _replica_needs_host(self) -> Self:
        others = {
            "replica_port": self.replica_port,
            "replica_database": self.replica_database,
            "replica_user": self.replica_user,
            "replica_pass": self.replica_password,
        }
        replica_keys = [key for key, value in others.items() if value is not None]
        if self.replica_host is None and replica_keys:
            raise refuse(
                f"{replica_keys[0]} is given without replica_host",
                key=replica_keys[0],
                remedy="add replica_host, or remove the other replica keys",
            )
        return self

    @model_validator(mode="after")
    def _resnapshot_without_slot(self) -> Self:
        if self.slot is not None and self.on_slot_loss == "resnapshot":
            raise refuse(
                "on_slot_loss: resnapshot cannot be used with slot: trucker does not create this slot",
                key="on_slot_loss",
                remedy="remove slot, so that trucker creates one, or remove on_slot_loss",
            )
        return self

    @property
    def replica(self) -> PostgresConnection | None:
        """The standby to read from, where one is named."""
        if self.replica_host is None:
            return None
        files = self._secret_files
        standby = self.model_copy(
            update={
                "host": self.replica_host,
                "port": self.replica_port or self.port,
                "database": self.replica_database or self.database,
                "user": self.replica_user or self.user,
                "password": self.replica_password or self.password,
                **dict.fromkeys(
                    ("replica_host", "replica_port", "replica_database", "replica_user", "replica_password")
                ),
            }
        )
        standby._secret_files = files if self.replica_password is None else {"pass": files.get("replica_pass")}
        return standby

    def refreshed(self) -> Self:
        """The connection with its password as its file has it now. The replica's is read by `replica`."""
        secret = self._password_now()
        if secret is None or secret == self.password.get_secret_value():
            return self
        return self.model_copy(update={"password": SecretStr(secret)})

    def _password_now(self) -> str | None:
        url, file = self._secret_files.get("url"), self._secret_files.get("pass")
        if url is None:
            return read_secret(file) if file is not None else None
        text = read_secret(url)
        try:
            return str(parse_url(text).get("pass", "")) if text is not None else None
        except UrlError:
            return None

    @property
    def place(self) -> str:
        """Which server, for a message; never with a secret in it."""
        if self.host.startswith(("/", "@")):
            return f"connection {self.name} (socket {self.host}, port {self.port})"
        return f"connection {self.name} ({f'[{self.host}]' if ':' in self.host else self.host}:{self.port})"

    def conninfo(self, **extra: str | int) -> dict[str, Any]:
        """Parameters for `psycopg.connect(**…)` or `psycopg.conninfo.make_conninfo(**…)`; `extra` is added to them.

        What `parameters` say comes before `extra`, save that of `options` both count and the latter win.
        """
        options = " ".join(str(text) for text in (self.parameters.get("options"), extra.get("options")) if text)
        files = {
            "sslrootcert": self.ssl.root_certificate,
            "sslcert": self.ssl.certificate,
            "sslkey": self.ssl.key,
        }
        return {
            **extra,
            **self.parameters,
            **({"options": options} if options else {}),
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            **({"password": self.password.get_secret_value()} if self.password.get_secret_value() else {}),
            "sslmode": self.ssl.mode,
            **{name: str(path) for name, path in files.items() if path},
            "client_encoding": "UTF8",
        }

    def patience(self) -> dict[str, int]:
        """libpq's own timeouts, as `timeouts` would have them: TCP then notices a peer that is gone."""
        silence = self.timeouts.silence
        return {
            "connect_timeout": round(self.timeouts.connect),
            "keepalives": 1,
            "keepalives_idle": max(1, round(silence / 2)),
            "keepalives_interval": max(1, round(silence / 6)),
            "keepalives_count": 3,
            "tcp_user_timeout": round(silence * 1000),
        }


_URL_REMEDY = "write it as postgresql://user:password@host:5432/database, special characters as percent-codes"


class PostgresTypes(TypeForms):
    """PostgreSQL has its own types. Objects of the source's catalogue are not those of another database."""

    title: ClassVar[str] = "PostgreSQL destination"
    text: ClassVar[Form] = Form("")
    forms: ClassVar[Mapping[Kind, Form]] = {Kind.NAME: Form("text")}
    domain: ClassVar[str] = "its base type"
    user_type: ClassVar[str] = "the same type or `text`, see below"

    def shown(self, form: Form) -> str:
        return f"`{form.type}`" if form.type else "the same type"


TYPES: Final = PostgresTypes()

POSTGRES: Final = Adapter(
    name="postgres",
    connection=PostgresConnection,
    sink="trucker.sinks.postgres:PostgresSink",
    lookup="trucker.postgres.lookup:LookupSession",
    source="trucker.postgres.source:PostgresSource",
    abilities=Abilities(
        output_sql=True,
        dead_letters=True,
        guarantee="exactly once; a source transaction becomes visible as a whole",
    ),
    uses_folder=False,
    types=TYPES,
)
