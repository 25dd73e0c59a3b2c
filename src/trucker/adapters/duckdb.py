"""A DuckDB file as a destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field

from trucker.abilities import Abilities
from trucker.config.adapter import Adapter, Connection
from trucker.config.model import MIB, Model
from trucker.config.values import Bytes, ProjectPath, Seconds
from trucker.types import LARGEST_PRECISION, ColumnKind, Form, Kind, TypeForms


class StatementTimeout(Model):
    """How long a statement may take before it is cancelled."""

    statement: Seconds | None = Field(
        default=None, gt=0, description="For one statement of a truck's SQL file; without a value there is no limit."
    )


class DuckDBConnection(Connection):
    """A DuckDB file as a destination."""

    adapter: Literal["duckdb"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The database file; relative to the project's folder.")
    memory: Bytes = Field(
        default=1024 * MIB,
        ge=256 * MIB,
        description="The most memory that DuckDB uses in the driver; it spills the rest to files next to the "
        "database file.",
    )
    timeouts: StatementTimeout = Field(
        default=StatementTimeout(), description="How long a statement may take: only the key `statement`."
    )


TEXT: Final = "VARCHAR"
TIMESTAMPTZ: Final = "TIMESTAMP WITH TIME ZONE"
_LATE: Final = "from 294247-01-10 04:00:54.775807 on"


class DuckDBTypes(TypeForms):
    """DuckDB's types, as its catalogue spells them."""

    title: ClassVar[str] = "DuckDB"
    text: ClassVar[Form] = Form(TEXT)
    forms: ClassVar[Mapping[Kind, Form]] = {
        Kind.SMALLINT: Form("SMALLINT"),
        Kind.INTEGER: Form("INTEGER"),
        Kind.BIGINT: Form("BIGINT"),
        Kind.REAL: Form("FLOAT"),
        Kind.DOUBLE: Form("DOUBLE"),
        Kind.BOOLEAN: Form("BOOLEAN"),
        Kind.BYTES: Form("BLOB"),
        Kind.DATE: Form("DATE"),
        Kind.TIME: Form("TIME"),
        Kind.TIMESTAMP: Form("TIMESTAMP", _LATE),
        Kind.TIMESTAMPTZ: Form(TIMESTAMPTZ, _LATE),
        Kind.UUID: Form("UUID"),
        Kind.JSON: Form("JSON", "half of a surrogate pair (`\\ud800`), which `json` may hold"),
    }

    def of(self, column: ColumnKind) -> Form:
        precision, scale = column.precision, column.scale
        if column.form_kind is not Kind.NUMERIC or precision is None or scale is None:
            return super().of(column)
        # DuckDB has neither a negative scale nor one above the precision.
        fits = 0 <= scale <= precision <= LARGEST_PRECISION
        return Form(f"DECIMAL({precision},{scale})", "`NaN`") if fits else self.text


TYPES: Final = DuckDBTypes()

DUCKDB: Final = Adapter(
    name="duckdb",
    connection=DuckDBConnection,
    sink="trucker.sinks.duckdb:DuckDBSink",
    lookup="trucker.sinks.duckdb.lookup:DuckDBLookup",
    abilities=Abilities(
        output_sql=True,
        dead_letters=True,
        guarantee="exactly once: data and positions in one transaction per batch",
    ),
    driver="duckdb",
    install='pip install "trucker[duckdb]"',
    types=TYPES,
)
