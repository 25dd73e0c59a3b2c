"""The project's files as frozen models; from them come validation, the JSON schema, the reference and `init`.

A model knows nothing of files: `load` renders and parses them, and adds file, line and column to what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from trucker.config.adapter import Connection
from trucker.config.copy_modes import CopyModes
from trucker.config.handler_file import HandlerClass, HandlerFile
from trucker.config.log import LogConfig, S3Config
from trucker.config.lookups import LookupConfig, LookupName
from trucker.config.model import MIB, Model, Name, Text
from trucker.config.patterns import PatternError, parse_pattern, parse_table
from trucker.config.rules import RuleConfig
from trucker.config.sql.sql_files import SqlFile
from trucker.config.values import Bytes, ProjectPath, Seconds, Texts, UnfitPolicy, refuse
from trucker.table import CopyMode, Partitions, SchemaChanges, TableId

__all__ = [
    "BatchConfig",
    "ColumnConfig",
    "CopyConfig",
    "InputConfig",
    "LogConfig",
    "LookupConfig",
    "OutputConfig",
    "ProjectConfig",
    "ProjectFile",
    "RetryConfig",
    "RuleConfig",
    "S3Config",
    "SparkConfig",
    "TruckConfig",
    "TruckFile",
]


class SparkConfig(Model):
    """How Spark is started."""

    master: Text = Field(default="local[*]", description="Spark's master: `local[*]`, or a cluster's address.")
    settings: dict[str, str] = Field(default={}, description="Spark settings, by their full names (`spark.…`).")

    @field_validator("settings")
    @classmethod
    def _full_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.startswith("spark."):
                raise refuse("the name of a Spark setting must begin with spark.", remedy="write its full name")
        return value


class BatchConfig(Model):
    """The sizes of micro-batches."""

    max_bytes: Bytes = Field(
        default=64 * MIB,
        gt=0,
        description="The most change-log bytes in one micro-batch; a transaction is never split.",
    )
    part_bytes: Bytes = Field(
        default=16 * MIB,
        ge=64 * 1024,
        description="The most change-log bytes that a task reads at once; the memory of a task grows with it.",
    )
    small_bytes: Bytes = Field(
        default=MIB,
        ge=0,
        description="The driver processes a micro-batch of at most this many change-log bytes itself, because "
        "starting a Spark job would take longer. On one machine it also copies small tables, and the first chunks "
        "of others while the Spark workers start. 0: never.",
    )
    patience: Seconds = Field(
        default=5.0,
        ge=0,
        description="How long destinations that have committed a batch wait for one that has not; the slow one "
        "is then processed separately until it has caught up.",
    )


class RetryConfig(Model):
    """How long to wait before a retry; each wait is twice the one before."""

    first: Seconds = Field(default=0.5, gt=0, description="The first wait.")
    longest: Seconds = Field(default=30.0, gt=0, description="The longest wait.")
    failed_first: Seconds = Field(
        default=60.0,
        gt=0,
        description="The first wait before a failed truck or table is retried. The wait is at least ten times "
        "as long as the last attempt took.",
    )
    failed_longest: Seconds = Field(
        default=3600.0, gt=0, description="The longest wait before a failed truck or table is retried."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.longest < self.first:
            raise refuse(
                "longest is shorter than first", key="longest", remedy="give longest a value of at least first"
            )
        if self.failed_longest < self.failed_first:
            raise refuse(
                "failed_longest is shorter than failed_first",
                key="failed_longest",
                remedy="give failed_longest a value of at least failed_first",
            )
        return self


class CopyConfig(Model):
    """How tables are copied incrementally (`input.copy`)."""

    parallel: int | None = Field(
        default=None, ge=1, description="The most chunks that are read at once; the default is Spark's cores."
    )
    chunk_bytes: Bytes = Field(
        default=64 * MIB, ge=8192, description="The most bytes of a table that are read in one chunk."
    )
    chunk_seconds: Seconds = Field(
        default=2.0,
        gt=0,
        description="How long a chunk should take to read: no transaction on the source is open much longer.",
    )
    auto_bytes: Bytes = Field(
        default=1024 * MIB,
        gt=0,
        description="From this size on `copy: auto` copies a table incrementally, and the first copy of an "
        "`exported` one that was interrupted is repeated incrementally, where it cannot be continued.",
    )
    max_rows_per_second: int | None = Field(
        default=None, ge=1, description="The most rows that are read per second, on average. The default is no limit."
    )


class InputConfig(Model):
    """What a truck reads."""

    connection: Text = Field(description="The name of a connection in trucker.yml.")
    table: Text | None = Field(default=None, description="The table, `schema.table`; the default schema is public.")
    tables: Texts = Field(
        default=(), description="Instead of table: names and patterns, such as `public.*` and `!public.audit_*`."
    )
    only_columns: Texts | None = Field(default=None, description="Read only these columns.")
    except_columns: Texts | None = Field(default=None, description="Read all columns except these.")
    where: Text | None = Field(default=None, description="Read only rows that match this SQL condition on the source.")
    copy_: CopyModes = Field(
        default=CopyMode.EXPORTED,
        validation_alias="copy",
        serialization_alias="copy",
        description="How tables are copied first: `exported` reads all of a table as of one moment, fastest; "
        "`incremental` reads chunks in short transactions, and continues after an interruption; `auto` copies tables "
        "from `copy.auto_bytes` on incrementally; `none` copies nothing, and applies the changes from now on. Or a "
        'mapping of names and patterns of tables to modes, such as `{"events_*": none, big: incremental}`: the first '
        "that matches counts, and tables that none matches are `exported`.",
    )

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
            raise refuse("tables has only exclusions", remedy="add a pattern of tables to read, such as public.*")
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

    def copy_mode(self, table: TableId) -> CopyMode:
        """How a table is copied first."""
        if isinstance(self.copy_, CopyMode):
            return self.copy_
        matching = (mode for text, mode in self.copy_.items() if parse_pattern(text).matches(table))
        return next(matching, CopyMode.EXPORTED)


class ColumnConfig(Model):
    """How a column is written."""

    unfit: UnfitPolicy = Field(
        description="What to do with a value that the destination's column type cannot hold: `error` stops the "
        "truck, `null` writes NULL, `text` makes the whole column text, so that nothing is lost."
    )


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
    key: Texts = Field(
        default=(),
        description="The columns that identify a row at the destination, if SQL or rules give other columns "
        "than the input's key.",
    )
    columns: dict[str, ColumnConfig] = Field(
        default={},
        description="Settings of columns, by name; they apply to every table of the truck that has the column.",
    )

    @field_validator("table")
    @classmethod
    def _one_table(cls, value: str | None) -> str | None:
        return value if value is None else _one_table(value, remedy="write schema.table")

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.table is not None and self.schema_ is not None:
            raise refuse(
                "the output has both table and schema",
                key="schema",
                remedy="write schema.table under table, and remove schema",
            )
        return self


class TruckFile(Model):
    """A truck: what it reads and where it writes."""

    input: InputConfig = Field(description="What the truck reads.")
    output: OutputConfig = Field(description="Where the truck writes.")
    on_error: Literal["stop", "dead_letter"] = Field(
        default="stop",
        description="What to do with a row that the destination refuses because of its values: `stop` stops "
        "the truck, `dead_letter` writes the change to `trucker.dead_letters` there (of an event stream: to a file in "
        "the state folder) and goes on. See `trucker redrive`.",
    )
    dead_letters_max: int = Field(
        default=1000,
        ge=1,
        description="With `on_error: dead_letter`: the most dead letters that the truck may have; one more stops it.",
    )
    on_table_failure: Literal["table", "truck"] = Field(
        default="table",
        description="What stops when a table fails in a truck without SQL files that has other tables: `table` "
        "stops only the table, and copies it again once the cause is gone; `truck` stops the truck.",
    )
    schema_changes: SchemaChanges = Field(
        default=SchemaChanges.APPLY,
        description="When the columns of a table change: `apply` adds and widens columns at the destination, "
        "and for other changes stops the truck with the statement to run; `stop` stops the truck for any "
        "change; `ignore` does not change the destination.",
    )
    partitions: Partitions = Field(
        default=Partitions.FOLLOW,
        description="When a single partition of a table is detached, dropped or truncated: `follow` removes "
        "its rows at the destination, by copying the table again; `keep` leaves them there. When a partition is "
        "attached with rows, `follow` copies the table again; `keep` merges the partition's rows by key.",
    )

    compact: Literal["net", "none"] = Field(
        default="net",
        description="`net` combines the changes of a key in a batch into one, with the old values of the first "
        "and the new values of the last. `none` keeps every change, in commit order, with `commit_lsn`, "
        "`commit_time`, `xid` and `ordinal` as columns, for histories written by output.sql.",
    )
    batch: Literal["whole", "transaction"] = Field(
        default="whole",
        description="The rows that SQL files are run on: `whole` means all rows of a batch, `transaction` the "
        "rows of one source transaction.",
    )
    on_truncate: Literal["stop", "ignore"] = Field(
        default="stop",
        description="What to do when an input is truncated, in a truck with output.sql or with several tables "
        "for one output.",
    )
    rows_max: int = Field(
        default=1_000_000,
        ge=1,
        description="The most rows that a SQL file may return for the rows that it is run on; more stop the truck.",
    )
    slow_query_threshold_ms: int | None = Field(
        default=None, ge=0, description="The same setting for the SQL files of this truck, instead of the project's."
    )
    rules: tuple[RuleConfig, ...] = Field(
        default=(), description="Rules applied to rows before any SQL, in this order."
    )
    lookups: dict[LookupName, LookupConfig] = Field(
        default={}, description="Tables that the truck's Spark files can join, as `{{ lookups.<name> }}`."
    )
    handler: dict[str, Any] = Field(
        default={}, description="Settings of the truck's handler.py: its class is called with them as keywords."
    )


class TruckConfig(TruckFile):
    """A truck with its name, which is its folder's, and its SQL files.

    One that is built in code has no folder; its Python functions for Spark SQL are given, instead of a functions.py.
    """

    name: Name
    folder: Path | None = None
    files: tuple[SqlFile, ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    code: HandlerFile | HandlerClass | None = None
    """Its handler.py."""

    @property
    def label(self) -> str:
        """What errors call its settings."""
        return f"{self.name}/truck.yml" if self.folder else f"truck {self.name}"

    @property
    def does_more(self) -> bool:
        """Whether it does more than replicate tables as they are."""
        return bool(self.files or self.rules or self.output.key or self.compact != "net")

    def file(self, name: str) -> SqlFile | None:
        """One of its SQL files, if it is there."""
        return next((file for file in self.files if file.name == name), None)


class ProjectFile(Model):
    """A project: its connections and how it runs."""

    unique_id: Text | None = Field(
        default=None,
        description="Distinguishes this project from others on the same servers; part of the names of the slot "
        "and the publication. The default is the folder's name.",
    )
    # Each is a model of its adapter's; `load` makes them.
    connections: tuple[SerializeAsAny[Connection], ...] = Field(
        min_length=1, description="The stores trucks read from and write to."
    )
    state: ProjectPath = Field(
        default=Path(".trucker"),
        validate_default=True,
        description="The folder of local state, and of the change log unless log.location is set.",
    )
    spark: SparkConfig = Field(default=SparkConfig(), description="How Spark is started.")
    log: LogConfig = Field(
        default=LogConfig(), description="The change log: where it is, and for how long changes are kept."
    )
    batch: BatchConfig = Field(default=BatchConfig(), description="The sizes of micro-batches.")
    copy_: CopyConfig = Field(
        default=CopyConfig(),
        validation_alias="copy",
        serialization_alias="copy",
        description="How tables are copied incrementally.",
    )
    heartbeat: Seconds = Field(
        default=10.0,
        ge=0,
        description="How often to write a message to an idle source, so that its slot advances; 0: never.",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="How long to wait before a retry.")
    slow_query_threshold_ms: int = Field(
        default=1000,
        ge=0,
        description="Statements of a truck's SQL files that take longer are logged, without data; 0 logs all.",
    )


class ProjectConfig(ProjectFile):
    """A project as loaded or built, trucks included. Paths are absolute.

    `folder` is the project's; for one that is built in code, the working folder at that time.
    """

    unique_id: Text
    folder: Path
    trucks: tuple[TruckConfig, ...] = ()

    @property
    def state_folder(self) -> Path:
        """The folder of local state."""
        return self.folder / self.state

    @property
    def is_built(self) -> bool:
        """Whether it is built in code, without files."""
        return any(truck.folder is None for truck in self.trucks)

    @property
    def sources(self) -> list[Connection]:
        """The connections that trucks read from."""
        used = {truck.input.connection for truck in self.trucks}
        return [connection for connection in self.connections if connection.name in used]

    def connection(self, name: str) -> Connection:
        """The connection a truck names."""
        return next(connection for connection in self.connections if connection.name == name)


_PATTERN_REMEDY = (
    'write schema.table, public.*, !public.audit_*; write unusual names in double quotes: public."odd.name"'
)


def _one_table(text: str, *, remedy: str) -> str:
    try:
        parse_table(text)
    except PatternError as error:
        raise refuse(str(error), remedy=remedy) from None
    return text
