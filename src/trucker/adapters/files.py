"""Files of a folder or a bucket as a destination: JSON lines, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from trucker.abilities import Abilities
from trucker.config.adapter import Adapter
from trucker.config.events import EventConnection, EventFormat
from trucker.config.log import Location, S3Config
from trucker.config.model import MIB
from trucker.config.values import Bytes, Seconds, refuse
from trucker.types import LARGEST_PRECISION, ColumnKind, Form, Kind, TypeForms


class FileType(StrEnum):
    """How rows are written into files."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class FilesConnection(EventConnection):
    """A folder or a bucket of files as a destination, by truck and table: one row per change."""

    adapter: Literal["files"] = Field(description="The kind of store.")
    location: Location = Field(
        description="Where the files go: a path, relative to the project's folder, `file:///shared/folder` or "
        "`s3://bucket/prefix`."
    )
    s3: S3Config | None = Field(default=None, description="How to reach an `s3://` location.")
    file_type: FileType = Field(
        default=FileType.JSON,
        description="`json`: lines of JSON in the envelope that `format` says; `csv` or `parquet`: the columns of flat "
        "rows.",
    )
    by_day: bool = Field(
        default=False, description="Put the files of each day (UTC, of the commit) into a folder `day=2026-01-31`."
    )
    rotate_bytes: Bytes = Field(
        default=128 * MIB, gt=0, description="A file is finished when about so many bytes of changes are there for it."
    )
    rotate_seconds: Seconds = Field(
        default=60.0, gt=0, description="A file is finished when its first change has been there for so long."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.s3 is not None and not isinstance(self.location, str):
            raise refuse("s3 is given, but the location is not s3://", key="s3", remedy="remove one of them")
        if self.transactions:
            raise refuse(
                "files are by table, so that marks of transactions have no place in them",
                key="transactions",
                remedy="remove transactions; _lsn and _xid say which rows are of one transaction",
            )
        if self.file_type is not FileType.JSON and self.format is EventFormat.DEBEZIUM:
            raise refuse(
                "CSV and Parquet files have the columns of flat rows, and no envelope",
                key="format",
                remedy="remove format, or set file_type: json",
            )
        return self


class ParquetTypes(TypeForms):
    """Arrow's types, which Parquet has."""

    title: ClassVar[str] = "Parquet files"
    text: ClassVar[Form] = Form("string")
    forms: ClassVar[Mapping[Kind, Form]] = {
        Kind.SMALLINT: Form("int16"),
        Kind.INTEGER: Form("int32"),
        Kind.BIGINT: Form("int64"),
        Kind.REAL: Form("float"),
        Kind.DOUBLE: Form("double"),
        Kind.BOOLEAN: Form("bool"),
        Kind.BYTES: Form("binary"),
        Kind.DATE: Form("date32", "`infinity`, `-infinity`"),
        Kind.TIME: Form("time64[us]", "`24:00:00`"),
        Kind.TIMESTAMP: Form("timestamp[us]", "`infinity`, `-infinity`"),
        Kind.TIMESTAMPTZ: Form("timestamp[us, UTC]", "`infinity`, `-infinity`"),
    }

    def of(self, column: ColumnKind) -> Form:
        if column.kind is Kind.NUMERIC and not column.array and column.precision is not None:
            precision, scale = column.precision, column.scale or 0
            if 0 <= scale <= precision <= LARGEST_PRECISION:
                return Form(f"decimal128({precision}, {scale})", "`NaN`")
        return super().of(column)


TYPES: Final = ParquetTypes()

FILES: Final = Adapter(
    name="files",
    connection=FilesConnection,
    sink="trucker.sinks.files.sink:FilesSink",
    abilities=Abilities(
        every_change=True, guarantee="exactly once: a file that is there is whole, and has changes that no other has"
    ),
    types=TYPES,
)
