"""The project's files as frozen models; from them come validation, the JSON schema, the reference and `init`.

A model knows nothing of files: `load` renders and parses them, and adds file, line and column to what is wrong.
No message of a model quotes a value, and secrets are `SecretStr`, so none can reach a log or a page (I10).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from trucker.config.patterns import PatternError, parse_pattern, parse_table
from trucker.config.url import PARAMETERS, UrlError, parse_url
from trucker.config.values import Bytes, ProjectPath, Seconds, Texts, in_project, refuse

MIB = 1024 * 1024

Text = Annotated[str, Field(min_length=1)]
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Model(BaseModel):
    """Frozen, and strict about names: an unknown key is an error. Errors do not show what was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)


class Ssl(Model):
    """libpq's TLS settings, for every connection including the replication one."""

    mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer", description="libpq's sslmode."
    )
    root_certificate: Path | None = Field(
        default=None, description="The certificate authority to trust (sslrootcert), or `system`."
    )
    certificate: ProjectPath | None = Field(default=None, description="The client's certificate (sslcert).")
    key: ProjectPath | None = Field(default=None, description="The client's private key (sslkey).")

    @field_validator("root_certificate")
    @classmethod
    def _authority(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        return path if path is None or str(path) == "system" else in_project(path, info)


class PostgresConnection(Model):
    """A PostgreSQL database (14 or later), as a source or as a destination."""

    name: Name = Field(description="What trucks call it.")
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
    parameters: dict[str, str] = Field(default={}, description="Other settings of libpq, such as connect_timeout.")
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
    publication: Text | None = Field(default=None, description="A publication made beforehand; it is left as it is.")
    slot: Text | None = Field(default=None, description="A replication slot made beforehand; it is left as it is.")

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
        given = {"password": "pass"}
        both = sorted(
            {given.get(key, key) for key in rest} & ({"host", "port", "database", "user", "pass"} | set(parts))
        )
        if both:
            raise refuse(
                f"the connection has both url and {', '.join(both)}",
                key=both[0],
                remedy=f"say it once: remove url, or remove {', '.join(both)}",
            )
        return rest | parts

    @field_validator("ssl", mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("parameters")
    @classmethod
    def _known_parameters(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in PARAMETERS:
                raise refuse(
                    "parameters has a setting that is not libpq's, or that has a key of its own here",
                    remedy=f"the settings that may stand here: {', '.join(sorted(PARAMETERS))}",
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
        given = [key for key, value in others.items() if value is not None]
        if self.replica_host is None and given:
            raise refuse(
                f"{given[0]} is given without replica_host",
                key=given[0],
                remedy="add replica_host, or remove the other replica keys",
            )
        return self

    @property
    def replica(self) -> PostgresConnection | None:
        """The standby to read from, where one is named."""
        if self.replica_host is None:
            return None
        return self.model_copy(
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

    def conninfo(self, **extra: str | int) -> dict[str, Any]:
        """Parameters for `psycopg.connect(**…)` or `psycopg.conninfo.make_conninfo(**…)`; `extra` is added to them."""
        files = {
            "sslrootcert": self.ssl.root_certificate,
            "sslcert": self.ssl.certificate,
            "sslkey": self.ssl.key,
        }
        return {
            **self.parameters,
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


_URL_REMEDY = "write it as postgresql://user:password@host:5432/database, special characters as percent-codes"


class DuckDBConnection(Model):
    """A DuckDB file as a destination."""

    name: Name = Field(description="What trucks call it.")
    adapter: Literal["duckdb"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The database file; relative to the project's folder.")


class JsonLinesConnection(Model):
    """A folder of JSON-lines files as a destination: one line per change."""

    name: Name = Field(description="What trucks call it.")
    adapter: Literal["jsonl"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The folder; relative to the project's folder.")
    rotate_bytes: Bytes = Field(default=128 * MIB, gt=0, description="A new file is begun past this size.")


class StdoutConnection(Model):
    """Standard output as a destination: one JSON line per change, at least once."""

    name: Name = Field(description="What trucks call it.")
    adapter: Literal["stdout"] = Field(description="The kind of store.")


Connection = Annotated[
    PostgresConnection | DuckDBConnection | JsonLinesConnection | StdoutConnection, Field(discriminator="adapter")
]

CONNECTIONS: dict[str, type[Model]] = {
    "postgres": PostgresConnection,
    "duckdb": DuckDBConnection,
    "jsonl": JsonLinesConnection,
    "stdout": StdoutConnection,
}
"""The kinds of connection by adapter."""

SOURCES = ("postgres",)
"""The adapters a truck can read from."""


class SparkConfig(Model):
    """How Spark is started."""

    master: Text = Field(default="local[*]", description="Spark's master: `local[*]`, or a cluster's address.")
    settings: dict[str, str] = Field(default={}, description="Spark's own settings, by their full names (`spark.…`).")

    @field_validator("settings")
    @classmethod
    def _full_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.startswith("spark."):
                raise refuse("the name of a Spark setting begins with spark.", remedy="write its full name")
        return value


class LogConfig(Model):
    """How long the change log is kept. It always keeps what a truck has yet to apply."""

    keep: Seconds | None = Field(
        default=None, ge=0, description="Keep changes this long after every truck applied them."
    )
    max_bytes: Bytes | None = Field(default=None, gt=0, description="Keep no more applied changes than this.")
    segment_bytes: Bytes = Field(default=64 * MIB, ge=MIB, description="A new segment file is begun past this size.")


class BatchConfig(Model):
    """How much a micro-batch takes."""

    max_bytes: Bytes = Field(default=64 * MIB, gt=0, description="The most change-log bytes in one micro-batch.")


class RetryConfig(Model):
    """How long to wait before something transient is tried again; each wait is twice the one before."""

    first: Seconds = Field(default=0.5, gt=0, description="The first wait.")
    longest: Seconds = Field(default=30.0, gt=0, description="The longest wait.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.longest < self.first:
            raise refuse("longest is shorter than first", key="longest", remedy="make longest at least first")
        return self


class InputConfig(Model):
    """What a truck reads."""

    connection: Text = Field(description="The name of a connection in trucker.yml.")
    table: Text | None = Field(default=None, description="The table, `schema.table`; a bare name is in schema public.")
    tables: Texts = Field(
        default=(), description="Instead of table: names and patterns, such as `public.*` and `!public.audit_*`."
    )
    only_columns: Texts | None = Field(default=None, description="Take these columns and no other.")
    except_columns: Texts | None = Field(default=None, description="Take every column but these.")
    where: Text | None = Field(default=None, description="Take the rows that this SQL condition chooses on the source.")

    @model_validator(mode="before")
    @classmethod
    def _table_or_tables(cls, data: Any) -> Any:
        """`tables` always says what is chosen: a `table` is a list of one."""
        if not isinstance(data, dict):
            return data
        table, tables = data.get("table"), data.get("tables")
        if table is None and tables is None:
            raise refuse("the input names no table", remedy="add table: schema.table, or tables: with patterns")
        if table is not None and tables is not None and tables not in ([table], (table,)):
            raise refuse("the input has both table and tables", key="tables", remedy="remove one of them")
        if table is None:
            return data
        return {**data, "tables": [table if isinstance(table, str) and table else "?"]}  # "?": table is refused anyway

    @field_validator("table")
    @classmethod
    def _one_table(cls, value: str | None) -> str | None:
        return value if value is None else _one_table(value, remedy="write schema.table; patterns go under tables")

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("table", "") is not None:
            return value
        for index, text in enumerate(value):
            try:
                parse_pattern(text)
            except PatternError as error:
                raise refuse(str(error), key=str(index), remedy=_PATTERN_REMEDY) from None
        if all(parse_pattern(text).excludes for text in value):
            raise refuse("tables only says what to leave out", remedy="add what to take, such as public.*")
        return value

    @model_validator(mode="after")
    def _columns_once(self) -> Self:
        if self.only_columns and self.except_columns:
            raise refuse(
                "the input has both only_columns and except_columns", key="except_columns", remedy="remove one of them"
            )
        return self

    @property
    def is_many(self) -> bool:
        """Whether the input may be more than one table."""
        return self.table is None


class OutputConfig(Model):
    """Where a truck writes. Without table and schema, tables keep the source's names."""

    connection: Text = Field(description="The name of a connection in trucker.yml.")
    table: Text | None = Field(default=None, description="The destination table of an input with one table.")
    schema_: Text | None = Field(
        default=None,
        validation_alias="schema",
        serialization_alias="schema",
        description="The destination schema of every table.",
    )

    @field_validator("table")
    @classmethod
    def _one_table(cls, value: str | None) -> str | None:
        return value if value is None else _one_table(value, remedy="write schema.table")

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.table is not None and self.schema_ is not None:
            raise refuse(
                "the output has both table and schema", key="schema", remedy="write schema.table under table alone"
            )
        return self


class TruckFile(Model):
    """A truck: what it reads and where it writes."""

    input: InputConfig = Field(description="What the truck reads.")
    output: OutputConfig = Field(description="Where it writes.")

    @model_validator(mode="after")
    def _many_into_one(self) -> Self:
        if self.input.is_many and self.output.table is not None:
            raise refuse(
                "many tables cannot go into one",
                key="output",
                remedy="use schema: in the output, or table: in the input",
            )
        return self


class TruckConfig(TruckFile):
    """A truck with its name, which is its folder's."""

    name: Name
    folder: Path


class ProjectFile(Model):
    """A project: its connections and how it runs."""

    unique_id: Text | None = Field(
        default=None,
        description="Keeps this project apart from others on the same servers; names the slot and the publication."
        " The default is the folder's name.",
    )
    connections: tuple[Connection, ...] = Field(min_length=1, description="The stores trucks read from and write to.")
    state: ProjectPath = Field(
        default=Path(".trucker"),
        validate_default=True,
        description="The folder of local state, the change log above all.",
    )
    spark: SparkConfig = Field(default=SparkConfig(), description="How Spark is started.")
    log: LogConfig = Field(default=LogConfig(), description="How the change log is kept.")
    batch: BatchConfig = Field(default=BatchConfig(), description="How much a micro-batch takes.")
    heartbeat: Seconds = Field(
        default=10.0,
        ge=0,
        description="How often a message is written to an idle source so that its slot moves on; 0 is never.",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="How long to wait before something is tried again.")


class ProjectConfig(ProjectFile):
    """A project as loaded, trucks included. Paths are absolute."""

    unique_id: Text
    folder: Path
    trucks: tuple[TruckConfig, ...] = ()

    @property
    def state_folder(self) -> Path:
        """The folder of local state."""
        return self.folder / self.state

    def connection(self, name: str) -> Connection:
        """The connection a truck names."""
        return next(connection for connection in self.connections if connection.name == name)


_PATTERN_REMEDY = 'write schema.table, public.*, !public.audit_*; odd names in double quotes: public."odd.name"'


def _one_table(text: str, *, remedy: str) -> str:
    try:
        parse_table(text)
    except PatternError as error:
        raise refuse(str(error), remedy=remedy) from None
    return text
