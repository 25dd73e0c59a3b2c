"""What trucker knows of SQLite. Every command that loads a project with such a connection imports this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field

from trucker.adapters import Abilities, Adapter, Connection, Form, Kind, ProjectPath, Seconds, TypeForms


class SqliteConnection(Connection):
    """A SQLite file as a destination."""

    adapter: Literal["sqlite"] = Field(description="The kind of store.")
    path: ProjectPath = Field(description="The database file; relative to the project's folder.")
    lock_timeout: Seconds = Field(default=10.0, gt=0, description="How long to wait while another program writes.")


class SqliteTypes(TypeForms):
    """Integers are numbers. Everything else stays PostgreSQL's text, which is exact."""

    title: ClassVar[str] = "SQLite"
    text: ClassVar[Form] = Form("TEXT")
    forms: ClassVar[Mapping[Kind, Form]] = dict.fromkeys((Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT), Form("INTEGER"))


TYPES: Final = SqliteTypes()

SQLITE: Final = Adapter(
    name="sqlite",
    connection=SqliteConnection,
    sink="trucker_sqlite.sink:SqliteSink",
    abilities=Abilities(guarantee="exactly once: data and positions in one transaction per batch", dead_letters=True),
    types=TYPES,
)
