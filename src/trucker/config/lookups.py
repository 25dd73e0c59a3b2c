"""Lookups: tables of any connection that a truck's Spark files can join."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from trucker.config.model import Model, Text
from trucker.config.patterns import PatternError, parse_table
from trucker.config.values import Seconds, Texts, refuse

LookupName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class LookupConfig(Model):
    """A table to join: the rows whose keys a batch has, or the whole table, cached for some time."""

    connection: Text = Field(description="The name of a connection in trucker.yml, of an adapter that has lookups.")
    table: Text = Field(description="The table or view there, `schema.table`.")
    columns: Texts | None = Field(default=None, description="Read only these columns.")
    on: dict[str, str] = Field(
        default={},
        description="The table's key columns, each with the column of the rows that has its values; only the "
        "table's rows with these values are read.",
    )
    cache: Seconds | None = Field(
        default=None, gt=0, description="Instead of `on`: read the whole table, and cache it this long."
    )

    @field_validator("table")
    @classmethod
    def _one_table(cls, value: str) -> str:
        try:
            parse_table(value)
        except PatternError as error:
            raise refuse(str(error), remedy="write schema.table") from None
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.on) == (self.cache is not None):
            raise refuse(
                "a lookup needs either on or cache",
                key="cache" if self.on else "",
                remedy="write on: {id: customer_id} to look up by keys, or cache: 10m to keep the whole table",
            )
        return self
