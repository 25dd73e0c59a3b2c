"""The project's files as frozen models; from them come validation, the JSON schema, the reference and `init`.

A model knows nothing of files: `load` renders and parses them, and adds file, line and column to what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class Model(BaseModel):
    """Frozen, and strict about names: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Ssl(Model):
    """libpq's TLS settings, for every connection including the replication one."""

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        "prefer", description="libpq's sslmode."
    )
    root_certificate: Path | None = Field(None, description="The certificate authority to trust (sslrootcert).")
    certificate: Path | None = Field(None, description="The client's certificate (sslcert).")
    key: Path | None = Field(None, description="The client's private key (sslkey).")


class PostgresConnection(Model):
    """A PostgreSQL database, as a source or as a destination."""

    name: str = Field(description="What trucks call it.")
    adapter: Literal["postgres"] = "postgres"
    host: str = "localhost"
    port: int = 5432
    database: str = "postgres"
    user: str = "postgres"
    password: SecretStr = Field(SecretStr(""), alias="pass", description="The password.")
    ssl: Ssl = Ssl()
    publication: str | None = Field(None, description="A publication made beforehand; it is left as it is.")
    slot: str | None = Field(None, description="A replication slot made beforehand; it is left as it is.")

    def conninfo(self, **extra: str | int) -> dict[str, Any]:
        """Parameters for `psycopg.connect(**…)` or `psycopg.conninfo.make_conninfo(**…)`; `extra` is added to them."""
        files = {
            "sslrootcert": self.ssl.root_certificate,
            "sslcert": self.ssl.certificate,
            "sslkey": self.ssl.key,
        }
        return {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            **({"password": self.password.get_secret_value()} if self.password.get_secret_value() else {}),
            "sslmode": self.ssl.mode,
            **{name: str(path) for name, path in files.items() if path},
            "client_encoding": "UTF8",
            **extra,
        }


class DuckDBConnection(Model):
    """A DuckDB file as a destination."""

    name: str = Field(description="What trucks call it.")
    adapter: Literal["duckdb"]
    path: Path = Field(description="The database file; relative to the project's folder.")


class JsonLinesConnection(Model):
    """A folder of JSON-lines files as a destination: one line per change."""

    name: str = Field(description="What trucks call it.")
    adapter: Literal["jsonl"]
    path: Path = Field(description="The folder; relative to the project's folder.")
    rotate_bytes: int = Field(128 * 1024 * 1024, gt=0, description="A new file is begun past this size.")


class StdoutConnection(Model):
    """Standard output as a destination: one JSON line per change, at least once."""

    name: str = Field(description="What trucks call it.")
    adapter: Literal["stdout"]


Connection = Annotated[
    PostgresConnection | DuckDBConnection | JsonLinesConnection | StdoutConnection, Field(discriminator="adapter")
]
